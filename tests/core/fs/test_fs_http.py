"""Copies over http://: files, pages of links, and errors that say what was wrong."""

from __future__ import annotations

import functools
import http.server
import threading
from pathlib import Path

import pytest

from probe.core import fs
from tests.core.fs.stored_files import left, tree


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
