"""Where the plugin looks for runs: directories that people write into settings, and files of other tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from probe.errors import InputError
from probe.jupyter.beside import Beside
from probe.jupyter.reading import Reading
from probe.jupyter.roots import Roots
from probe.jupyter.searching import Search
from tests.sample_run import sample_rows, write_run


def test_2_a_directory_that_is_none_leaves_the_others(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    given = [str(tmp_path), "~nobody-of-that-name/runs", "mine", "\0", "", " ", str(tmp_path / "mine"), "nowhere"]
    roots = Roots(given)
    assert roots.places == [tmp_path, tmp_path / "mine", tmp_path / "nowhere"]  # below the server's, not anywhere else
    assert roots.unusable == ["~nobody-of-that-name/runs", "\0"]
    run = write_run(tmp_path / "mine" / "run", sample_rows(1, 1))
    assert Search(roots).runs() == [run]
    for none in ([], ["~nobody-of-that-name/runs", str(tmp_path)]):
        with pytest.raises(InputError, match="expected a directory first"):
            Roots(none)


def test_2_a_run_json_of_another_tool_is_no_run_and_a_torn_one_is(tmp_path: Path):
    run = write_run(tmp_path / "ours", sample_rows(1, 1))
    others = {
        "theirs": '{"name": "of another tool", "steps": 3}',
        "versioned": '{"schema_version": 2, "steps": 3}',
        "text": '{"schema_version": "2.0", "project": "a"}',
        "list": "[1]",
        "torn": '{"sche',
        "newer": '{"schema_version": 99, "project": ["a new shape"]}',
    }
    for name, content in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    search = Search(Roots([tmp_path]))
    assert sorted(search.runs()) == [tmp_path / "newer", run, tmp_path / "torn"]
    reading = Reading([str(tmp_path)])
    with pytest.raises(InputError, match=r"theirs/run\.json wasn't written by probe: right-click it"):
        reading.panel("theirs")
    # It may become one, and the other way round.
    (tmp_path / "theirs" / "run.json").write_text((run / "run.json").read_text())
    assert sorted(search.runs()) == [tmp_path / "newer", run, tmp_path / "theirs", tmp_path / "torn"]


@pytest.mark.slow
@pytest.mark.parametrize("while_it", ["begins", "answers"])
def test_2_directories_that_come_while_the_process_begins_are_known_to_it(
    tmp_path: Path, while_it: str, monkeypatch: pytest.MonkeyPatch
):
    first, second = tmp_path / "first", tmp_path / "second"
    write_run(first / "a", sample_rows(1, 1))
    write_run(second / "b", sample_rows(1, 1))

    bad = ["~nobody-of-that-name/runs", str(tmp_path / "nowhere"), "\0"]

    async def ask(beside: Beside, missing: Sequence[str] = ()) -> list[str]:
        async with beside.ask({"op": "runs"}) as (status, pieces):
            assert status == 200
            told: dict[str, Any] = json.loads(b"".join([one async for one in pieces]))
            assert sorted(told["missing"]) == sorted(missing)
            return sorted(Path(one["directory"]).name for one in told["runs"])

    begun: list[asyncio.subprocess.Process] = []
    begin = asyncio.create_subprocess_exec

    async def begins(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        begun.append(await begin(*arguments, **options))
        return begun[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begins)

    async def both() -> None:
        beside = Beside([str(first)], idle_s=60)
        try:
            asked = asyncio.create_task(ask(beside))
            await asyncio.sleep(0.05)  # the process is on its way; it takes ten times as long
            while while_it == "answers" and beside.pid is None:  # noqa: ASYNC110  (it tells nobody)
                await asyncio.sleep(0)
            beside.set_roots([str(first), str(second)])
            assert await asked in (["a"], ["a", "b"])  # it may have been answered before
            assert await ask(beside) == ["a", "b"]
            beside.set_roots([str(first), *bad, str(second)])
            assert await ask(beside, bad) == ["a", "b"]
        finally:
            beside.stop()
            for one in begun:  # each ends by itself, also the one that knew too little
                await asyncio.wait_for(one.wait(), 60)

    asyncio.run(both())
