"""The extension of the Jupyter server: a real server, asked over HTTP, and the process beside it that reads runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import websocket

from tests.jupyter.serving import NASTY, NEVER_IDLE, TOKEN, Server, at, await_that, one_reader, serving, streaming

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def untouched(root: Path) -> dict[str, str]:
    """What all files held before anybody looked."""
    return _content(root)


@pytest.fixture(scope="module")
def server(root: Path, untouched: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert untouched
    with serving(root, tmp_path_factory.mktemp("jupyter"), **NEVER_IDLE) as made:
        yield made


# ------------------------------------------------------------------------------------------------------ what it gives


def test_1_the_runs_below_the_server_s_root_are_listed_with_their_verdict(server: Server):
    def listed() -> Any:
        status, told = server.ask("runs")
        assert status == 200
        runs = {one["run"]: one for one in told["runs"]}
        # Something is wrong in the first run; perhaps not with the first look, as one may wait for its silence.
        judged = all(one["verdict"] for one in runs.values())
        return runs if judged and runs["runs/first"]["verdict"]["worst"] else None

    runs = await_that(listed, lambda: server.ask("runs"))
    assert set(runs) == {"runs/first", f"work/deep/er/{NASTY}"}
    first = runs["runs/first"]
    assert (first["project"], first["experiment"], first["step"]) == ("shop", "first", 5)
    assert first["verdict"]["worst"]["sentence"]
    assert first["error"] is None


def test_1_findings_and_rows_are_those_of_the_run(server: Server, root: Path):
    from probe.opened import Run

    with Run(root / "runs" / "first") as run:
        expected = [one.sentence for one in run.findings().everything]
        rows = int(run.sql("select count(*) as n from memory")["n"].iloc[0])
    status, found = server.ask(f"findings?{at('runs/first')}")
    assert status == 200
    assert [one["sentence"] for one in found] == expected
    status, told = server.ask("sql", {"run": "runs/first", "query": "select count(*) as n from memory"})
    assert (status, told) == (200, {"columns": ["n"], "rows": [{"n": rows}], "cut": False})
    status, told = server.ask("sql", {"run": "runs/first", "query": "select range as r from range(20000)"})
    assert len(told["rows"]) == 10_000
    assert told["cut"]


def test_1_two_runs_are_compared(server: Server, root: Path):
    from probe.analysis.run_comparison import compare_runs
    from probe.opened import Run

    with Run(root / "runs" / "first") as a, Run(root / "work" / "deep" / "er" / NASTY) as b:
        expected = compare_runs(a, b)
    status, told = server.ask(f"compare?{at('runs/first', **{'with': f'work/deep/er/{NASTY}'})}")
    assert status == 200
    assert len(told["metrics"]) == len(expected.metrics) > 0


def test_1_a_panel_comes_as_frames_and_answers(server: Server):
    with contextlib.closing(streaming(server, f"stream?{at('runs/first')}")) as stream:
        assert json.loads(stream.recv()) == {"status": 200}
        read, head = _Bytes(stream), dict[str, Any]()
        while head.get("kind") != "hello":
            (length,) = struct.unpack("<I", read(4))
            head = json.loads(read(length))
            for size in head["sizes"]:
                read(size)
        assert head["config"]["title"] == "shop / first"
        assert head["config"]["asks"] == "server"
        mark = {"v": 1, "t": "mark", "id": 7}
        assert server.ask(f"message?{at('runs/first')}", mark) == (200, {"v": 1, "t": "a", "id": 7})


class _Bytes:
    """What comes in pieces of any length, read in pieces of the wanted one."""

    def __init__(self, stream: websocket.WebSocket) -> None:
        self._stream = stream
        self._come = b""

    def __call__(self, size: int) -> bytes:
        while len(self._come) < size:
            piece = self._stream.recv()
            assert isinstance(piece, bytes)
            self._come += piece
        told, self._come = self._come[:size], self._come[size:]
        return told


def test_1_a_page_that_goes_lets_go_of_its_run(server: Server):
    from probe.views.server.hub import PAGES

    def shown() -> Any:
        view = streaming(server, f"stream?{at('runs/first')}")
        if json.loads(view.recv()) == {"status": 200}:
            return view
        view.close()
        return None

    with contextlib.ExitStack() as views:
        for _ in range(PAGES):  # a page of the test before may still be there
            views.enter_context(contextlib.closing(await_that(shown)))
        status, told = refusal(server, "runs/first")
        assert (status, "views show it already" in told) == (429, True)
    await_that(shown).close()


def refusal(server: Server, run: str) -> tuple[int, str]:
    """With which status and words the frames of a run are refused."""
    with contextlib.closing(streaming(server, f"stream?{at(run)}")) as stream:
        status = json.loads(stream.recv())["status"]
        message: str = json.loads(stream.recv())["message"]
        return status, message


def test_2_the_list_says_whether_the_directories_of_the_settings_are_known(root: Path, tmp_path: Path):
    with serving(root, tmp_path) as server:
        assert server.header("runs", "X-Probe-Settled") == "no"
        assert server.ask("roots", {"roots": "no list"})[0] == 400
        assert server.header("runs", "X-Probe-Settled") == "no"
        further = root.parent / "further"
        assert server.ask("roots", {"roots": [str(further)]}) == (200, {})
        assert server.header("runs", "X-Probe-Settled") == "yes"
        assert str(further / "far") in {one["run"] for one in server.ask("runs")[1]["runs"]}


# --------------------------------------------------------------------------------------------------------- item 5: safe


#: Every address, with what is posted there, None where nothing is.
ASKED: dict[str, Any] = {
    "runs": None,
    f"message?{at('runs/first')}": {"v": 1, "t": "mark", "id": 1},
    f"findings?{at('runs/first')}": None,
    "sql": {"run": "runs/first", "query": "select 1 as one"},
    f"compare?{at('runs/first', **{'with': 'runs/first'})}": None,
    "plotly.js": None,
    "memory": None,
    "roots": {"roots": []},
}


def test_5_every_handler_is_tried_below():
    from jupyter_server.serverapp import ServerApp

    from probe.jupyter.handlers import add_handlers

    added: list[Any] = []
    app = ServerApp()
    app.web_app = SimpleNamespace(settings={"base_url": "/"}, add_handlers=lambda _host, found: added.extend(found))
    add_handlers(app)
    assert {path.rpartition("/")[2] for path, _ in added} == {"stream", *(one.partition("?")[0] for one in ASKED)}


@pytest.mark.parametrize("path", ASKED)
def test_5_nothing_is_answered_without_a_login(server: Server, path: str):
    assert server.ask(path, ASKED[path], token=None)[0] == 403


def test_5_frames_come_neither_without_a_login_nor_to_a_page_of_another_site(server: Server):
    path, jar, token = f"stream?{at('runs/first')}", f"Cookie: {_login(server)}", f"Authorization: token {TOKEN}"
    assert server.ask(path, token=None)[0] == 403  # a page can't see why a WebSocket was refused, and asks so
    for header, origin in (([], None), (["Authorization: token another"], None), ([jar], "http://elsewhere.test")):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            streaming(server, path, header=header, origin=origin)
        assert refused.value.status_code == 403
    own = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(server.url))
    for header, origin in (([jar], own), ([token], None)):
        with contextlib.closing(streaming(server, path, header=header, origin=origin)) as stream:
            assert json.loads(stream.recv()) == {"status": 200}


def test_5_what_is_posted_needs_the_token_against_cross_site_requests(server: Server):
    # A browser that is logged in sends its cookie with a request of another site, too, and knows no XSRF token.
    jar = _login(server)
    xsrf = dict(one.split("=", 1) for one in jar.split("; "))["_xsrf"]
    for path, body in ASKED.items():
        if body is None:  # a page of another site can ask, and can't read what is answered: no origin is allowed
            continue
        assert server.ask(path, body, token=None, Cookie=jar)[0] == 403
        assert server.ask(path, body, token=None, Cookie=jar, **{"X-XSRFToken": xsrf})[0] == 200


def test_5_another_program_of_this_machine_learns_nothing_from_the_process_that_reads(server: Server):
    reader = one_reader(server)
    (port,) = [one.laddr.port for one in reader.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    for told in (b'{"op": "runs"}\n', b'{"op": "runs", "token": "a-token"}\n', b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 30) as asked:
            asked.sendall(told)
            assert asked.recv(1) == b""
    assert TOKEN.encode() not in Path(f"/proc/{reader.pid}/cmdline").read_bytes()


def _login(server: Server) -> str:
    """The cookies of a browser that has logged in with the token."""
    import http.cookiejar

    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    with contextlib.suppress(urllib.error.HTTPError):
        opener.open(f"{server.url}/login?token={TOKEN}", timeout=300).close()
    with contextlib.suppress(urllib.error.HTTPError):
        opener.open(f"{server.url}/api/status?token={TOKEN}", timeout=300).close()
    return "; ".join(f"{one.name}={one.value}" for one in jar)


@pytest.mark.parametrize(
    "name",
    ["../elsewhere/secret", "runs/linked", "runs/lured", "/etc", "runs/../../elsewhere/secret", "", "runs"],
)
def test_5_what_lies_outside_or_is_reached_by_a_link_is_refused_in_the_same_words(server: Server, name: str):
    with_it = at("runs/first", **{"with": name})
    said = f"run: there is no run {name!r} below the directories that are shown"
    for path in (f"findings?{at(name)}", f"compare?{with_it}"):
        status, told = server.ask(path)
        assert (status, told["message"]) == (404, said)
    assert refusal(server, name) == (404, said)
    assert server.ask("sql", {"run": name, "query": "select 1"})[0] == 404
    assert server.ask(f"message?{at(name)}", {"v": 1, "t": "mark", "id": 1})[0] == 404


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "copy (select 1) to 'out.csv'",
        "attach 'new.db'",
        "set enable_external_access=true",
    ],
)
def test_5_sql_reads_the_run_and_nothing_else(server: Server, root: Path, query: str):
    status, told = server.ask("sql", {"run": "runs/first", "query": query})
    assert status == 400
    assert told["message"]
    assert not list(root.rglob("out.csv"))
    assert not list(root.rglob("new.db"))


def test_5_looking_changes_nothing_in_a_run(server: Server, root: Path, untouched: dict[str, str]):
    await_that(lambda: all(one["verdict"] for one in server.ask("runs")[1]["runs"]))
    server.ask(f"findings?{at('runs/first')}")
    server.ask("sql", {"run": "runs/first", "query": "select * from memory"})
    wish = {"key": "k", "spec": {"table": "spans", "y": "duration"}}
    for asked in ({}, {"ask": "keyframe"}, {"ask": "history", "wanted": [wish]}, {"ask": "step", "step": 2}):
        assert server.ask(f"message?{at('runs/first')}", {"v": 1, "t": "mark", "id": 1, **asked})[0] == 200
    assert _content(root) == untouched  # and no file beside them: no kept answer, no index


def _content(root: Path) -> dict[str, str]:
    files = [one for one in sorted(root.rglob("*")) if one.is_file() and ".ipynb" not in str(one)]
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
