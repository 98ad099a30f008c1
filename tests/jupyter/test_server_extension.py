"""The extension of the Jupyter server: a real server, asked over HTTP, and the process beside it that reads runs."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from probe.errors import RunNotFoundError
from tests.jupyter import plugin
from tests.ports import free_port
from tests.sample_run import sample_rows, write_run

pytestmark = pytest.mark.slow

TOKEN = "a-token"
NASTY = "<img src=x onerror=globalThis.__hurt=1>"

#: The process that reads runs doesn't end because a test takes long between two questions.
NEVER_IDLE = {"PROBE_JUPYTER_IDLE_S": "100000"}


class Server:
    """A server, asked as its page would."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.process = process

    def ask(self, path: str, body: Any = None, token: str | None = TOKEN, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self.url}/probe/api/{path}", data=data, headers=headers)
        if token is not None:
            asked.add_header("Authorization", f"token {token}")
        try:
            with urllib.request.urlopen(asked, timeout=120) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text

    def readers(self) -> list[psutil.Process]:
        """The processes that read runs for it."""
        children = psutil.Process(self.process.pid).children()
        return [one for one in children if "probe.jupyter.reading" in _command(one)]


def _command(one: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(one.cmdline())
    return ""


def await_that(holds: Callable[[], Any], seen: Callable[[], Any] = lambda: "nothing else is known") -> Any:
    """What ``holds`` gives, once that is true or isn't empty; where it never is, what was ``seen`` is said."""
    end = time.monotonic() + 300
    while not (found := holds()):
        assert time.monotonic() < end, f"{found!r} is all that came; {seen()}"
        time.sleep(0.1)
    return found


def one_reader(server: Server) -> psutil.Process:
    """The one process that reads runs for a server, which is asked until that is there: it may be ending just now."""

    def found() -> psutil.Process | None:
        assert server.ask("runs")[0] == 200
        living = [*filter(alive, server.readers())]
        return living[0] if len(living) == 1 else None

    reader: psutil.Process = await_that(found, server.readers)
    return reader


@contextlib.contextmanager
def serving(root: Path, place: Path, *more: str, **variables: str) -> Iterator[Server]:
    plugin.install(place)
    port = free_port()
    command = [
        sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={root}",
        "--ServerApp.base_url=/a/b/", *more,
    ]  # fmt: skip
    homes = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
    told = {name: str(place / below) for name, below in homes.items()}
    url = f"http://127.0.0.1:{port}/a/b"
    with (place / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=root, env={**os.environ, **told, **variables}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            await_that(lambda: _answers(url) or process.poll() is not None, (place / "server.log").read_text)
            yield Server(url, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(300)


def _answers(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
        urllib.request.urlopen(f"{url}/api", timeout=30).close()
        return True
    return False


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's directory with two runs, a link out of it, and a run that lies outside."""
    top = tmp_path_factory.mktemp("top")
    home = top / "home"
    write_run(home / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    write_run(home / "work" / "deep" / "er" / NASTY.replace("/", "-"), sample_rows(2, 4), project=NASTY)
    write_run(top / "elsewhere" / "secret", sample_rows(1, 3), project="secret")
    (home / "runs" / "linked").symlink_to(top / "elsewhere" / "secret")
    write_run(home / "runs" / "lured", sample_rows(1, 3), project="lured")
    (home / "runs" / "lured" / "parts").symlink_to(top / "elsewhere")
    write_run(home / ".hidden" / "run", sample_rows(1, 3), project="hidden")
    write_run(top / "further" / "far", sample_rows(1, 3), project="far")
    return home


@pytest.fixture(scope="module")
def untouched(root: Path) -> dict[str, str]:
    """What all files held before anybody looked."""
    return _content(root)


@pytest.fixture(scope="module")
def server(root: Path, untouched: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert untouched
    with serving(root, tmp_path_factory.mktemp("jupyter"), **NEVER_IDLE) as made:
        yield made


def at(run: str, **more: str) -> str:
    return urllib.parse.urlencode({"run": run, **more})


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
    host = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(host.hostname or "", host.port, timeout=60)
    connection.request(
        "GET", f"{host.path}/probe/api/stream?{at('runs/first')}", headers={"Authorization": f"token {TOKEN}"}
    )
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.headers["Cache-Control"] == "no-store"
    head: dict[str, Any] = {}
    while head.get("kind") != "hello":
        (length,) = struct.unpack("<I", reply.read(4))
        head = json.loads(reply.read(length))
        for size in head["sizes"]:
            reply.read(size)
    assert head["config"]["title"] == "shop / first"
    assert head["config"]["asks"] == "server"
    mark = {"v": 1, "t": "mark", "id": 7}
    assert server.ask(f"message?{at('runs/first')}", mark) == (200, {"v": 1, "t": "a", "id": 7})
    connection.close()


# --------------------------------------------------------------------------------------------------------- item 5: safe


#: Every address, with what is posted there, None where nothing is.
ASKED: dict[str, Any] = {
    "runs": None,
    f"stream?{at('runs/first')}": None,
    f"message?{at('runs/first')}": {"v": 1, "t": "mark", "id": 1},
    f"findings?{at('runs/first')}": None,
    "sql": {"run": "runs/first", "query": "select 1 as one"},
    f"compare?{at('runs/first', **{'with': 'runs/first'})}": None,
    "plotly.js": None,
    "roots": {"roots": []},
}


def test_5_every_handler_is_tried_below():
    from jupyter_server.serverapp import ServerApp

    from probe.jupyter.handlers import add_handlers

    added: list[Any] = []
    app = ServerApp()
    app.web_app = SimpleNamespace(settings={"base_url": "/"}, add_handlers=lambda _host, found: added.extend(found))
    add_handlers(app)
    assert {path.rpartition("/")[2] for path, _ in added} == {one.partition("?")[0] for one in ASKED}


@pytest.mark.parametrize("path", ASKED)
def test_5_nothing_is_answered_without_a_login(server: Server, path: str):
    assert server.ask(path, ASKED[path], token=None)[0] == 403


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
    for path in (f"stream?{at(name)}", f"findings?{at(name)}", f"compare?{with_it}"):
        status, told = server.ask(path)
        assert status == 404
        assert told["message"] == f"run: there is no run {name!r} below the directories that are shown"
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


# ------------------------------------------------------------------------------------------------- item 1: its process


@pytest.fixture(scope="module")
def idle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose process ends after a second without a question, and that has one more directory."""
    place, more = tmp_path_factory.mktemp("idle"), f"--Runs.roots={root.parent / 'elsewhere'}"
    with serving(root, place, more, PROBE_JUPYTER_IDLE_S="1") as made:
        assert made.readers() == []
        yield made


def home(place: Path) -> Path:
    """A server's directory of one's own, with a run."""
    write_run(place / "home" / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    return place / "home"


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two questions
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_1_the_process_begins_with_the_first_view_and_ends_with_the_last(idle: Server):
    await_that(lambda: not any(map(alive, idle.readers())), idle.readers)
    reader = one_reader(idle)
    await_that(lambda: not alive(reader), idle.readers)
    again = one_reader(idle)  # it begins again
    assert again.pid != reader.pid


def test_1_directories_of_the_configuration_and_of_the_settings_are_listed_too(idle: Server, root: Path):
    secret, far = str(root.parent / "elsewhere" / "secret"), str(root.parent / "further" / "far")
    assert secret in {one["run"] for one in idle.ask("runs")[1]["runs"]}
    stream, content = f"message?{at(secret)}", {"v": 1, "t": "mark", "id": 1}
    assert idle.ask(stream, content)[0] == 200
    assert idle.ask(f"message?{at(far)}", content)[0] == 404
    gone = str(root.parent / "nowhere")
    assert idle.ask("roots", {"roots": [str(root.parent / "further"), gone]}) == (200, {})
    status, told = idle.ask("runs")
    assert (status, told["missing"]) == (200, [gone])
    assert {secret, far} < {one["run"] for one in told["runs"]}
    assert idle.ask(f"message?{at(far)}", content)[0] == 200


def test_1_it_gives_its_memory_back_outlives_what_is_killed_and_ends_with_the_server(tmp_path: Path):
    """One server for all of it, as each start takes seconds."""
    root = home(tmp_path)
    with serving(root, tmp_path, **NEVER_IDLE) as server:
        # A look whose process is killed leaves the others.
        reader = one_reader(server)
        for one in await_that(lambda: reader.children()):
            one.kill()
        await_that(lambda: all(one["verdict"] for one in server.ask("runs")[1]["runs"]))

        # What looks at runs ends when it is done: nothing that reads rows was ever loaded into the process that stays.
        live = any(one["state"] in ("live", "silent") for one in server.ask("runs")[1]["runs"])
        await_that(lambda: len(reader.children(recursive=True)) == int(live))
        loaded = Path(f"/proc/{reader.pid}/maps").read_text()
        assert "duckdb" not in loaded
        assert "pandas" not in loaded

        # What looks at runs ends with a process that is killed, and that one is begun again.
        write_run(root / "runs" / "late", sample_rows(1, 3), project="late")
        looking = await_that(lambda: server.ask("runs") and reader.children())
        # None of them keeps an answer beside the rows of a run.
        kept = [Path(f"/proc/{one.pid}/environ").read_bytes() for one in (reader, *looking)]
        assert all(b"PROBE_KEEP_ANSWERS=0\0" in one for one in kept)
        reader.kill()
        await_that(lambda: not any(map(alive, looking)))
        assert await_that(lambda: server.ask("runs")[0] == 200)
        again = one_reader(server)
        assert again.pid != reader.pid

        # It ends with a server that is killed.
        server.process.kill()
        await_that(lambda: not alive(again), lambda: again)


def test_1_the_list_says_what_the_open_panel_of_a_run_shows(tmp_path: Path):
    from probe.jupyter.reading import Reading

    reading = Reading([str(home(tmp_path))])
    try:

        def listed() -> Any:
            found = {one["run"]: one["verdict"] for one in reading.runs()["runs"]}["runs/first"]
            return found if found and found["worst"] else None

        judged = await_that(listed, reading.runs)
        assert reading._judge is not None
        reading._judge.close()  # what it has found stays
        panel = reading.panel("runs/first")
        await_that(lambda: panel._verdict.told["findings"], lambda: panel._verdict.told)
        other = {**panel._verdict.told["findings"][0], "kind": "tuning", "sentence": "The panel says so."}
        panel._verdict.stop()  # what it has found stays
        panel._verdict.told = {**panel._verdict.told, "findings": [other]}
        shown = listed()
        assert shown["worst"] == other
        assert shown["alarms"] == 0
        assert shown["peak_bytes"] == judged["peak_bytes"]
        panel.pump.feed.attempt = 1  # of another attempt the panel says something else
        assert listed()["worst"] == judged["worst"]
    finally:
        reading.close()


def test_1_a_run_that_takes_long_to_be_read_is_not_let_go_meanwhile(tmp_path: Path):
    from probe.jupyter import reading as module

    reading = module.Reading([str(home(tmp_path))])
    try:
        panel = reading.panel("runs/first")
        assert panel.ready.wait(300)
        panel.ready.clear()  # as while it is still being read
        (path,) = reading._panels
        long_ago = time.monotonic() - 10 * module.KEPT_S
        reading._panels[path] = panel, long_ago
        reading.tidy()
        assert not panel.closed
        panel.ready.set()
        reading._panels[path] = panel, long_ago
        reading.tidy()
        assert panel.closed
    finally:
        reading.close()


def test_5_a_link_that_comes_later_hides_the_run_and_ends_its_panel(tmp_path: Path):
    from probe.jupyter.reading import Reading

    root, secret = home(tmp_path), tmp_path / "secret.jsonl"
    secret.write_text("{}")
    (root / "runs" / "first" / "parts").mkdir()
    reading = Reading([str(root)])
    try:
        assert [one["run"] for one in reading.runs()["runs"]] == ["runs/first"]
        panel = reading.panel("runs/first")
        (root / "runs" / "first" / "parts" / "memory-rank00007-0.parquet").symlink_to(secret)
        assert reading.runs()["runs"] == []
        assert panel.ready.wait(300)
        reading.tidy()
        assert panel.closed
    finally:
        reading.close()


def test_1_a_panel_whose_run_is_deleted_tells_its_pages(tmp_path: Path):
    from probe.jupyter.reading import Reading

    root = home(tmp_path)
    reading = Reading([str(root)])
    try:
        panel = reading.panel("runs/first")
        assert panel.ready.wait(300)
        shutil.rmtree(root / "runs" / "first")
        reading.tidy()
        assert panel.closed
        with pytest.raises(RunNotFoundError):
            reading.panel("runs/first")
    finally:
        reading.close()


def test_1_a_tab_and_the_list_need_neither_anywidget_nor_ipywidgets(tmp_path: Path):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.modules.update(dict.fromkeys(('anywidget', 'ipywidgets', 'IPython')))\n"
        "from probe.jupyter.reading import Reading\n"
        "reading = Reading([sys.argv[1]]); panel = reading.panel('runs/first')\n"
        "assert panel.ready.wait(300); print(panel.config()['title'], [one['run'] for one in reading.runs()['runs']])\n"
        "reading.close()"
    )
    done = subprocess.run([sys.executable, "-c", code, home(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "shop / first ['runs/first']\n", done.stderr


def test_1_a_server_that_nobody_asks_loads_nothing_that_reads():
    code = (
        "import sys, json, probe.jupyter.handlers; "
        "print(json.dumps(sorted({one.split('.')[0] for one in sys.modules}), default=str))"
    )
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert not loaded & {"torch", "numpy", "pandas", "duckdb", "pyarrow", "plotly", "msgspec"}
