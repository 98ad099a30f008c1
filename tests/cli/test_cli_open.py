"""``probe open``: who is let in, what is sent, and how it ends. The page itself is tested in tests/browser."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.cli import main
from probe.errors import InputError, RunError, RunNotFoundError
from probe.views.server import streaming
from probe.views.server.frames import BEAT, END, frame
from probe.views.server.hub import Channel, Hub
from probe.views.server.server import PageServer
from tests.live.live_run import append, roll
from tests.sample_run import process, sample_rows, write_run
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "arithmetic" / "grpo-small", sample_rows(2, 9))


@pytest.fixture
def server(run: Path) -> Iterator[PageServer]:
    with PageServer(run) as made:
        made.start()
        made.follow()
        yield made
    assert not [one.name for one in threading.enumerate() if one.name.startswith("probe")]


def ask(
    server: PageServer,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    host: str | None = None,
    **headers: str,
) -> http.client.HTTPResponse:
    """One request, as any program on this machine can make it. Underscores in header names stand for dashes."""
    port = server._listener.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    if host != "":
        connection.putheader("Host", host or f"127.0.0.1:{port}")
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    return connection.getresponse()


def path(server: PageServer, name: str = "") -> str:
    return f"/{server.token}/{name}"


def frames(answer: http.client.HTTPResponse) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
    """The frames of a stream as a page reads them, without beats."""
    end = time.monotonic() + PATIENCE_S
    while length := answer.read(4):
        assert time.monotonic() < end, "nothing comes"
        head = json.loads(answer.read(struct.unpack("<I", length)[0]))
        buffers = [answer.read(size) for size in head["sizes"]]
        if head["kind"] != "beat":
            yield head, buffers


# ------------------------------------------------------------------------------------------------ who is let in


def test_a_page_gets_its_files_and_a_strict_policy(server: PageServer) -> None:
    page = ask(server, path(server))
    assert page.status == 200
    assert b'<script type="module" src="page.js">' in page.read()
    assert page.headers["Content-Type"].startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in page.headers
    for name, kind in (
        ("page.js", "javascript"),
        ("panel.js", "javascript"),
        ("panel.css", "css"),
        ("icon.svg", "svg"),
    ):
        answer = ask(server, path(server, name), Accept_Encoding="gzip")
        assert (answer.status, kind in answer.headers["Content-Type"]) == (200, True)
        assert gzip.decompress(answer.read()) == ask(server, path(server, name)).read()


def test_the_panel_is_that_of_the_notebook(server: PageServer) -> None:
    from probe.views.panel import assets

    assert ask(server, path(server, "panel.js")).read().decode() == assets.script()
    assert ask(server, path(server, "panel.css")).read().decode() == assets.styles()


@pytest.mark.parametrize(
    "given", ["/", "/{wrong}/", "/{short}/", "/{wrong}/stream", "/stream", "//{token}/", "/é/", "*"]
)
def test_without_the_token_nobody_is_let_in(server: PageServer, given: str) -> None:
    wrong = ("a" if server.token[0] != "a" else "b") + server.token[1:]
    asked = given.format(wrong=wrong, short=server.token[:-1], token=f"x{server.token}")
    port = server._listener.server_address[1]
    with socket.create_connection(
        ("127.0.0.1", port), timeout=PATIENCE_S
    ) as raw:  # a client would not send some of these
        raw.sendall(f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 403")
    assert server.token.encode() not in answer


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.7:8000", "localhost@x"]
)
def test_another_host_is_refused(server: PageServer, host: str) -> None:
    for name in ("", "stream", "panel.js"):
        assert ask(server, path(server, name), host=host).status == 403


@pytest.mark.parametrize("host", ["localhost:9", "LOCALHOST", "[::1]:8000", "127.0.0.1"])
def test_this_machine_under_another_port_is_let_in(server: PageServer, host: str) -> None:
    """As ssh forwards it."""
    assert ask(server, path(server), host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
    ],
)
def test_another_origin_is_refused(server: PageServer, headers: dict[str, str]) -> None:
    for name, method in (("message", "POST"), ("stream", "GET"), ("panel.js", "GET"), ("", "GET")):
        body = b'{"v": 1, "t": "mark", "id": 1}' if method == "POST" else None
        answer = ask(server, path(server, name), method, body, Content_Type="application/json", **headers)
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_link_from_anywhere_leads_to_the_page(server: PageServer) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert ask(server, path(server), **link).status == 200
    assert ask(server, path(server, "panel.js"), **link).status == 403


def test_a_message_is_answered(server: PageServer) -> None:
    port = server._listener.server_address[1]
    own = {"Content_Type": "application/json", "Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    body = b'{"v": 1, "t": "mark", "id": 7, "ask": "ping"}'
    answer = ask(server, path(server, "message"), "POST", body, **own)
    assert json.loads(answer.read()) == {"v": 1, "t": "a", "id": 7}
    assert json.loads(ask(server, path(server, "message"), "POST", b"[1]", **own).read()) == {}


@pytest.mark.parametrize(
    ("name", "method", "body", "headers", "status"),
    [
        ("message", "POST", b"{", {"Content_Type": "application/json"}, 400),
        ("message", "POST", b"[" * 60_000, {"Content_Type": "application/json"}, 400),
        ("message", "POST", b"{}", {"Content_Type": "text/plain"}, 415),
        ("message", "POST", None, {"Content_Type": "application/json"}, 411),
        ("message", "POST", None, {"Content_Type": "application/json", "Content_Length": "99999999999999"}, 413),
        ("message", "POST", None, {"Content_Type": "application/json", "Content_Length": "-1"}, 411),
        ("stream", "POST", b"{}", {"Content_Type": "application/json"}, 404),
        ("message", "GET", None, {}, 404),
        ("../../etc/passwd", "GET", None, {}, 404),
        ("nothing", "GET", None, {}, 404),
        ("", "OPTIONS", None, {}, 501),
        ("", "DELETE", None, {}, 501),
    ],
)
def test_what_makes_no_sense_is_refused(server, name, method, body, headers, status) -> None:
    answer = ask(server, path(server, name), method, body, **headers)
    assert answer.status == status
    assert answer.headers["Content-Security-Policy"]
    assert server.token not in answer.read().decode()


def test_the_page_lies_in_a_directory(server: PageServer) -> None:
    answer = ask(server, f"/{server.token}")
    assert (answer.status, answer.headers["Location"]) == (308, path(server))
    assert ask(server, f"/x{server.token}").status == 403


# ------------------------------------------------------------------------------------------------- what is sent


def test_a_stream_begins_with_everything_and_goes_on(server: PageServer, run: Path) -> None:
    stream = frames(ask(server, path(server, "stream")))
    hello, buffers = next(stream)
    assert hello["kind"] == "hello"
    assert hello["config"]["run"]["project"] == "arithmetic"
    assert hello["config"]["run"]["world_size"] == 2
    assert hello["head"]["t"] == "k"
    assert hello["head"]["state"]["step"] == 8
    assert sum(map(len, buffers)) > 1000
    append(run, [row for row in sample_rows(2, 10)[0] if row.step == 9])
    head = next(one["head"] for one, _ in stream if one["head"].get("state", {}).get("step") == 9)
    assert head["seq"] > hello["head"]["seq"]


def test_who_comes_again_keeps_what_it_has(server: PageServer) -> None:
    stream = frames(ask(server, path(server, "stream?again")))
    hello, _ = next(stream)
    assert hello["head"] is None
    message, buffers = next(stream)
    assert (message["head"]["t"], len(buffers)) == ("k", len(message["head"]["tables"]))
    assert message["head"]["state"]["step"] == 8


def test_several_pages_get_the_same(server: PageServer, run: Path) -> None:
    streams = [frames(ask(server, path(server, "stream"))) for _ in range(3)]
    first = [next(one)[0]["head"]["seq"] for one in streams]
    append(run, [row for row in sample_rows(2, 10)[0] if row.step == 9])
    told = []
    for stream in streams:  # after what the last of them began with
        told.append(next(one["head"] for one, _ in stream if one["head"]["seq"] > max(first)))
    assert told[0] == told[1] == told[2]


def test_a_notebook_in_the_same_process_has_a_panel_of_its_own(server: PageServer, run: Path) -> None:
    from probe.views.panel.panel import panel

    with panel(str(run)) as other:
        assert other is not server.panel
        repr(other)
    assert server.panel.pump.running


def test_too_many_pages_are_told_so(server: PageServer) -> None:
    server.panel.hub.most = 1
    first = frames(ask(server, path(server, "stream")))
    next(first)
    assert ask(server, path(server, "stream")).status == 429


def test_a_page_that_has_gone_is_forgotten(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BEAT_S", 0.05)
    answer = ask(server, path(server, "stream"))
    next(frames(answer))
    assert len(server.panel.hub) == 1
    answer.close()
    until(lambda: len(server.panel.hub), lambda pages: pages == 0)


def test_pages_hear_the_end_and_how_the_run_ended(run: Path) -> None:
    with PageServer(run) as server:
        server.start()
        server.follow()
        stream = frames(ask(server, path(server, "stream")))
        next(stream)
        roll(run)
        closing = threading.Thread(target=server.close)
        closing.start()
        told = list(stream)
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
        server.close()  # once more does nothing
    assert told[-1][0]["kind"] == "end"
    states = [one["head"]["state"] for one, _ in told[:-1]]
    assert states[-1]["live"] is False
    with pytest.raises(OSError):  # noqa: PT011  (refused or reset, as the system says it)
        ask(server, path(server))


def test_a_page_may_come_before_the_run_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BEAT_S", 0.05)
    with PageServer(run) as server:
        server.start()
        answer = ask(server, path(server, "stream"))
        assert answer.read(len(BEAT)) == BEAT
        server.follow()
        hello, _ = next(frames(answer))
        assert hello["head"]["state"]["step"] == 8


def test_a_run_without_rows_is_shown_once_it_has_some(tmp_path: Path) -> None:
    run = write_run(tmp_path / "empty", {})
    with PageServer(run) as server:
        server.start()
        server.follow()
        stream = frames(ask(server, path(server, "stream")))
        hello, _ = next(stream)
        assert hello["head"] is None
        append(run, [process(0, 1), *sample_rows(1, 1)[0]])
        assert any(one["head"].get("state", {}).get("step") == 7 for one, _ in stream)


# ------------------------------------------------------------------------------------------------- the channel


def test_a_page_that_does_not_read_holds_nobody_up() -> None:
    hub, slow, quick = Hub(), Channel(most_bytes=100), Channel()
    assert hub.add(slow)
    assert hub.add(quick)
    for seq in range(20):
        hub.send({"seq": seq}, [b"x" * 30])
    assert slow.behind
    assert not quick.behind
    got = [quick.next_frame(0) for _ in range(20)]
    assert got == [frame("message", [b"x" * 30], head={"seq": seq}) for seq in range(20)]
    waiting = 0
    while slow.next_frame(0) is not None:
        waiting += 1
    assert waiting <= 1
    hub.end()
    assert slow.next_frame(0) == END
    assert slow.over
    assert not hub.add(Channel())


def test_what_waits_is_given_before_the_end() -> None:
    channel = Channel()
    channel.enqueue(b"a")
    channel.close(b"z")
    channel.enqueue(b"too late")
    assert [channel.next_frame(0), channel.next_frame(0), channel.next_frame(0)] == [b"a", b"z", None]


# ------------------------------------------------------------------------------------------------- the command


def opened(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """``probe open`` in a process, without a window to show a browser in unless a test says so."""
    environment = {**os.environ, **variables}
    for name in {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} - set(variables):
        environment.pop(name, None)
    command = [sys.executable, "-m", "probe", "open", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_prints_the_url_and_ends_with_ctrl_c(run: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\nprintf "%s" "$1" > {tmp_path}/told.part && mv {tmp_path}/told.part {tmp_path}/told\n'
    )
    browser.chmod(0o755)
    with ended(opened(str(run), BROWSER=str(browser))) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        host, port, token = url.removeprefix("http://").replace("/", ":").split(":")[:3]
        assert (host, len(token) >= 40) == ("127.0.0.1", True)
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        connection.request("GET", f"/{token}/")
        assert connection.getresponse().status == 200
        until((tmp_path / "told").exists)
        assert (tmp_path / "told").read_text() == url
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert out == ""
    assert "arithmetic / grpo-small is shown until Ctrl-C" in err
    assert err.splitlines()[-1] == "probe open: interrupted"
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_command_tells_programs_and_ends_in_order(run: Path) -> None:
    with ended(opened(str(run.parent), "--json", "--no-browser", BROWSER="/nonexistent")) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["run"] == str(run)
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(told["url"].split(":")[2].split("/")[0]), timeout=PATIENCE_S
        )
        connection.request("GET", "/" + told["url"].split("/", 3)[3] + "stream")
        stream = frames(connection.getresponse())
        assert next(stream)[0]["command"] == f"probe open {run}"
        process.send_signal(signal.SIGTERM)
        assert [one["kind"] for one, _ in stream][-1] == "end"
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "holds 1 run" in err  # the directory above was given
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["--port", "99999"], ["--port", "-1"], ["--port", "x"], ["--no-such-option"], []]
)
def test_misuse_of_open_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = [str(tmp_path)] if arguments else []
    with pytest.raises(SystemExit) as wrong:
        main(["open", *run, *arguments])
    assert wrong.value.code == 2
    assert "usage: probe" in capsys.readouterr().err


def test_no_run_is_misuse_and_a_taken_port_a_failure(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["open", str(tmp_path / "nowhere"), "--no-browser"]) == 2
    (tmp_path / "none").mkdir()
    assert main(["open", str(tmp_path / "none"), "--no-browser"]) == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["open", str(run), "--no-browser", "--port", str(port)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"probe open: port {port}: can't listen on it" in said.err


def test_a_server_says_what_it_can_not_use(tmp_path: Path, run: Path) -> None:
    with pytest.raises(RunNotFoundError):
        PageServer(tmp_path / "nowhere")
    with pytest.raises(RunError, match="isn't a run"):
        PageServer(tmp_path)
    for port in (-1, 2**16, "80"):
        with pytest.raises(InputError, match="expected 0 to 65535"):
            PageServer(run, port=port)  # type: ignore[arg-type]  # on purpose
    PageServer(run).close()  # one that never began
