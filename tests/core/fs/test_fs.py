"""Copies from memory://, local paths and http://: whole or not at all, made again when the source changes."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.server
import logging
import os
import pty
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe import hooks
from probe.core import fs
from probe.core.fs.cache import RECORD
from probe.core.fs.checksum import Checksum, checksum_of, version_of
from probe.core.fs.store import Inventory, LocalSource
from probe.core.fs.transfer import PARTIAL
from probe.errors import InputError, InputTypeError, MissingDependencyError

NAMED = "memory://store/model"


@pytest.fixture
def memory():
    """The file system behind memory://, emptied before and after."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def put(store, **files):
    for name, content in files.items():
        store.pipe_file("/store/model/" + name.replace("__", "/").replace("_", "."), content)


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def left(folder):
    """What lies in a cache."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")) if Path(folder).exists() else []


class Told(hooks.Listener):
    def __init__(self):
        self.values = []

    def fire(self, event):
        self.values.append(dict(event.values))

    @property
    def reasons(self):
        return [one["reason"] for one in self.values]


@pytest.fixture
def told():
    listener = Told()
    with hooks.subscribe(listener, "fs.cached"):
        yield listener


# ------------------------------------------------------------------------------------------------------- local paths


def test_a_local_path_comes_back_as_it_is(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a")
    assert fs.copy_to_local(str(file)) == str(file)
    assert fs.copy_to_local(file) == str(file)
    assert fs.copy_to_local(f"{tmp_path}/") == str(tmp_path)
    assert fs.copy_to_local(f"file://{file}") == str(file)
    assert left(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("path", ["{}/missing", "file://{}/missing", "{}/a.txt/inside"])
def test_a_missing_local_path_raises(tmp_path, path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(fs.SourceMissingError, match=r"src: there is nothing at '.*(missing|inside)'"):
        fs.copy_to_local(path.format(tmp_path))
    with pytest.raises(FileNotFoundError):
        fs.copy_to_local(path.format(tmp_path))


def test_what_looks_like_something_else_gets_a_hint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.SourceMissingError, match=r"hf://some-org/some-model-0.5B"):
        fs.copy_to_shm("some-org/some-model-0.5B")
    with pytest.raises(fs.SourceMissingError, match="as a string"):
        fs.copy_to_local(Path("s3://bucket/model"))
    (tmp_path / "data").mkdir()
    with pytest.raises(fs.SourceMissingError, match=r"nothing at 'data/train.parquet'$"):
        fs.copy_to_local("data/train.parquet")


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B", "gpt2", "org/model.v2", "a-1/b_2"])
def test_c_the_name_of_a_model_on_the_hub_comes_back(tmp_path, monkeypatch, caplog, name):
    monkeypatch.chdir(tmp_path)
    assert fs.copy_to_local(name) == name
    assert fs.copy_to_local(name, str(tmp_path / "cache"), verbose=True, always_recopy=True) == name
    assert not caplog.records
    assert fs.copy_to_local(name, use_shm=True) == name
    assert "isn't copied into shared memory" in caplog.text
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "path",
    ["/no/such/model", "./model", "../model", "data/model", "a/b/c", "org/train.parquet", "photo.PNG", "~/model"],
)
def test_what_looks_like_a_path_and_is_not_there_raises(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(fs.SourceMissingError, match=r"src: (there is nothing at|'model' of './model' isn't there)"):
        fs.copy_to_local(path)
    with pytest.raises(fs.SourceMissingError):
        fs.copy_to_local(Path("org/model"))  # a path is a path


def test_a_folder_called_like_a_model_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert fs.copy_to_local("org/model/") == fs.copy_to_local("org/model") == "org/model"


@pytest.mark.parametrize("given", [None, 3, b"/tmp", ["a"]])
def test_no_path_is_a_type_error(given):
    for function in (fs.copy_to_local, fs.copy_to_shm, fs.exists, fs.makedirs, fs.local_mkdir_safe):
        with pytest.raises(InputTypeError, match="expected a path or a URL"):
            function(given)


@pytest.mark.parametrize("given", ["", "s3://", "memory:///", "a\0b", "file://"])
def test_a_path_of_nothing_is_an_error(given):
    with pytest.raises(InputError, match="expected a path or a URL of a file or directory"):
        fs.copy_to_local(given)


def test_an_unknown_kind_of_url_is_an_error(tmp_path):
    with pytest.raises(InputError, match="nonsense"):
        fs.copy_to_local("nonsense://a/b", tmp_path)
    assert left(tmp_path) == []


def test_a_missing_driver_names_the_extra():
    code = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from probe.core.fs import copy_to_local\n"
        "copy_to_local('s3://bucket/model')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError" in done.stderr
    assert "copying from s3:// needs the package 's3fs'; install it with: pip install 'probe-rl[s3]'" in done.stderr
    assert issubclass(MissingDependencyError, ImportError)


def test_importing_it_brings_no_store():
    code = (
        "import sys; import probe.core.fs\n"
        "print([m for m in ('s3fs', 'aiohttp', 'torch', 'datasets', 'fsspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # probe.core's own package is empty, so that nothing else comes along.
    assert done.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------------------------- the cache


def test_a_file_and_a_folder(memory, tmp_path):
    put(memory, a_txt=b"one", sub__b_txt=b"", sub__deep__c_bin=bytes(range(256)))
    memory.makedirs("/store/model/empty")
    path = fs.copy_to_local(NAMED, tmp_path)
    assert path == fs.get_local_temp_path(NAMED, tmp_path)
    assert path == str(tmp_path / fs.md5_encode(NAMED) / "model")
    assert tree(path) == {"a.txt": b"one", "sub/b.txt": b"", "sub/deep/c.bin": bytes(range(256))}
    assert (Path(path) / "empty").is_dir()
    assert fs.verify_copy(NAMED, path)
    assert fs.copy_to_local(f"{NAMED}/", tmp_path) == path
    single = fs.copy_to_local(f"{NAMED}/a.txt", str(tmp_path))
    assert Path(single).name == "a.txt"
    assert Path(single).read_bytes() == b"one"
    assert fs.copy_to_local(f"{NAMED}/a.txt/", tmp_path) == single


def test_it_is_copied_once_and_again_when_something_changed(memory, tmp_path, told):
    put(memory, a_txt=b"one", b_txt=b"two")

    def again(**options):
        path = fs.copy_to_local(NAMED, tmp_path, **options)
        assert tree(path) == {name.rpartition("/")[2]: memory.cat_file(name) for name in memory.find("/store/model")}
        return Path(path)

    path = again()
    again()
    put(memory, a_txt=b"ONE")  # the same size: only its time tells
    again()
    put(memory, c_txt=b"new")
    again()
    memory.rm_file("/store/model/b.txt")
    again()
    (path / "a.txt").write_bytes(b"half")
    again()
    (path / "extra.txt").write_bytes(b"")
    again()
    (path / "c.txt").unlink()
    again()
    again(always_recopy=True)
    again()
    expected = [None, "changed", "changed", "changed", "damaged", "damaged", "damaged", "asked", None]
    assert told.reasons == ["absent", *expected]
    assert told.values[0].keys() >= {"source", "path", "files", "size_bytes", "waited_ns", "duration_ns"}
    assert (told.values[0]["files"], told.values[0]["size_bytes"]) == (2, 6)
    assert left(path.parent) == sorted([".file.lock", RECORD, "model", "model/a.txt", "model/c.txt"])


def test_a_file_that_becomes_a_folder(memory, tmp_path):
    memory.pipe_file("/store/model", b"file")
    assert Path(fs.copy_to_local(NAMED, tmp_path)).read_bytes() == b"file"
    memory.rm_file("/store/model")
    put(memory, a_txt=b"in a folder")
    assert tree(fs.copy_to_local(NAMED, tmp_path)) == {"a.txt": b"in a folder"}
    memory.rm("/store/model", recursive=True)
    memory.pipe_file("/store/model", b"file again")
    assert Path(fs.copy_to_local(NAMED, tmp_path)).read_bytes() == b"file again"


@pytest.mark.parametrize("record", [b"", b"{", b"[1]", b"{}", b'{"source": 3}', None])
def test_a_copy_without_a_good_record_is_made_again(memory, tmp_path, told, record):
    put(memory, a_txt=b"one")
    path = Path(fs.copy_to_local(NAMED, tmp_path))
    (path / "a.txt").write_bytes(b"bad")
    beside = path.parent / RECORD
    beside.unlink() if record is None else beside.write_bytes(record)
    assert tree(fs.copy_to_local(NAMED, tmp_path)) == {"a.txt": b"one"}


def test_a_missing_source_raises_and_leaves_nothing(memory, tmp_path):
    with pytest.raises(fs.SourceMissingError, match="there is nothing at 'memory://store/model'"):
        fs.copy_to_local(NAMED, tmp_path)
    assert left(tmp_path) == []


def test_a_source_that_is_gone_doesn_t_serve_the_old_copy(memory, tmp_path):
    put(memory, a_txt=b"one")
    fs.copy_to_local(NAMED, tmp_path)
    memory.rm("/store/model", recursive=True)
    with pytest.raises(fs.SourceMissingError):
        fs.copy_to_local(NAMED, tmp_path)


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "a/./b", "a/.."])
def test_names_never_leave_the_cache(memory, tmp_path, name):
    put(memory, a_txt=b"one")
    good = memory.store["/store/model/a.txt"]
    memory.store[f"/store/model/{name}"] = good
    with pytest.raises(InputError, match="can't be the name of a local file"):
        fs.copy_to_local(NAMED, tmp_path / "cache")
    assert left(tmp_path) == []


def test_a_url_can_t_name_a_folder_above(tmp_path):
    for url in ("memory://store/..", "s3://bucket/a/..", "memory://store/."):
        with pytest.raises(InputError, match="can't be the name"):
            fs.copy_to_local(url, tmp_path)
        with pytest.raises(InputError):
            fs.get_local_temp_path(url, tmp_path)


def test_the_lock_s_name_is_honoured(memory, tmp_path):
    put(memory, a_txt=b"one")
    folder = Path(fs.copy_to_local(NAMED, tmp_path / "1", filelock="my.lock")).parent
    assert (folder / "my.lock").exists()
    assert not (folder / ".file.lock").exists()
    elsewhere = tmp_path / "elsewhere.lock"
    folder = Path(fs.copy_to_local(NAMED, tmp_path / "2", filelock=str(elsewhere))).parent
    assert elsewhere.exists()
    assert not list(folder.glob("*.lock"))
    for bad in ("", "..", "a/b", "model", RECORD):
        with pytest.raises(InputError, match="filelock"):
            fs.copy_to_local(NAMED, tmp_path / "3", filelock=bad)
    with pytest.raises(InputTypeError, match="filelock: got None"):
        fs.copy_to_local(NAMED, tmp_path / "3", filelock=None)
    with pytest.raises(fs.CopyError, match="filelock"):
        fs.copy_to_local(NAMED, tmp_path / "3", filelock=str(tmp_path / "none" / "x.lock"))
    with pytest.raises(InputError, match="cache_dir: got 's3://b/c'"):
        fs.copy_to_local(NAMED, "s3://b/c")


def test_the_system_s_directory_is_the_default_and_only_our_own_is_trusted(memory, tmp_path, monkeypatch):
    put(memory, a_txt=b"one")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = fs.copy_to_local(NAMED)
    assert path == str(tmp_path / fs.md5_encode(NAMED) / "model")
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    planted = tmp_path / fs.md5_encode("memory://store/model/a.txt")
    planted.symlink_to(tmp_path)  # what another user could put there
    with pytest.raises(fs.CopyError, match=r"cache_dir: .* give a cache_dir of your own"):
        fs.copy_to_local("memory://store/model/a.txt")


def test_verbose_reports_through_logging(memory, tmp_path, caplog):
    put(memory, a_txt=b"one")
    caplog.set_level(logging.INFO, "probe.core.fs")
    fs.copy_to_local(NAMED, tmp_path)
    assert not caplog.records
    fs.copy_to_local(NAMED, tmp_path, verbose=True)
    assert "in the cache already" in caplog.text
    fs.copy_to_local(NAMED, tmp_path, verbose=True, always_recopy=True)
    assert "copying memory://store/model to" in caplog.text
    assert "copied /store/model/a.txt, 3 bytes" in caplog.text


def test_c_verbose_shows_progress(memory, tmp_path, capsys):
    put(memory, a_txt=b"x" * 3_000_000, b_txt=b"y" * 7_000_000)
    fs.copy_to_local(NAMED, tmp_path)
    assert capsys.readouterr() == ("", "")
    fs.copy_to_local(NAMED, tmp_path, verbose=True)
    assert "memory://store/model is in the cache already" in capsys.readouterr().err
    fs.copy_to_local(NAMED, tmp_path, verbose=True, always_recopy=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "copying memory://store/model: 2 files, 9.54 MiB" in err
    done = [int(percent) for percent in re.findall(r"of 9.54 MiB copied \((\d+)%\)", err)]
    assert done == sorted(set(done))  # no tenth is told twice
    assert done[-1] == 100
    assert len(done) <= 10


def test_c_in_a_terminal_progress_is_a_bar(tmp_path):
    code = (
        "import sys, fsspec; from probe.core.fs import copy_to_local\n"
        "fsspec.filesystem('memory').pipe_file('/store/model/a.txt', b'x' * 1_000_000)\n"
        "copy_to_local('memory://store/model', sys.argv[1], verbose=True)\n"
    )
    terminal, descriptor = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    done = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=descriptor, env=environment)
    os.close(descriptor)
    seen = b""
    with contextlib.suppress(OSError):  # what reading a terminal raises at its end
        while block := os.read(terminal, 4096):
            seen += block
    os.close(terminal)
    assert done.wait(60) == 0
    assert "━" in seen.decode()
    assert "976.6/976.6 KiB" in seen.decode()


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_a_full_disk_leaves_nothing(memory, tmp_path, monkeypatch):
    put(memory, a_txt=b"one", b_txt=b"two")
    real = type(memory).get_file

    def full(self, source, target, **options):
        if source.endswith("b.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "get_file", full)
        with pytest.raises(fs.NoRoomError, match="No space left"):
            fs.copy_to_local(NAMED, tmp_path / "cache")
        assert left(tmp_path / "cache") == []
    assert len(tree(fs.copy_to_local(NAMED, tmp_path / "cache"))) == 2


def test_a_source_that_changes_meanwhile_is_an_error(memory, tmp_path, monkeypatch):
    put(memory, a_txt=b"one", b_txt=b"two")
    kept = fs.copy_to_local(NAMED, tmp_path / "cache")
    before = tree(kept)
    real = type(memory).get_file

    def changing(self, source, target, **options):
        real(self, source, target, **options)
        put(memory, a_txt=b"ONE")

    monkeypatch.setattr(type(memory), "get_file", changing)
    with pytest.raises(fs.CopyError, match="changed while it was copied"):
        fs.copy_to_local(NAMED, tmp_path / "cache", always_recopy=True)
    assert tree(kept) == before
    assert not list(Path(kept).parent.glob(f"{PARTIAL}*"))


def test_a_cache_dir_that_can_t_be_used(memory, tmp_path):
    put(memory, a_txt=b"one")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(fs.CopyError, match=r"cache_dir: .*file.* can't be used"):
        fs.copy_to_local(NAMED, tmp_path / "file" / "cache")
    assert left(tmp_path) == ["file"]


_AS_NOBODY = """
import os, sys
sys.path.insert(0, {repo!r})
import fsspec
from probe.core import fs
fsspec.filesystem("memory").pipe_file("/a.txt", b"one")
import fsspec.implementations.local
os.setgid(65534); os.setuid(65534)
for function, arguments in ((fs.copy_to_local, ("memory://a.txt", {folder!r})),
                            (fs.copy, ({hidden!r}, {folder!r} + "/copy")),
                            (fs.copy, ("memory://a.txt", {folder!r} + "/b.txt"))):
    try:
        function(*arguments)
    except fs.CopyError as error:
        print("CopyError", error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_permission_denied_is_told():
    repo = str(Path(fs.__file__).parents[2])
    with tempfile.TemporaryDirectory() as name:
        hidden = Path(name) / "hidden"
        hidden.mkdir()
        (hidden / "secret").write_text("x")
        hidden.chmod(0o700)
        Path(name).chmod(0o755)
        code = _AS_NOBODY.format(repo=repo, folder=name, hidden=str(hidden))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.count("CopyError") == 3, done
        assert done.stdout.count("Permission denied") == 3
        assert left(name) == ["hidden", "hidden/secret"]


# ------------------------------------------------------------------------------------------------------------- http


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``self.server.files``: what HEAD says, and what GET gives."""

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        found = self.server.files.get(self.path)
        if found is None or isinstance(found, int):
            self.send_response(found or 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        said, headers, content = found
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if body and said is None else said or len(content)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files = {}
    thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_over_http(web, tmp_path, told):
    web.files["/data/a.jsonl?token=1"] = (None, {"ETag": '"1"'}, b"{}\n" * 100)
    path = fs.copy_to_local(f"{web.url}/data/a.jsonl?token=1", tmp_path)
    assert Path(path).name == "a.jsonl"
    assert Path(path).read_bytes() == b"{}\n" * 100
    fs.copy_to_local(f"{web.url}/data/a.jsonl?token=1", tmp_path)
    web.files["/data/a.jsonl?token=1"] = (None, {"ETag": '"2"'}, b"[]\n" * 100)
    assert Path(fs.copy_to_local(f"{web.url}/data/a.jsonl?token=1", tmp_path)).read_bytes() == b"[]\n" * 100
    assert told.reasons == ["absent", None, "changed"]


def test_a_folder_over_http_is_its_page_of_links(web, tmp_path):
    page = b'<a href="?C=N">order</a> <a href="a.txt">a</a> <a href="b.txt">b</a> <a href="/">up</a>'
    web.files.update({"/dir/": (None, {"Content-Type": "text/html"}, page), "/dir/?C=N": (None, {}, page)})
    web.files.update({"/dir/a.txt": (None, {}, b"one"), "/dir/b.txt": (None, {}, b"two")})
    assert tree(fs.copy_to_local(f"{web.url}/dir/", tmp_path)) == {"a.txt": b"one", "b.txt": b"two"}


def test_a_truncated_file_is_an_error(web, tmp_path):
    web.files["/cut"] = (100, {}, b"x" * 50)
    with pytest.raises(fs.CopyError):
        fs.copy_to_local(f"{web.url}/cut", tmp_path)
    assert left(tmp_path) == []


def test_a_wrong_checksum_is_an_error(web, tmp_path):
    web.files["/good"] = (None, {"Content-MD5": "kAFQmDzST7DWlj99KOF/cg=="}, b"abc")
    web.files["/bad"] = (None, {"Content-MD5": "kAFQmDzST7DWlj99KOF/cg=="}, b"abd")
    assert Path(fs.copy_to_local(f"{web.url}/good", tmp_path)).read_bytes() == b"abc"
    with pytest.raises(fs.CopyError, match="its store lists 900150983cd24fb0d6963f7d28e17f72"):
        fs.copy_to_local(f"{web.url}/bad", tmp_path / "bad")
    assert left(tmp_path / "bad") == []


def test_not_found_is_told_from_refused_and_from_down(web, tmp_path):
    web.files["/secret"] = 403
    with pytest.raises(fs.SourceMissingError):
        fs.copy_to_local(f"{web.url}/none", tmp_path)
    assert not fs.exists(f"{web.url}/none")
    for url in (f"{web.url}/secret", "http://127.0.0.1:1/down"):
        with pytest.raises(fs.CopyError) as caught:
            fs.copy_to_local(url, tmp_path)
        assert not isinstance(caught.value, FileNotFoundError)
        with pytest.raises(fs.CopyError):
            fs.exists(url)
    assert left(tmp_path) == []


# ----------------------------------------------------------------------------------------------------- shared memory


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A folder in the real shared memory."""
    with tempfile.TemporaryDirectory(dir=fs.SHM) as name:
        monkeypatch.setattr(fs, "SHM", Path(name))
        yield Path(name)


@pytest.mark.skipif(not fs.SHM.is_dir(), reason="no shared memory here")
def test_into_shared_memory(memory, tmp_path, shm, told):
    put(memory, a_txt=b"one", sub__b_txt=b"two")
    path = fs.copy_to_local(NAMED, tmp_path / "cache", use_shm=True)
    assert Path(path).is_relative_to(shm)
    assert tree(path) == {"a.txt": b"one", "sub/b.txt": b"two"}
    assert fs.copy_to_shm(path) == path
    local = fs.get_local_temp_path(NAMED, tmp_path / "cache")
    assert fs.copy_to_local(local, use_shm=True) == path == fs.copy_to_shm(local + "/")
    assert fs.verify_copy(local, path)
    put(memory, a_txt=b"ONE")
    assert fs.copy_to_local(NAMED, tmp_path / "cache", use_shm=True) == path
    assert tree(path)["a.txt"] == b"ONE"
    assert told.reasons == ["absent", "absent", None, None, "changed", "changed"]
    with pytest.raises(InputError, match="use_shm"):
        fs.copy_to_shm(NAMED)
    with pytest.raises(fs.SourceMissingError):
        fs.copy_to_shm(tmp_path / "none")


@pytest.mark.skipif(not fs.SHM.is_dir(), reason="no shared memory here")
def test_what_doesn_t_fit_stays_and_says_so(tmp_path, shm, caplog):
    huge = tmp_path / "huge.bin"
    with huge.open("wb") as file:
        file.truncate(1 << 43)  # a hole: 8 TiB that take no room on the disk
    assert fs.copy_to_shm(huge) == str(huge)
    assert "shared memory is too small" in caplog.text
    assert [name for name in left(shm) if "huge" in name] == []


def test_without_shared_memory_it_stays_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fs, "SHM", tmp_path / "none")
    (tmp_path / "a.txt").write_text("a")
    assert fs.copy_to_local(tmp_path / "a.txt", use_shm=True) == str(tmp_path / "a.txt")
    assert "no shared memory" in caplog.text


# -------------------------------------------------------------------------------------------- copy, exists, makedirs


NAMES = st.lists(st.sampled_from(["a", "b.txt", "ü", " ", "-x", "c\n"]), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(NAMES, st.binary(max_size=50), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_there_and_back_again(memory, files):
    files = {name: content for name, content in files.items() if not any(f"{name}/" in other for other in files)}
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        for relative, content in files.items():
            (here / "from" / relative).parent.mkdir(parents=True, exist_ok=True)
            (here / "from" / relative).write_bytes(content)
        assert fs.copy(here / "from", NAMED)
        assert fs.verify_copy(here / "from", NAMED)
        assert fs.copy(NAMED, here / "to")
        assert tree(here / "to") == files
        assert tree(fs.copy_to_local(NAMED, here / "cache")) == files
        assert fs.verify_copy(here / "from", here / "to")


def test_copy_of_a_file(memory, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one")
    (tmp_path / "dir").mkdir()
    assert fs.copy(tmp_path / "a.txt", tmp_path / "dir") is True
    assert fs.copy(tmp_path / "a.txt", f"{tmp_path}/new/")
    assert fs.copy(tmp_path / "a.txt", tmp_path / "deep" / "b.txt")
    assert fs.copy(tmp_path / "a.txt", NAMED)
    assert fs.copy(NAMED, "memory://store/again/")
    assert fs.copy("memory://store/again/model", tmp_path / "deep" / "b.txt")  # over what is there
    assert fs.copy(tmp_path / "a.txt", "memory://store/again")
    assert left(tmp_path) == ["a.txt", "deep", "deep/b.txt", "dir", "dir/a.txt", "new", "new/a.txt"]
    assert memory.cat_file("/store/again/a.txt") == b"one"
    with pytest.raises(fs.SourceMissingError):
        fs.copy(tmp_path / "none", NAMED)


def test_copy_of_a_folder_over_another(memory, tmp_path):
    put(memory, a_txt=b"one", sub__b_txt=b"two")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "kept.txt").write_bytes(b"kept")
    with pytest.raises(FileExistsError, match="dirs_exist_ok"):
        fs.copy(NAMED, tmp_path / "to")
    fs.copy(NAMED, tmp_path / "to", dirs_exist_ok=True)
    assert tree(tmp_path / "to") == {"kept.txt": b"kept", "a.txt": b"one", "sub/b.txt": b"two"}
    with pytest.raises(fs.TargetExistsError):
        fs.copy(tmp_path / "to", NAMED)
    fs.copy(tmp_path / "to", NAMED, dirs_exist_ok=True)
    assert memory.cat_file("/store/model/kept.txt") == b"kept"
    with pytest.raises(InputError, match="inside it"):
        fs.copy(tmp_path / "to", tmp_path / "to" / "inside")


def test_an_upload_that_fails_takes_back_only_what_is_new(memory, tmp_path, monkeypatch):
    put(memory, b_txt=b"was there")
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_bytes(name.encode())
    real = type(memory).put_file

    def failing(self, source, target, **options):
        if target.endswith("c.txt"):
            raise ConnectionResetError("the store went away")
        return real(self, source, target, **options)

    monkeypatch.setattr(type(memory), "put_file", failing)
    with pytest.raises(fs.CopyError, match=r"c\.txt.*the store went away"):
        fs.copy(tmp_path, NAMED, dirs_exist_ok=True)
    assert memory.find("/store/model") == ["/store/model/b.txt"]


def test_empty_folders_are_copied(memory, tmp_path):
    (tmp_path / "from" / "empty").mkdir(parents=True)
    fs.copy(tmp_path / "from", NAMED)
    fs.copy(NAMED, tmp_path / "to")
    assert left(tmp_path / "to") == ["empty"]


def test_exists_and_makedirs(memory, tmp_path):
    assert not fs.exists("memory://store/new")
    fs.makedirs("memory://store/new/inside")
    assert fs.exists("memory://store/new/inside/")
    fs.makedirs("memory://store/new/inside", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("memory://store/new/inside")
    fs.makedirs(tmp_path / "a" / "b")
    assert fs.exists(tmp_path / "a" / "b")
    with pytest.raises(FileExistsError):
        fs.makedirs(tmp_path / "a" / "b")
    assert not fs.exists(tmp_path / "c")
    assert fs.local_mkdir_safe(f"{tmp_path}/x/y/") == f"{tmp_path}/x/y"
    assert fs.local_mkdir_safe(tmp_path / "x" / "y") == str(tmp_path / "x" / "y")
    with pytest.raises(InputError, match="makedirs takes URLs"):
        fs.local_mkdir_safe("memory://x")


def test_verify_copy_sees_each_difference(memory, tmp_path):
    put(memory, a_txt=b"one", sub__b_txt=b"two")
    path = Path(fs.copy_to_local(NAMED, tmp_path))
    assert fs.verify_copy(NAMED, path)
    (path / "a.txt").write_bytes(b"longer")
    assert not fs.verify_copy(NAMED, path)
    (path / "a.txt").write_bytes(b"one")
    (path / "more").mkdir()
    assert not fs.verify_copy(NAMED, path)
    (path / "more").rmdir()
    (path / "sub" / "b.txt").unlink()
    assert not fs.verify_copy(NAMED, path)
    assert not fs.verify_copy(NAMED, path / "a.txt")
    assert not fs.verify_copy(NAMED, tmp_path / "none")
    with pytest.raises(fs.SourceMissingError):
        fs.verify_copy(tmp_path / "none", path)


# ------------------------------------------------------------------------------------------------- links and oddities


def test_links_are_followed_but_not_in_circles(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(b"weights")
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").symlink_to("../blobs/1")
    fs.copy(model, tmp_path / "copy")
    assert not (tmp_path / "copy" / "weights.bin").is_symlink()
    assert tree(tmp_path / "copy") == {"weights.bin": b"weights"}
    (model / "self").symlink_to(".")
    with pytest.raises(InputError, match="link to a directory that it is in"):
        fs.copy(model, tmp_path / "copy2")
    (model / "self").unlink()
    (model / "dangling").symlink_to("nowhere")
    with pytest.raises(fs.SourceMissingError, match="dangling"):
        fs.copy(model, tmp_path / "copy2")
    (model / "dangling").unlink()
    os.mkfifo(model / "pipe")
    with pytest.raises(InputError, match="neither a file nor a directory"):
        fs.copy(model, tmp_path / "copy2")
    assert not (tmp_path / "copy2").exists()


def test_permission_bits_are_kept_between_local_places(tmp_path):
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    fs.copy(tmp_path / "run.sh", tmp_path / "copy.sh")
    assert (tmp_path / "copy.sh").stat().st_mode & 0o777 == 0o755


def test_is_non_local():
    assert all(
        map(fs.is_non_local, ["hdfs://a/b", "s3://b", "gs://b/k", "zip://a::s3://b/c.zip", "simplecache::s3://b"])
    )
    assert not any(map(fs.is_non_local, ["/a", "a/b", "file:///a", "", "org/model", "a::b", "C:\\x"]))


def test_what_stores_tell():
    digest = "900150983cd24fb0d6963f7d28e17f72"
    md5 = Checksum("md5", digest)
    assert checksum_of(("abfs",), {"content_settings": {"content_md5": bytearray.fromhex(digest)}}) == md5
    assert checksum_of(("gs", "gcs"), {"md5Hash": "not base64!"}) is None
    assert checksum_of(("s3", "s3a"), {"name": "bucket--use1-az4--x-s3/k", "ETag": f'"{digest}"'}) is None
    assert checksum_of(("http", "https"), {"ETag": f'"{digest}"'}) is None
    assert checksum_of(("hf",), {"lfs": {"sha256": "AB" * 32}}) == Checksum("sha256", "ab" * 32)
    assert checksum_of(("memory",), {"name": "x", "size": 1}) is None
    assert version_of({"mtime": 3, "ETag": '"x"'}) == "ETag=x"
    assert version_of({"mtime": 3}) == "mtime=3"


def test_a_fingerprint_tells_names_sizes_versions_and_kind(tmp_path):
    (tmp_path / "a").write_text("x")
    one = LocalSource(str(tmp_path)).inventory()
    assert one.fingerprint() == LocalSource(str(tmp_path)).inventory().fingerprint()
    prints = {one.fingerprint(), Inventory("", True).fingerprint(), Inventory("", False).fingerprint()}
    os.utime(tmp_path / "a", ns=(1, 1))
    prints.add(LocalSource(str(tmp_path)).inventory().fingerprint())
    (tmp_path / "d").mkdir()
    prints.add(LocalSource(str(tmp_path)).inventory().fingerprint())
    assert len(prints) == 5
