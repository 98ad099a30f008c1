"""``probe mcp``: the SDK's own client asks a real run over standard input and output; answers are bounded."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from probe.errors import InputError, ProbeError, RunError
from probe.runs.views import texts
from probe.views.agents import answers
from probe.views.agents.bounds import bounded
from probe.views.agents.marking import CAUTION, KEY
from probe.views.agents.worker import TimeLimitError, Worker, reply
from tests.analysis.planted_batches import Planted, planted
from tests.sample_run import sample_rows, write_run

CONFIG = {"trainer": {"balance_batch": False}, "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 8192}}}

#: Would take hours.
ENDLESS = "select count(*) from range(1000000) a, range(1000000) b where (a.range * b.range) % 7 = 3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = {"rows": 64, "steps": 4, "ranks": 2}
    for name, told in (("before", {"balanced": False, "config": CONFIG}), ("after", {})):
        planted(tmp_path / "runs" / "p" / name, Planted(**made, **told)).close()
    write_run(tmp_path / "elsewhere", sample_rows(1, 2))
    return tmp_path / "runs"


def test_8_the_sdk_s_client_asks_a_real_run_over_stdio(root: Path) -> None:
    async def asked() -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "probe", "mcp", str(root), "--bytes", "20000", "--seconds", "300"],
            env=dict(os.environ),
        )
        async with Client(server) as client:
            tools = {one.name: one for one in (await client.list_tools()).tools}
            assert set(tools) == set(answers.TOOLS)
            assert all(one.annotations is not None and one.annotations.read_only_hint for one in tools.values())
            assert tools["sql"].input_schema["required"] == ["query"]
            said = set(re.findall(r"\w+", tools["sql"].description or ""))

            async def ask(tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                (content,) = result.content
                assert len(content.text.encode()) <= 20_000
                told = json.loads(content.text)
                assert told.pop("caution") == CAUTION
                if result.is_error:
                    (error,) = told.values()
                    return error[KEY] if isinstance(error, dict) else error
                return told

            listed = await ask("list_runs")
            assert sorted(Path(one["run"]).name for one in listed["runs"]) == ["after", "before"]
            found = await ask("findings", run="p/before")
            assert found["run"] == str(root / "p" / "before")
            assert {"kind", "sentence", "evidence_sql", "change"} <= set(found["findings"][0])
            advised = await ask("advise", run="p/before")
            assert {"trainer.balance_batch": True} in [one["values"] for one in advised["suggestions"]]
            tried = await ask("what_if", run="p/before", changes={"cap_tokens": 5000})
            assert {one["number"] for one in tried["numbers"]} >= {"micro_batches", "padding_tokens"}
            compared = await ask("compare", a="p/before", b="p/after")
            step = next(one for one in compared["difference"]["waterfalls"] if one["measure"] == "step_time")
            assert sum(one["value"] for one in step["parts"]) == step["change"]
            query = "select step, sum(tokens) as tokens from micro_batches group by 1 order by 1;"
            told = await ask("sql", run="p/after", query=query)
            assert told["columns"] == ["step", "tokens"]
            # Every table that a query finds, and every view that `run.sql` makes for one, is told of before it asks.
            here = "select distinct table_name from information_schema.tables where table_name not similar to '{}'"
            known = await ask("sql", run="p/after", query=here.format("(parts|tail)_.*"))
            tables = {one[0] for one in known["rows"]}
            assert {"rollouts", "token_fates", "failures"} <= tables
            assert tables | set(texts()) <= said
            assert [one[0] for one in told["rows"]] == [1, 2, 3, 4]

            # Bounded, read-only, nothing outside of the root; errors say what was expected.
            long = await ask("sql", run="p/after", query="select repeat('x', 500) as text from range(5000)", limit=1000)
            assert long["more_rows"] is True
            assert long["left_out"]["rows"] > 900
            assert long["rows"][0] == [{KEY: "x" * 500}]
            for query in ("copy memory to 'x.csv'", "select * from read_text('/etc/hostname')"):
                assert "file system operations are disabled" in await ask("sql", run="p/after", query=query)
            assert "query: " in await ask("sql", run="p/after", query="select * from nowhere")
            assert "there is nothing at" in await ask("findings", run="p/nowhere")
            assert "expected a run below" in await ask("findings", run=str(root.parent / "elsewhere"))
            assert "expected a run below" in await ask("findings", run="../elsewhere")
            assert "cap_tokens" in await ask("what_if", run="p/before", changes={"cap": 1})
            assert "limit: got 5000, expected 1 to 1000" in await ask("sql", query="select 1", limit=5000)
            (missing,) = (await client.call_tool("what_if", {"run": "p/before"})).content  # which the SDK says itself
            assert "changes" in missing.text

    asyncio.run(asked())
    assert not list(root.rglob("x.csv"))


def test_8_an_answer_that_takes_too_long_is_ended_and_the_next_one_comes(root: Path) -> None:
    worker = Worker(str(root), seconds=1.0, most_bytes=5000)
    try:
        with pytest.raises(TimeLimitError, match="sql: took longer than 1 s"):
            worker.ask("sql", {"query": ENDLESS, "run": "p/after"})
        worker.seconds = 300.0
        told = json.loads(worker.ask("sql", {"query": "describe memory", "run": "p/after", "limit": 3}))
        assert len(told["rows"]) == 3
        assert told["more_rows"] is True
        with pytest.raises(ProbeError, match="limit: got 0"):
            worker.ask("sql", {"query": "select 1", "limit": 0})
    finally:
        worker.close()
        worker.close()


def test_8_answers_are_cut_where_they_are_longest_and_say_what_is_missing() -> None:
    rows = [{"n": at, "text": "é" * 50} for at in range(500)]
    answer = {"run": "r", "rows": rows, "note": "y" * 5000, "few": [1, 2, 3]}
    for most in (1000, 2000, 20_000):
        told = bounded(answer, most)
        assert len(told.encode()) <= most
        read = json.loads(told)
        assert read["run"] == "r"
        assert read["few"] == [1, 2, 3]
        assert read["left_out"]["rows"] + len(read["rows"]) == 500
        if "note" in read["left_out"]:
            assert read["left_out"]["note"] + len(read["note"]) == 5000
    assert json.loads(bounded(answer, 10**6)) == answer
    assert "ask for less" in bounded({str(at): at for at in range(1000)}, 1000)


def test_8_runs_of_a_store_stay_below_its_root() -> None:
    assert answers._inside("s3://bucket/runs", "p/a") == "s3://bucket/runs/p/a"
    assert answers._inside("s3://bucket/runs", "s3://bucket/runs/p/a") == "s3://bucket/runs/p/a"
    for name in ("s3://bucket/other", "s3://bucket/runs2/a", "../other", "http://elsewhere/a"):
        with pytest.raises(InputError, match="expected a run below"):
            answers._inside("s3://bucket/runs", name)
    with pytest.raises(InputError, match="expected a run below"):
        answers._inside("runs", "s3://bucket/runs/a")


@pytest.mark.usefixtures("lenient")
def test_an_agent_is_told_of_a_fault_and_of_a_refusal() -> None:
    def refuses(root: str) -> str:
        raise InputError(f"run: there is none in {root}")

    def cannot(root: str) -> str:
        raise RunError(f"run: {root} can't be read")

    def fails(root: str) -> str:
        raise KeyError(root)

    def works(root: str) -> dict[str, str]:
        return {"run": root}

    here, there = multiprocessing.Pipe()
    with here, there:
        for tool in (refuses, cannot, fails, works):
            reply(there, tool.__name__, tool, "runs", {}, 1000)
        told = [here.recv() for _ in range(4)]
    assert [kind for kind, _ in told] == ["error", "error", "error", "answer"]
    assert [json.loads(text) for _, text in told] == [
        {"caution": CAUTION, "error": "run: there is none in runs"},
        {"caution": CAUTION, "error": {KEY: "run: runs can't be read"}},  # it may quote a file
        {"caution": CAUTION, "error": {KEY: "fails: KeyError: 'runs'"}},
        {"caution": CAUTION, "run": "runs"},
    ]
