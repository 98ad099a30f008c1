"""Whether what advice promised came, and limits that CI checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.analysis.advice import advise
from probe.analysis.limits import Limit
from probe.cli import main
from probe.errors import InputError, UnknownNameError
from probe.records import GIB
from tests.analysis.planted_batches import Planted, planted

CONFIG = {"trainer": {"balance_batch": False}, "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 8192}}}
DONE = CONFIG | {"trainer": {"balance_batch": True}}


def made(path: Path, **told: Any) -> Any:
    return planted(path, Planted(**{"rows": 64, "steps": 5, "ranks": 2, "balanced": False, "config": CONFIG} | told))


def test_4_compare_says_that_a_promise_held_and_that_one_did_not(tmp_path: Path) -> None:
    with (
        made(tmp_path / "a") as a,
        made(tmp_path / "b", balanced=True, config=DONE) as b,
        made(tmp_path / "c", config=DONE) as c,
    ):
        (one,) = [each for each in advise(a).suggestions if each.kind == "balance"]
        assert one.values == {"trainer.balance_batch": True}
        kept, broken, nothing = probe.compare(a, b), probe.compare(a, c), probe.compare(b, a)
    numbers = kept.promises.set_index("number")
    told = numbers.loc["imbalance over ranks"]
    assert told["promised"] == one.what_if.number("rank_imbalance_ratio")[1]
    assert told["held"] is True
    assert numbers.loc["seconds of a step that are saved", "promised"] == one.gain_s[0]
    assert broken.promises.set_index("number").loc["imbalance over ranks", "held"] is False
    assert nothing.promises.empty
    text = " ".join(repr(broken).split())
    assert "trainer.balance_batch: False → True: not held. Promised: imbalance over ranks" in text
    assert "trainer.balance_batch: False → True: held. Promised: imbalance over ranks" in " ".join(repr(kept).split())


def test_5_compare_shows_the_waterfalls_as_data_text_html_and_figure(tmp_path: Path, capsys: Any) -> None:
    with made(tmp_path / "a") as a, made(tmp_path / "b", floor=30 * GIB) as b:
        found = probe.compare(a, b)
        paths = [a.path, b.path]
    of = found.difference["peak_memory"]
    assert of.change == pytest.approx(10 * GIB, rel=0.01)
    figure = found.figure("peak_memory", theme="dark")
    (trace,) = figure.data
    assert trace.measure[0] == "absolute"
    assert trace.measure[-1] == "total"
    assert sum(trace.y[1:-1]) == pytest.approx(trace.y[-1] - trace.y[0])
    for told in (" ".join(repr(found).split()), found._repr_html_()):
        assert "Peak memory: " in told
        assert "Rest" in told
    with pytest.raises(UnknownNameError, match="carried_tokens"):
        found.figure("carried_tokens")

    assert main(["compare", *paths, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (peak,) = [one for one in told["difference"]["waterfalls"] if one["measure"] == "peak_memory"]
    assert sum(one["value"] for one in peak["parts"]) == peak["change"] == of.change
    assert told["promises"] == []

    # 5, in CI: beyond a limit 1, within 0, what nobody knows and what is no limit 2.
    assert main(["check", *paths, "--max", "peak=+3%", "--max", "step=+5%"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("peak_memory is beyond its limit of +3 %: ")
    assert "Most of it: rest, +10.0 GiB." in said[0]
    assert said[1].startswith("step_time is within its limit of +5 %: it is the same in each of 4 steps")
    assert main(["check", *paths, "--max", "peak=+60%", "--min", "tokens=-1%", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kept"] is True
    assert [one["kept"] for one in told["limits"]] == [True, True]
    assert main(["check", paths[0], paths[1], "--max", f"peak={20 * GIB}"]) == 1
    assert main(["check", *paths, "--max", "peek=+3%"]) == 2
    assert "peak" in capsys.readouterr().err
    assert main(["check", *paths]) == 2
    assert main(["check", *paths, "--max", "peak"]) == 2


def test_5_a_number_that_one_run_lacks_is_no_pass(tmp_path: Path, capsys: Any) -> None:
    from probe.records import Scalar
    from tests.sample_run import clock, open_run

    rows = {0: [Scalar(rank=0, time_ns=clock(0), step=0, key="reward/mean", value=1.0, source="user")]}
    with open_run(tmp_path / "a", rows) as a, open_run(tmp_path / "b", {0: []}) as b:
        paths = [a.path, b.path]
    assert main(["check", *paths, "--min", "reward/mean=-2%"]) == 2
    assert "reward/mean can't be checked: the run doesn't have it." in capsys.readouterr().out
    assert main(["check", *reversed(paths), "--min", "reward/mean=0.5"]) == 0


@pytest.mark.parametrize("text", ["peak", "=+3%", "peak=3%", "peak=+3%%", "peak=big", "peak=+3GiB"])
def test_5_what_is_no_limit_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(InputError, match="expected NAME="):
        Limit.of(text, "max")
