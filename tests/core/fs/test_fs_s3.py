"""Copies from a real S3 server on loopback: many processes, one killed in the middle, a server that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pytest

from probe.core import fs
from probe.core.fs.cache import RECORD
from probe.core.fs.transfer import PARTIAL
from probe.errors import InputError
from tests.core.fs.stored_files import left, tree

moto_server = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

# botocore's HTTP sessions are closed by a finalizer of s3fs when the interpreter ends, not before.
pytestmark = [
    pytest.mark.slow,  # a server
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:Unclosed:ResourceWarning"),
]


def quiet_server():
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    return server, f"http://{host}:{port}"


@pytest.fixture(scope="module")
def endpoint():
    server, url = quiet_server()
    yield url
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch):
    """The file system behind s3://, with a bucket of the test's own; ``s3.bucket`` is its name."""
    yield from connected(endpoint, monkeypatch)


def connected(endpoint, monkeypatch):
    bucket = f"bucket-{uuid.uuid4().hex}"  # moto keeps one set of buckets for all its servers
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "test", "secret": "test", "endpoint_url": endpoint})
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    store = fsspec.filesystem("s3")
    store.mkdir(bucket)
    store.bucket = bucket
    yield store
    s3fs.S3FileSystem.close_session(store.loop, store.s3)
    s3fs.S3FileSystem.clear_instance_cache()


def stored(s3, key):
    """moto's own object, to damage it where no client could."""
    from moto.s3.models import s3_backends

    for account in s3_backends.values():
        for backend in account.values():
            if s3.bucket in backend.buckets:
                return backend.buckets[s3.bucket].keys[key]
    raise AssertionError("no such bucket")


def put(s3, files, prefix="model"):
    for name, content in files.items():
        s3.call_s3("put_object", Bucket=s3.bucket, Key=f"{prefix}/{name}", Body=content)
    return f"s3://{s3.bucket}/{prefix}"


FILES = {"config.json": b"{}", "empty": b"", "shards/1.bin": bytes(range(256)) * 4000, "shards/deep/2.bin": b"2"}


# ---------------------------------------------------------------------------------------------------- what it does


def test_a_folder_and_a_file(s3, tmp_path):
    url = put(s3, FILES)
    path = fs.copy_to_local(url, tmp_path)
    assert tree(path) == FILES
    assert fs.copy_to_local(f"{url}/", tmp_path) == path
    single = fs.copy_to_local(f"{url}/shards/1.bin", tmp_path)
    assert Path(single).read_bytes() == FILES["shards/1.bin"]
    assert fs.verify_copy(url, path)
    assert fs.exists(url)
    assert not fs.exists(f"{url}/none")
    whole = fs.copy_to_local(f"s3://{s3.bucket}", tmp_path)
    assert tree(whole) == {f"model/{name}": content for name, content in FILES.items()}


def test_a_folder_with_marker_objects(s3, tmp_path):
    url = put(s3, {"": b"", "sub/": b"", "sub/a.txt": b"one", "none/": b""})
    path = fs.copy_to_local(url, tmp_path)
    assert tree(path) == {"sub/a.txt": b"one"}
    assert (Path(path) / "none").is_dir()
    assert fs.verify_copy(url, path)
    put(s3, {"sub/": b"content"})
    with pytest.raises(InputError, match="can't be the name of a local file"):
        fs.copy_to_local(url, tmp_path)


def test_an_object_that_changed_is_copied_again(s3, tmp_path):
    url = put(s3, FILES)
    path = fs.copy_to_local(url, tmp_path)
    before = (Path(path) / "config.json").stat()
    assert fs.copy_to_local(url, tmp_path) == path
    assert (Path(path) / "config.json").stat() == before
    put(s3, {"config.json": b"[]"})
    assert not fs.verify_copy(url, path)  # the same names and sizes, another ETag
    assert tree(fs.copy_to_local(url, tmp_path)) == {**FILES, "config.json": b"[]"}
    s3.call_s3("delete_object", Bucket=s3.bucket, Key="model/empty")
    assert set(tree(fs.copy_to_local(url, tmp_path))) == FILES.keys() - {"empty"}


def test_upload_download_and_from_bucket_to_bucket(s3, tmp_path):
    for name, content in FILES.items():
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).write_bytes(content)
    url = f"s3://{s3.bucket}/checkpoints/step_1"
    assert fs.copy(tmp_path / "from", url)
    assert fs.verify_copy(tmp_path / "from", url)
    assert fs.copy(url, f"s3://{s3.bucket}/again")
    assert fs.copy(f"s3://{s3.bucket}/again", "memory://from-s3")
    assert fs.copy("memory://from-s3", tmp_path / "to")
    fsspec.filesystem("memory").rm("/from-s3", recursive=True)
    assert tree(tmp_path / "to") == FILES
    with pytest.raises(fs.TargetExistsError):
        fs.copy(tmp_path / "from", url)
    fs.makedirs(f"s3://{s3.bucket}/any/folder", exist_ok=True)


def test_an_object_in_parts_has_no_md5_and_is_copied(s3, tmp_path):
    key, content = "model/parts.bin", bytes(6 << 20)
    upload = s3.call_s3("create_multipart_upload", Bucket=s3.bucket, Key=key)["UploadId"]
    parts = []
    for number, body in ((1, content[: 5 << 20]), (2, content[5 << 20 :])):
        made = s3.call_s3("upload_part", Bucket=s3.bucket, Key=key, UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": made["ETag"]})
    s3.call_s3(
        "complete_multipart_upload", Bucket=s3.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
    )
    assert "-2" in s3.info(f"{s3.bucket}/{key}")["ETag"]
    assert Path(fs.copy_to_local(f"s3://{s3.bucket}/{key}", tmp_path)).read_bytes() == content


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_names_never_leave_the_cache(s3, tmp_path):
    for number, name in enumerate(["../escaped", "a/../../../escaped", "/absolute", "a//b", "./a"]):
        url = put(s3, {"fine.txt": b"fine", name: b"bad"}, prefix=f"evil{number}")
        with pytest.raises(InputError, match="can't be the name of a local file"):
            fs.copy_to_local(url, tmp_path / "cache")
    assert left(tmp_path) == []
    url = put(s3, {"both": b"file", "both/inside": b"file"}, prefix="both")
    with pytest.raises(InputError, match="'both' is both a file and a directory"):
        fs.copy_to_local(url, tmp_path / "cache")
    assert left(tmp_path) == []


def test_a_damaged_object_is_an_error_and_an_encrypted_one_is_not(s3, tmp_path):
    url = put(s3, FILES)
    damaged = stored(s3, "model/config.json")
    damaged.value = b"[]"  # its ETag stays that of "{}"
    damaged._etag = "99914b932bd37a50b983c5e7c90ae93b"
    with pytest.raises(fs.CopyError, match=r"config\.json.*Checksum"):  # botocore looks at S3's own CRC
        fs.copy_to_local(url, tmp_path)
    damaged.checksum_value = damaged.checksum_algorithm = None  # and of older objects, which have none, we see it
    with pytest.raises(fs.CopyError, match=r"config\.json.*came with md5 d751713988987e9331980363e24189ce"):
        fs.copy_to_local(url, tmp_path)
    assert left(tmp_path) == []
    damaged.encryption = "aws:kms"
    assert tree(fs.copy_to_local(url, tmp_path))["config.json"] == b"[]"


def test_what_is_missing_or_forbidden(s3, tmp_path):
    for url in (f"s3://{s3.bucket}/none", f"s3://{s3.bucket}/none/", "s3://no-such-bucket-here/a"):
        with pytest.raises(fs.SourceMissingError, match="there is nothing at 's3://"):
            fs.copy_to_local(url, tmp_path)
    assert left(tmp_path) == []


def test_a_server_that_stops_in_the_middle(tmp_path, monkeypatch):
    server, url = quiet_server()
    stopped = threading.Event()

    def stop():
        if not stopped.is_set():
            server.stop()
            stopped.set()

    for store in connected(url, monkeypatch):
        source = put(store, {f"{number}.bin": os.urandom(100_000) for number in range(24)})
        kept = fs.copy_to_local(source, tmp_path)
        before = tree(kept)
        real = store.get_file

        def stopping(path, target, real=real, **options):
            real(path, target, **options)
            stop()  # after the first file, while seven others are on their way

        with monkeypatch.context() as patch:
            patch.setattr(store, "get_file", stopping)
            assert fsspec.filesystem("s3") is store
            with pytest.raises(fs.CopyError, match="can't be reached"):
                fs.copy_to_local(source, tmp_path, always_recopy=True)
            with pytest.raises(fs.CopyError, match="can't be reached"):
                fs.copy_to_local(source, tmp_path / "other")
        assert tree(kept) == before
        assert left(Path(kept).parent) == sorted([".file.lock", RECORD, "model", *(f"model/{n}" for n in before)])
        assert left(tmp_path / "other") == []
        assert not [one for one in threading.enumerate() if one.name.startswith("probe-fs")]


# --------------------------------------------------------------------------------------------------- many processes

WORKER = """
import json, os, sys
from probe import hooks
from probe.core import fs

class Told(hooks.Listener):
    def fire(self, event):
        print(json.dumps({"reason": event.values["reason"], "path": event.values["path"]}), flush=True)

url, cache, slow = sys.argv[1:]
if slow == "slow":
    import time
    import probe.core.fs.transfer as transfer
    check = transfer.check
    def slow_check(source, entry, copied):
        check(source, entry, copied)
        os.write(1, b"COPYING\\n")  # in one piece: several threads come here
        time.sleep(600)
    transfer.check = slow_check
with hooks.subscribe(Told(), "fs.cached"):
    fs.copy_to_local(url, cache)
"""


@pytest.fixture
def ask(endpoint):
    """Starts processes that ask for a copy; none outlives the test."""
    environment = {
        **os.environ,
        "FSSPEC_S3_ENDPOINT_URL": endpoint,
        "FSSPEC_S3_KEY": "test",
        "FSSPEC_S3_SECRET": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    started = []

    def do(url, cache, slow="fast"):
        command = [sys.executable, "-c", WORKER, url, str(cache), slow]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(one)
        return one

    yield do
    for one in started:
        one.kill()
        with contextlib.suppress(ValueError):  # it has been heard out already
            one.communicate()


@pytest.mark.multiprocess
def test_many_ask_at_once_and_one_is_killed_in_the_middle(s3, ask, tmp_path):
    url = put(s3, FILES)
    killed = ask(url, tmp_path, "slow")
    assert killed.stdout.readline().strip() == "COPYING"  # it holds the lock, and has a part of the files
    others = [ask(url, tmp_path) for _ in range(4)]
    folder = tmp_path / fs.md5_encode(url)
    assert list(folder.glob(f"{PARTIAL}*/model/*"))
    assert not (folder / "model").exists()
    time.sleep(1)  # so that some of the others wait for the lock by now; nothing depends on it
    killed.send_signal(signal.SIGKILL)
    answers = [one.communicate(timeout=300) for one in others]
    assert [one.returncode for one in others] == [0, 0, 0, 0], answers
    told = [json.loads(out) for out, _ in answers]
    assert sorted(str(one["reason"]) for one in told) == ["None", "None", "None", "absent"]
    assert {one["path"] for one in told} == {str(folder / "model")}
    assert tree(folder / "model") == FILES
    assert sorted(path.name for path in folder.iterdir()) == [".file.lock", RECORD, "model"]


def test_threads_of_one_process_exclude_each_other(s3, tmp_path):
    url = put(s3, FILES)
    found, errors = [], []

    def work():
        try:
            found.append(tree(fs.copy_to_local(url, tmp_path)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert found == [FILES] * 4


def test_those_who_wait_survive_a_failure(s3, tmp_path, monkeypatch):
    """The first deletes its empty folder and the lock file in it, while the others wait for that very lock."""
    url = put(s3, FILES)
    real, first = s3.get_file, threading.Event()

    def failing_once(path, target, **options):
        if path.endswith("config.json") and not first.is_set():
            first.set()
            raise ConnectionResetError("once")
        real(path, target, **options)

    monkeypatch.setattr(s3, "get_file", failing_once)
    found, errors = [], []

    def work():
        try:
            found.append(tree(fs.copy_to_local(url, tmp_path)))
        except fs.CopyError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1
    assert found == [FILES] * 4
