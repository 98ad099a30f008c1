"""A question that fails is answered with the error, and the next one is answered as ever."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from probe.errors import RunNotFoundError
from probe.jupyter import looking
from probe.jupyter.looking import Looking
from probe.jupyter.reading import Listener
from probe.opened import Run
from tests.sample_run import sample_rows, write_run

TOKEN = "a-token"


class Faulty:
    """Answers one question, and fails in each other way at another."""

    def findings(self, run: str) -> list[str]:
        if run == "gone":
            raise FileNotFoundError(run)
        if run == "unknown":
            raise RunNotFoundError("run: there is none")
        if run == "faulty":
            raise KeyError("column")
        return [run]


def asked(port: int, run: str) -> list[Any]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(json.dumps({"token": TOKEN, "op": "findings", "run": run}).encode() + b"\n")
        with connection.makefile("rb") as told:
            return [json.loads(part) for part in told.read().splitlines()]


@pytest.mark.usefixtures("lenient")
def test_a_question_that_fails_leaves_the_reader_as_it_is() -> None:
    faulty: Any = Faulty()
    with Listener(faulty, TOKEN) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            port = listener.server_address[1]
            assert asked(port, "faulty") == [{"status": 500}, {"message": "KeyError: 'column'"}]
            assert asked(port, "unknown") == [{"status": 404}, {"message": "run: there is none"}]
            assert asked(port, "gone") == []
            assert asked(port, "fine") == [{"status": 200}, ["fine"]]
        finally:
            listener.shutdown()
            thread.join()


@pytest.mark.usefixtures("lenient")
def test_a_run_whose_look_fails_is_said_to_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine, faulty = (write_run(tmp_path / name, sample_rows(1, 2)) for name in ("fine", "faulty"))
    missing = str(tmp_path / "missing")
    numbers = looking.numbers

    def fails(run: Run) -> dict[str, int | None]:
        if "faulty" in str(run.path):
            raise KeyError("column")
        return numbers(run)

    monkeypatch.setattr(looking, "numbers", fails)
    asks = Looking()
    found = asks.follow({str(faulty): 0, missing: 0, str(fine): 0})["found"]
    assert found[str(faulty)]["failed"] == "KeyError: 'column'"
    assert found[missing]["failed"].startswith("RunNotFoundError: ")
    assert found[str(fine)]["failed"] is None
    assert asks.ended(str(faulty))["found"]["failed"] == "KeyError: 'column'"
    assert asks.ended(str(fine))["found"]["failed"] is None
    asks.follow({})


def test_a_run_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert Looking().ended(str(tmp_path))["found"]["failed"].startswith("RunError: ")
