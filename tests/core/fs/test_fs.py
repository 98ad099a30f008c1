"""Copies between local places and memory://: paths, whole folders, links, and what stores tell of their files."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.core import fs
from probe.core.fs.checksum import Checksum, checksum_of, version_of
from probe.core.fs.store import Inventory, LocalSource
from probe.errors import InputError, InputTypeError, MissingDependencyError
from tests.core.fs.stored_files import NAMED, left, put, tree

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
    with pytest.raises(InputError, match="link to a directory that contains it"):
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
