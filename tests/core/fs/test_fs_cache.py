"""The cache of copies, on disk and in shared memory: whole or not at all, made again when the source changes."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from probe.core import fs
from probe.core.fs.cache import RECORD
from probe.core.fs.transfer import PARTIAL
from probe.errors import InputError, InputTypeError
from tests.core.fs.stored_files import NAMED, left, put, tree

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
    assert "shared memory, which is too small" in caplog.text
    assert [name for name in left(shm) if "huge" in name] == []


def test_without_shared_memory_it_stays_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fs, "SHM", tmp_path / "none")
    (tmp_path / "a.txt").write_text("a")
    assert fs.copy_to_local(tmp_path / "a.txt", use_shm=True) == str(tmp_path / "a.txt")
    assert "doesn't exist or can't be written to" in caplog.text
