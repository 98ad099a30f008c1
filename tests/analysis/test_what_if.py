"""Recorded batches cut again: as they were, and under other settings."""

from __future__ import annotations

import io
import json
import math
import signal
import sys
from pathlib import Path

import pytest

from probe.analysis.what_if import answering, replayed, replayed_dealings, what_if
from probe.analysis.what_if.cutting import cut_ranks
from probe.analysis.what_if.numbers import Width, step_numbers
from probe.core.balancing.other_rules import prime_rl_first_fit
from probe.core.balancing.replay import COMPARED, PACKERS, Cut
from probe.errors import InputError, InputTypeError, UnknownNameError
from probe.opened import Run
from probe.records import MicroBatch
from tests.analysis.planted_batches import Planted, planted
from tests.sample_run import clock, open_run, sample_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with planted(tmp_path_factory.mktemp("planted") / "run", Planted(steps=6)) as opened:
        yield opened


@pytest.mark.parametrize("made", [Planted(steps=3), Planted(steps=3, packer="verl 0.7.1"), Planted(steps=3, cap=None)])
def test_1_replaying_the_recorded_configuration_gives_each_recorded_partition(tmp_path, made):
    with planted(tmp_path, made) as opened:
        found = replayed(opened)
        assert len(found) == 3 * 4 * 2
        assert found["same"].tolist() == [True] * len(found)
        assert set(found["packer"]) == {made.packer}


def test_1_rows_dealt_to_ranks_are_dealt_again(tmp_path):
    with planted(tmp_path, Planted(steps=3)) as opened:
        found = replayed_dealings(opened)
        assert found["same"].tolist() == [True] * 3
        assert found["step"].tolist() == [1, 2, 3]
        assert replayed_dealings(opened, [2])["step"].tolist() == [2]


@pytest.mark.slow
def test_1_each_partition_of_the_demo_is_made_again_from_the_calls_of_all_ranks(demo):
    with Run(demo) as opened:
        found = replayed(opened)
        assert set(found["phase"]) >= {"old_log_prob", "update"}
        assert found["same"].tolist() == [True] * len(found)
        answer = what_if(opened)
        assert unlike(answer) == set()


def test_1_where_ranks_agree_on_a_count_and_one_is_missing_it_says_that_it_cannot(tmp_path):
    with planted(tmp_path, Planted(steps=2)) as opened:
        path = opened.path
    (tmp_path / "rank-00003.jsonl").unlink()
    with type(opened)(path) as three:
        found = replayed(three)
        assert set(found["same"]) == {None}
        assert set(found["why"]) == {"The ranks agreed on the number of micro-batches, and 1 of them told of no call."}


def test_1_a_cut_whose_packer_nobody_told_is_not_replayed(tmp_path):
    with open_run(tmp_path, sample_rows(ranks=2, steps=3)) as opened:
        found = replayed(opened)
        assert len(found)
        assert set(found["why"]) == {"No packer was recorded."}
        with pytest.raises(
            InputError, match="packer: got None and the run recorded none; expected the one that it uses, one of"
        ):
            what_if(opened, cap_tokens=8192)
        answer = what_if(opened, cap_tokens=8192, packer="slime.dynamic_batch_size")
        assert not answer.compared
        assert answer.notes == ("The rule of slime.dynamic_batch_size is not compared with the package.",)


def unlike(answer):
    """Numbers that aren't as they were; those of models are beside what the same models say of what was cut."""
    frame = answer.frame
    before = frame["modelled"].where(frame["modelled"].notna(), frame["before"])
    return set(frame["number"][(before - frame["after"]).abs() > 0])


def test_2_the_recorded_configuration_gives_what_happened(run):
    answer = what_if(run)
    assert answer.steps == answer.wanted == 6
    assert unlike(answer) == set()
    assert answer.saved_s[("actor", "update_actor")][0] == 0
    (micro,) = answer.frame.query("number == 'micro_batches'")["before"]
    counted = run.sql("select avg(n) as n from (select step, rank, count(*) as n from micro_batches group by all)")[
        "n"
    ][0]
    assert micro == counted


def test_2_a_larger_cap_gives_fewer_and_the_numbers_go_with_it(run):
    small, now, large = what_if(run, [{"cap_tokens": cap} for cap in (4096, 8192, 16384)])
    assert small.number("micro_batches")[1] > now.number("micro_batches")[1] > large.number("micro_batches")[1]
    assert now.number("micro_batches")[0] == now.number("micro_batches")[1]
    for one in (small, now, large):
        assert one.number("over_cap")[1] == 0
        assert one.number("largest_tokens")[1] <= one.changes["cap_tokens"]
    value, reach = large.saved_s[("actor", "update_actor")]
    assert value > reach > 0
    peak = large.frame.query("number == 'predicted_peak_bytes'").iloc[0]
    assert peak["low"] < peak["after"] < peak["high"]
    assert peak["after"] > peak["before"]


def test_2_settings_that_a_step_knows_change_what_they_say(run):
    fixed = what_if(run, dynamic=False, rows_each=4)
    assert fixed.number("micro_batches")[1] == 2 * 128 / 4 / 2 / 4
    none = what_if(run, balance="none")
    mini = what_if(run, balance="mini_batch")
    assert none.number("rank_imbalance_ratio")[1] > 1.02 > mini.number("rank_imbalance_ratio")[1]
    assert mini.number("mini_batch_imbalance_ratio")[1] < mini.number("mini_batch_imbalance_ratio")[0]
    eight = what_if(run, dp_size=8)
    assert eight.number("micro_batches")[1] < eight.number("micro_batches")[0]
    grouped = what_if(run, group_size=4, cap_tokens=20_000)
    assert grouped.number("micro_batches")[1] > 0
    rounded = what_if(run, round_to=128)
    assert rounded.number("padding_tokens") == (0.0, pytest.approx(4 * 4 * 64, rel=0.3))
    loose = what_if(run, strict=False)
    assert loose.number("micro_batches")[1] <= loose.number("micro_batches")[0]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"sp_size": 2}, "sequence-parallel size"),
        ({"dp_size": 1}, "number of data-parallel ranks"),
        ({"dp_size": 8}, "number of data-parallel ranks"),
    ],
)
def test_2_with_other_ranks_neither_time_nor_memory_is_predicted(run, changes, what):
    """Sharded weights are the floor of a peak, and collectives take time: both go by the number of ranks."""
    other = what_if(run, changes)
    assert other.number("micro_batches")[1] > 0
    assert (other.saved_s, other.step_s) == ({}, None)
    assert not [name for name in other.frame["number"] if name.startswith("predicted_")]
    assert other.notes[-1] == f"Time and memory under another {what} aren't predicted: no run of it is known."


def test_2_with_as_many_ranks_as_there_were_both_are_predicted(run):
    for changes in ({"dp_size": 4}, {"sp_size": 1}):
        same = what_if(run, changes)
        assert unlike(same) == set()
        assert same.frame["number"].str.startswith("predicted_").sum() == 2
        assert not [one for one in same.notes if "predicted" in one]


_SLOWEST = """
select sum(slowest) / count(distinct step) as s from (
  select step, batch, max(took) as slowest from (
    select s.step, s.process, s.batch, sum(ends.device_duration_ns) / 1e9 as took
    from spans s join (select * from memory where edge = 'leave' and kind = 'micro_batch') ends
    on ends.process = s.process and ends.scope_id = s.scope group by all) group by all)"""


@pytest.mark.parametrize("made", [{}, {"gross": 0.04}, {"drift": 300 * 2**20}])
def test_2_what_is_told_as_recorded_was_measured(tmp_path, made):
    """Not what a model says of it: gross peaks are no model's."""
    with planted(tmp_path, Planted(steps=6, **made)) as opened:
        answer, larger = what_if(opened, [{}, {"cap_tokens": 16384}])
        peak = opened.sql("select max(peak) as peak from spans where kind = 'micro_batch'")["peak"][0]
        steps = opened.sql("select avg(step_time_s) as s from steps")["s"][0]
        slowest = opened.sql(_SLOWEST)["s"][0]
    assert answer.number("predicted_peak_bytes")[0] == peak
    assert answer.number("predicted_s")[0] == pytest.approx(slowest, rel=1e-12)
    assert answer.step_s[:2] == pytest.approx((steps, steps), rel=1e-12)
    told = answer.frame.set_index("number").loc["predicted_peak_bytes"]
    assert told["modelled"] == told["after"]
    if made.get("gross"):
        assert peak > told["high"]
    value, reach = larger.saved_s["actor", "update_actor"]
    assert value > reach > 0
    assert larger.step_s == pytest.approx((steps, steps - value, reach), rel=1e-9)
    assert f"Time of a step: {steps:,.4g} s → {steps - value:,.4g} ±" in repr(larger)


def test_2_what_was_not_measured_is_missing(tmp_path):
    with planted(tmp_path / "run", Planted(steps=6, rows=64)) as opened:
        path = Path(opened.path) / "rank-00003.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    (at, *_) = [at for at, one in enumerate(lines) if '"edge":"leave"' in one and '"kind":"micro_batch"' in one]
    path.write_text("".join(lines[:at] + lines[at + 1 :]))  # a micro-batch of step 1 never ended
    with Run(path.parent) as opened:
        answer, later = what_if(opened), what_if(opened, steps=[2, 3])
    assert math.isnan(answer.number("predicted_s")[0])
    assert answer.number("predicted_s")[1] > 0
    assert later.number("predicted_s")[0] > 0


def test_2_answers_for_several_phases_save_together_what_each_saves(run):
    one, two = what_if(run, cap_tokens=16384), what_if(run, cap_tokens=16384)
    two.frame["phase"] = "another"
    before, after, reach = answering.together([one, two]).step_s
    assert before == one.step_s[0]
    assert before - after == pytest.approx(2 * (before - one.step_s[1]), rel=1e-9)
    assert reach == pytest.approx(math.sqrt(2) * one.step_s[2], rel=1e-9)


@pytest.mark.parametrize("packer", sorted(set(PACKERS) - {"verl.equal_size", "seqlen_balancing.equal_size"}))
def test_2_each_packer_cuts_what_verl_cut_on_ranks_that_agreed(run, packer):
    answer = what_if(run, packer=packer, cap_tokens=8192, rows_each=4)
    assert answer.refused == {}
    assert answer.number("micro_batches")[1] > 0
    assert answer.compared is (packer in COMPARED)


def test_2_what_a_packer_does_to_a_batch_is_what_it_does_to_the_rows_of_all_ranks(run):
    """First-fit by hand over the rows of all ranks; each rank then has an equal share of the bins."""
    counts = []
    frame = run.micro_batches.sort_values(["step", "batch_id", "rank", "micro_batch"])
    for _, of_step in frame.groupby("step"):
        for _, here in of_step.groupby("batch_id"):
            rows = []
            for _, own in here.groupby("rank"):
                ordered = sorted(zip(own["indices"].explode(), own["lengths"].explode(), strict=True))
                rows += [int(length) for _, length in ordered]
            bins = prime_rl_first_fit(rows, 8192)
            counts.append(-(-len(bins) // 4))
    found = what_if(run, packer="prime_rl.first_fit").number("micro_batches")[1]
    assert found == sum(counts) / 6


def test_2_numbers_by_hand():
    # Two ranks, two rounds, cap 10: rank 0 has 4 + 6 | 3, rank 1 has 8 | 2 + 2 as one micro-batch.
    rounds = [[[[4], [6]], [[8]]], [[[3]], [[2, 2]]]]
    found = step_numbers(rounds, 5, Width(padded=True, round_to=4)).values
    assert found["micro_batches"] == 3
    assert found["over_cap"] == 2  # 6 and 8 above 5
    assert found["largest_tokens"] == 8
    assert found["rank_imbalance_ratio"] == 13 / 12.5
    assert found["mini_batch_imbalance_ratio"] == (10 + 4) / (9 + 3.5)
    # Rectangles: 4, 8 | 8 | 4 | 2 × 4.
    assert found["padding_tokens"] == (4 + 8 + 8 + 4 + 8) - 25
    assert found["waiting_ratio"] == 1 - (10 + 6) / (12 + 8)
    # After each micro-batch: 8 and 8 against 0, then 8.
    assert found["micro_batch_waiting_ratio"] == 1 - (10 + 6) / (8 + 8 + 8)
    assert step_numbers([[[[9]]]], None, Width(padded=True, fixed=16)).values["padding_tokens"] == 7
    assert math.isnan(step_numbers([], None, Width()).values["rank_imbalance_ratio"])


def test_2_packers_that_deal_out_what_they_made_give_every_rank_as_many():
    ranks = [[9, 3, 4], [2, 8, 6]]
    for packer in ("nemo_rl.dynamic_batching", "prime_rl.first_fit", "packing.first_fit_decreasing"):
        made = cut_ranks(ranks, Cut(packer=packer, lengths=[], cap_tokens=12))
        assert len({len(own) for own in made}) == 1
        assert sorted(one for own in made for part in own for one in part) == [2, 3, 4, 6, 8, 9]
    largest = cut_ranks(ranks, Cut(packer="trl.fixed_rows", lengths=[], rows_each=2), "largest_first")
    assert largest == [[[9, 3], [4]], [[2, 8], [6]]]
    assert cut_ranks([[5, 2]], Cut(packer="trl.packed.wrapped", lengths=[], cap_tokens=4)) == [[[4], [1, 2]]]


def test_2_of_a_large_run_the_last_steps_alone_are_read(run, monkeypatch):

    each = len(run.micro_batches) // 6
    monkeypatch.setattr(answering, "MICRO_BATCHES", 3 * each)
    assert 1 <= what_if(run).steps <= 3
    monkeypatch.setattr(answering, "MICRO_BATCHES", 1)
    assert what_if(run).steps == 1
    monkeypatch.undo()
    assert what_if(run, steps=[2, 4]).steps == 2


def test_2_it_can_be_watched_and_ended(run):
    seen = []
    answers = what_if(run, [{"cap_tokens": 8192}, {"cap_tokens": 9000}], progress=lambda *at: seen.append(at))
    assert seen == [(at, 12) for at in range(1, 13)]
    assert [one.steps for one in answers] == [6, 6]
    ended = what_if(run, [{"cap_tokens": 8192}, {"cap_tokens": 9000}], progress=lambda done, total: done < 4)
    assert [one.steps for one in ended] == [4]
    assert ended[0].notes == ("It was ended after 4 of 6 steps.",)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_2_a_large_question_draws_how_far_it_is_on_a_terminal_and_nothing_in_a_pipe(run, monkeypatch):
    monkeypatch.setattr(answering, "DRAWN", 12)
    asked = [{"cap_tokens": 8192}, {"cap_tokens": 9000}]
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        what_if(run, asked)
        assert ("Batches replayed: [###############" in stream.getvalue()) is drawn
        assert ("6 of 12, Ctrl-C ends it" in stream.getvalue()) is drawn
        assert stream.getvalue().split("\r")[-1] == ""  # and it leaves an empty line
        last = stream.getvalue()
        what_if(run, asked[0])  # which is too little
        what_if(run, asked, progress=False)
        assert stream.getvalue() == last
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(answering, "step_numbers", lambda *_: signal.raise_signal(signal.SIGINT))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            what_if(run, asked)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert stream.getvalue().split("\r")[-1] == ""


def test_2_in_a_notebook_it_is_a_bar_with_a_name_below_the_cell_that_goes_at_the_end(run, monkeypatch):
    from types import SimpleNamespace

    import IPython
    import IPython.display

    seen = []
    handle = SimpleNamespace(update=lambda page: seen.append(page.data))

    def display(page, display_id):
        assert display_id
        seen.append(page.data)
        return handle

    monkeypatch.setattr(answering, "DRAWN", 6)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", display)
    what_if(run, cap_tokens=9000)
    assert len(seen) == 7
    assert seen[2].startswith('<progress aria-label="Batches replayed" max="6" value="3"></progress>')
    assert seen[-1] == ""


def test_2_the_balance_over_ranks_is_worked_out_once_for_all_caps(run, monkeypatch):
    from probe.analysis.what_if import cutting

    calls, own = [], cutting.verl_partition

    def counted(*arguments):
        calls.append(arguments)
        return own(*arguments)

    monkeypatch.setattr(cutting, "verl_partition", counted)
    what_if(run, [{"cap_tokens": cap, "balance": "batch"} for cap in (5000, 6000, 7000)])
    assert len(calls) == 6  # one for each step


def test_2_what_cannot_be_asked_is_said(run):
    with pytest.raises(UnknownNameError, match="got 'cap'"):
        what_if(run, cap=3)
    for packer in ("verl", "verl.equal_size"):  # the second deals rows to ranks, and cuts no micro-batches
        with pytest.raises(UnknownNameError, match=f"got '{packer}'"):
            what_if(run, packer=packer)
    for name, given in (("dynamic", "no"), ("dynamic", 1), ("strict", "x"), ("strict", 0)):
        with pytest.raises(InputTypeError, match=f"{name}: got {given!r}, expected True or False"):
            what_if(run, {name: given})
    with pytest.raises(
        InputError, match="no step can be replayed with these settings; step 1: dp_size: 128 rows can't"
    ):
        what_if(run, dp_size=7)
    with pytest.raises(InputError, match="below the"):
        what_if(run, cap_tokens=8)
    with pytest.raises(InputError, match="no micro-batches were recorded for these steps"):
        what_if(run, steps=[999])
    with pytest.raises(InputError, match="expected one of the two"):
        what_if(run, {"cap_tokens": 9}, dp_size=2)


def test_2_an_answer_is_plain_data(run):
    told = json.loads(json.dumps(run.what_if(cap_tokens=9000).to_dict(), allow_nan=False))
    assert told["changes"] == {"cap_tokens": 9000}
    assert {"role", "phase", "number", "before", "after", "low", "high", "modelled"} == set(told["numbers"][0])
    assert "What if cap_tokens=9000, over 6 steps" in repr(run.what_if(cap_tokens=9000))


def test_2_trl_s_micro_batches_are_replayed_by_the_rule_that_is_named(tmp_path):
    rows = [
        MicroBatch(
            time_ns=clock(0) + step * 100 + index,
            step=step,
            phase="update",
            micro_batch=index,
            batch_id=step,
            micro_batches=4,
            sequences=2,
            lengths=[10 * (index + 1), 5],
            tokens=10 * (index + 1) + 5,
            width_tokens=10 * (index + 1),
            source="micro_batch.told",
        )
        for step in (1, 2)
        for index in range(4)
    ]
    with open_run(tmp_path, {0: rows}) as opened:
        answer = what_if(opened, packer="trl.fixed_rows", rows_each=4)
        assert answer.number("micro_batches") == (4, 2)
        assert answer.number("padding_tokens") == (5 + 15 + 25 + 35, 4 * 20 + 4 * 40 - 120)
        assert answer.compared
