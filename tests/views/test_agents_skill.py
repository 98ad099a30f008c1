"""The skill file of ``probe mcp``: every call and every query in it works on a real run, by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from probe.analysis.verdict.finding import KINDS
from probe.cli import main
from probe.cli import mcp as command
from probe.records import Scalar
from probe.runs.lines import encode
from probe.views.agents import answers
from probe.views.agents.marking import KEY
from probe.views.agents.skill import skill
from tests.analysis.planted_batches import Planted, planted

CONFIG = {"trainer": {"balance_batch": False}, "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 8192}}}

CALLS = [json.loads(one) for one in re.findall(r"```json\n(.*?)```", skill(), re.DOTALL)]
QUERIES = [re.sub(r"\s+", " ", one).strip() for one in re.findall(r"```sql\n(.*?)```", skill(), re.DOTALL)]


def test_8_it_has_the_form_of_a_skill_file() -> None:
    head, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", skill(), re.DOTALL).groups()  # type: ignore[union-attr]
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert fields.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", fields["name"])
    assert len(fields["description"]) <= 1024
    assert len(skill().splitlines()) < 120
    assert body.startswith("\n# ")


def test_8_what_it_says_of_bounds_and_words_is_so() -> None:
    assert f"at most {command.BYTES:,} bytes" in skill()
    assert f"at most {answers.ROWS} rows unless you set `limit` ({answers.MOST_ROWS:,} at the most)" in skill()
    assert f"Text under `{KEY}`" in skill()
    assert "`kind` is `withheld`" in skill()
    assert "withheld" in KINDS


def test_8_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--skill"]) == 0
    assert capsys.readouterr().out == skill()


def test_8_its_tools_calls_and_queries_are_those_of_the_server(tmp_path: Path) -> None:
    made = {"rows": 64, "steps": 4, "ranks": 2}
    for name, told in (("before", {"balanced": False, "config": CONFIG}), ("after", {})):
        planted(tmp_path / "p" / name, Planted(**made, **told)).close()
        with (tmp_path / "p" / name / "rank-00000.jsonl").open("ab") as file:
            file.write(encode(Scalar(key="reward", value=0.5, step=1, rank=0, process="rank-00000")))
    paths = {"RUN": str(tmp_path / "p" / "before"), "OTHER": str(tmp_path / "p" / "after")}

    async def asked() -> None:
        args = ["-m", "probe", "mcp", str(tmp_path), "--bytes", "200000", "--seconds", "300"]
        async with Client(StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))) as client:
            # As an agent finds it.
            (resource,) = (await client.list_resources()).resources
            (content,) = (await client.read_resource(resource.uri)).contents
            assert content.text == skill()
            assert str(resource.uri) in (client.instructions or "")
            assert KEY in (client.instructions or "")

            # The table of tools is the server's.
            table = re.findall(r"^\| `(\w+)` \|(.*?)\| .* \|$", skill(), re.MULTILINE)
            named = {name: set(re.findall(r"`(\w+)`", arguments)) for name, arguments in table}
            tools = (await client.list_tools()).tools
            assert named == {one.name: set(one.input_schema["properties"]) for one in tools}
            assert {one["tool"] for one in CALLS} == set(named)

            async def ask(tool: str, arguments: dict[str, Any]) -> Any:
                result = await client.call_tool(tool, arguments)
                (block,) = result.content
                assert not result.is_error, block.text
                return json.loads(block.text)

            told = {}
            for call in CALLS:
                arguments = {key: paths.get(str(one), one) for key, one in call["arguments"].items()}
                told[call["tool"]] = await ask(call["tool"], arguments)
            for query in QUERIES:
                assert (await ask("sql", {"run": paths["RUN"], "query": query}))["rows"] != [], query

            # What it says of the answers: where the first finding's evidence is, and the words that it names.
            first = told["findings"]["findings"][0]
            assert {"sentence", "cost", "where", "since", "change"} <= set(first)
            assert (await ask("sql", {"run": paths["RUN"], "query": first["evidence_sql"]}))["rows"] != []
            assert {paths["RUN"], paths["OTHER"]} == {one["run"] for one in told["list_runs"]["runs"]}
            assert {"promises", "difference"} <= set(told["compare"])
            assert {"confidence", "gains"} <= set(told["advise"]["suggestions"][0])
            cut = await ask("sql", {"query": "select range from range(500)", "limit": 2})
            assert cut["more_rows"] is True

    assert len(QUERIES) == 4
    asyncio.run(asked())
