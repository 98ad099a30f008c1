"""Issue 15, part 3: two ledgers that sum exactly, from rows that a session wrote."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.ledger import Ledger, ledger
from probe.analysis.ledger.lines import FATES as TITLES
from probe.analysis.ledger.lines import FateLine, SlotLine, told_money, told_share
from probe.analysis.ledger.markup import bars
from probe.analysis.ledger.slots import KINDS, Batch, split
from probe.cli import main
from probe.errors import InputError
from probe.opened import Run
from probe.records import FATES

PROMPTS, LENGTHS = [4, 2, 3, 1], [5, 3, 2, 2]
ROWS = [one + other for one, other in zip(PROMPTS, LENGTHS, strict=True)]


def step_of(session, number, *, advantages, clipped_all=(), epochs=2, drop=None, loss_terms=()):
    """A step of a loop of its own: samples, old log-probs packed, an update padded in two micro-batches an epoch."""
    with session.step(number):
        with probe.phase("generate"):
            time.sleep(0.002)
        if drop:
            probe.samples([drop], prompt_tokens=[1], dropped="stale")
        probe.samples(
            LENGTHS,
            prompt_tokens=PROMPTS,
            groups=["a", "a", "b", "b"],
            rewards=[1.0, 0.0, 1.0, 1.0],
            advantages=advantages,
            loss_terms=loss_terms,
        )
        with probe.phase("old_log_prob"), probe.micro_batch(0, lengths=ROWS):
            time.sleep(0.002)
        with probe.phase("update"):
            for _ in range(epochs):
                for index, rows in enumerate(([0, 1], [2, 3])):
                    lengths = [ROWS[row] for row in rows]
                    with probe.micro_batch(index, lengths=lengths, width=max(lengths), indices=rows):
                        held = np.zeros((2, 5))
                        held[:, 0] = [row in clipped_all for row in rows]
                        probe.trained(rows, clipped=held)
        with probe.phase("reward"):
            pass


@pytest.fixture
def run(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        step_of(session, 1, advantages=[0.7, -0.7, 0.0, 0.0], clipped_all=[0], drop=6, loss_terms=["KL"])
        step_of(session, 2, advantages=[0.7, -0.7, 0.0, 0.0])
    with Run(tmp_path / "run") as opened:
        yield opened


def slots(found):
    return {(line.phase, line.kind): line.slots for line in found.slots}


def test_both_ledgers_of_a_loop_of_its_own_sum_exactly(run):
    found = ledger(run)
    assert {line.fate: line.tokens for line in found.fates} == {
        "stale": 6,
        "no_advantage": 8,
        "clipped": 1,
        "carried": 15,
    }
    assert found.sampled_tokens == 30 == sum(line.tokens for line in found.fates)
    assert found.unknown_tokens == 0
    assert slots(found) == {
        ("generate", "response"): 30,
        ("generate", "prompt"): 21,
        ("old_log_prob", "again"): 44,
        ("update", "response"): 24,
        ("update", "prompt"): 20,
        ("update", "again"): 44,
        ("update", "padding"): 2 * 2 * ((9 + 9 - 14) + (5 + 5 - 8)),
    }
    computed = run.sql(
        "select phase, sum(coalesce(sequences * width_tokens, tokens))::int as n from micro_batches group by phase"
    ).set_index("phase")["n"]
    for phase in ("old_log_prob", "update"):
        assert sum(count for (of, _), count in slots(found).items() if of == phase) == computed[phase]


def test_seconds_sum_to_those_of_the_steps_and_money_follows_probe_gpu_hour(run, monkeypatch):
    monkeypatch.setenv("PROBE_GPU_HOUR", "2.5")
    found = ledger(run)
    of_steps = run.sql("select sum(step_time_s) as s from steps")["s"][0]
    assert found.seconds == pytest.approx(of_steps)
    spent = sum(line.seconds for line in found.slots) + found.other_seconds
    assert spent == pytest.approx(of_steps)
    answers = sum(line.seconds for line in found.slots if line.kind == "response")
    assert sum(line.seconds for line in found.fates) == pytest.approx(answers)
    assert found.money == pytest.approx(of_steps * 2.5 / 3600)
    generated = run.sql("select sum(duration) as s from spans where phase = 'generate' and level = 'phase'")["s"][0]
    assert sum(line.seconds for line in found.slots if line.phase == "generate") == pytest.approx(generated)
    for wrong in ("", "free", "-1", "inf", "nan"):
        monkeypatch.setenv("PROBE_GPU_HOUR", wrong)
        assert ledger(run).money is None
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match=r"gpu_hour: got .*, expected a number above 0"):
            run.ledger(gpu_hour=wrong)


def test_the_padding_is_that_of_the_padding_ledger(run):
    counted = run.sql("select sum(tokens)::int as n from padding_counted where counted = 2 and cause <> 'none'")["n"][0]
    assert sum(line.slots for line in ledger(run).slots if line.kind == "padding") == counted > 0


def test_the_sentence_says_what_became_of_a_thousand(run):
    found = ledger(run)
    assert found.sentence == "Of 1,000 sampled tokens 500 carried policy gradient; 27 % had no advantage."
    (second,) = (ledger(run, first=2),)
    assert (second.first, second.last, second.sampled_tokens) == (2, 2, 12)
    assert second.sentence == "Of 1,000 sampled tokens 667 carried policy gradient; 33 % had no advantage."
    assert ledger(run, first=3) is None


def values(found):
    return {one.name: one.value for one in found.headline}


def test_the_numbers_above_the_funnel_are_those_of_the_ledgers(run):
    found = ledger(run, gpu_hour=3600.0)
    (carried,) = [line for line in found.fates if line.fate == "carried"]
    assert values(found) == {
        "tokens": told_share(15 / 30),
        "seconds": told_share(carried.seconds / found.seconds),
        "money": told_money(found.seconds / 15 * 1e6),
    }
    assert [one.name for one in ledger(run).headline] == ["tokens", "seconds"]  # nobody said a price
    assert json.loads(json.dumps(found.to_dict()))["headline"][0]["value"] == "50 %"
    assert "is what a million tokens that carried policy gradient cost" in found._repr_html_()


def lines_of(fates, *, slots=(), **more):
    total = sum(fates.values())
    lines = tuple(FateLine(name, count, count / total, 1, count / 10, count / 1.0) for name, count in fates.items())
    parts = tuple(SlotLine(*one, None, None) for one in slots)
    return Ledger(1, 1, lines, parts, total, 4, 4, **({"seconds": 20.0, "unit": "GPU-seconds"} | more))


def test_a_number_of_which_only_a_bound_is_known_says_so():
    sampling = ("generate", "response", 100)
    reached = lines_of({"no_advantage": 40, "clip_unknown": 50, "carried": 10}, slots=[sampling], money=2.0)
    assert values(reached) == {"tokens": "60 %", "seconds": "30 %", "money": told_money(2.0 / 60 * 1e6)}
    assert reached.headline[0].about == (
        "of the sampled tokens reached the loss with an advantage; which of them were clipped isn't known"
    )
    assert reached.headline[2].about == "is what a million tokens that reached the loss with an advantage cost"
    unknown = lines_of({"no_advantage": 40, "unknown": 50, "carried": 10}, slots=[sampling], money=2.0)
    assert values(unknown) == {"tokens": "≥ 10 %", "seconds": "≥ 5.0 %", "money": f"≤ {told_money(2.0 / 10 * 1e6)}"}
    assert unknown.headline[0].about.endswith("; the fate of 50 % isn't known")


def test_seconds_that_can_not_be_told_apart_make_the_share_a_bound():
    outside = lines_of({"carried": 10}, slots=[("update", "response", 10)])
    assert values(outside)["seconds"] == "≥ 5.0 %"
    mixed = lines_of({"carried": 10}, slots=[("generate", "response", 10), ("update", "tokens", 10)])
    assert values(mixed)["seconds"] == "≥ 5.0 %"
    assert "update can't tell answers from prompts" in mixed.headline[1].about


def test_a_number_that_is_not_known_is_left_out():
    sampling = ("generate", "response", 100)
    assert values(lines_of({"no_advantage": 9}, slots=[sampling], money=2.0)) == {"tokens": "0 %", "seconds": "0 %"}
    assert [one.value for one in lines_of({"unknown": 9}, slots=[sampling], money=2.0).headline] == ["–"]
    assert values(lines_of({"carried": 9}, slots=[sampling], seconds=None)) == {"tokens": "100 %"}
    assert Ledger(1, 1, (), (), 0, 0, 0).headline == ()


def test_a_price_that_was_set_when_a_run_was_recorded_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBE_GPU_HOUR", "2.5")
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        step_of(session, 1, advantages=[0.7, -0.7, 0.0, 0.0])
    monkeypatch.delenv("PROBE_GPU_HOUR")
    with Run(tmp_path / "run") as run:
        assert ledger(run).gpu_hour == 2.5
        assert ledger(run, gpu_hour=4.0).gpu_hour == 4.0
        monkeypatch.setenv("PROBE_GPU_HOUR", "3")
        assert ledger(run).gpu_hour == 3.0


def test_a_page_is_told_of_a_step_of_the_steps_up_to_it_and_of_the_attempt(run):
    from probe.views.panel import funnel

    told = funnel.kept(run)
    assert (told["first"], told["last"], told["at"]) == (1, 2, 2)
    assert [(told[name]["first"], told[name]["last"]) for name in ("step", "recent")] == [(2, 2), (1, 2)]
    assert told["sentence"] == ledger(run).sentence
    assert told["step"]["sentence"] == ledger(run, first=2).sentence
    assert told["step"]["tiles"][0] == {"value": "67 %", "about": "of the sampled tokens carried policy gradient"}
    assert funnel.told(run, 9)["step"] is None


def test_a_page_is_told_the_money_of_a_step_and_of_all_where_there_is_a_price(run, monkeypatch):
    from probe.analysis.ledger.lines import told_money
    from probe.views.panel import funnel

    assert {line["money"] for line in funnel.kept(run)["lines"]} == {None}  # nobody said a price
    monkeypatch.setenv("PROBE_GPU_HOUR", "3600")
    whole, told = ledger(run), funnel.kept(run)
    assert (whole.steps, ledger(run, first=2).steps) == (2, 1)
    total = {line["title"]: line["money"] for line in told["lines"]}["Total"]
    assert total == {"step": told_money(whole.money / 2), "all": told_money(whole.money)}
    of_step = {line["title"]: line["money"] for line in told["step"]["lines"]}["Total"]
    assert of_step["step"] == of_step["all"] == told_money(ledger(run, first=2).money)
    assert told["lines"][0]["money"] == {"step": "", "all": ""}  # what was sampled costs nothing by itself
    assert len(told["head"]) == len(told["lines"][0]["cells"]) == 3


def test_a_term_of_the_loss_beside_the_policy_s_is_named(run):
    assert ledger(run).notes[0] == (
        "The loss has the term KL: tokens without policy gradient still carry the gradient of it."
    )
    assert not any("term" in note for note in ledger(run, first=2).notes)


def test_what_is_not_known_is_said_and_is_never_carried(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        probe.samples([6, 4], advantages=[1.0, 0.0])
    with Run(tmp_path / "run") as run:
        found = ledger(run)
        assert (found.tokens("carried"), found.tokens("clip_unknown"), found.unknown_tokens) == (0, 6, 6)
        assert [line.fate for line in found.fates] == [
            "no_advantage",
            "clip_unknown",
        ]  # no "carried: 0", which isn't known
        assert "Carried policy gradient" not in str(found)
        assert found.sentence == (
            "Of 1,000 sampled tokens 600 reached the loss with an advantage, and it isn't known which of them were"
            " clipped; 40 % had no advantage."
        )


def test_a_run_without_samples_has_no_ledger(tmp_path, capsys):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session, session.step(1):
        pass
    with Run(tmp_path / "run") as run:
        assert run.ledger() is None
    assert main(["ledger", str(tmp_path / "run")]) == 1
    assert "no samples were recorded" in capsys.readouterr().err


def test_run_ledger_the_command_and_the_funnel_say_the_same(run, capsys, monkeypatch):
    found = run.ledger()
    assert main(["ledger", run.path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fates"] == json.loads(json.dumps([line._asdict() for line in found.fates]))
    assert told["sentence"] == found.sentence
    monkeypatch.setenv("PROBE_GPU_HOUR", "2,50")
    assert main(["ledger", run.path, "--first", "2"]) == 0
    assert "PROBE_GPU_HOUR: got '2,50', expected a number above 0; it isn't used" in capsys.readouterr().err
    monkeypatch.delenv("PROBE_GPU_HOUR")
    assert main(["ledger", run.path, "--first", "2"]) == 0
    assert "Of 1,000 sampled tokens 667" in capsys.readouterr().out
    lines = bars(found)
    assert lines[0].stream == 1.0
    lost = sum(line.part for line in lines if line.kind in ("lost", "unknown"))
    (carried,) = [line for line in lines if line.kind == "carried"]
    assert lost + carried.part == pytest.approx(1.0)
    html = found._repr_html_()
    assert found.sentence in html
    assert "Carried policy gradient" in html


def test_the_report_has_the_funnel(run):
    from probe.views.report.report import report_html

    assert run.ledger().sentence in report_html(run)


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.none() | st.integers(0, 50),
    response=st.integers(0, 50),
    dummy=st.integers(0, 10),
    times=st.integers(0, 4),
    more=st.integers(0, 3),
    padding=st.integers(0, 40),
    phase=st.sampled_from(["update", "old_log_prob", "ref", "values"]),
)
def test_random_slots_sum_exactly(prompt, response, dummy, times, more, padding, phase):
    tokens = times * ((prompt or 0) + response + dummy) + more
    parts = split(phase, tokens=tokens, slots=tokens + padding, batch=Batch(prompt, response, dummy))
    assert sum(parts.values()) == tokens + padding
    assert set(parts) <= set(KINDS)
    assert parts.get("padding", 0) == padding
    assert all(count > 0 for count in parts.values())


def test_every_fate_has_its_words():
    assert set(TITLES) == set(FATES)


@pytest.mark.parametrize("parts", [1, 2], ids=["a further iteration", "parts of a generation"])
def test_steps_that_train_answers_of_an_earlier_one_are_in_its_slots_and_seconds(tmp_path, parts):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(7):  # even ones sample; of the last no further step is known yet
            with session.step(step):
                if step % 2 == 0:
                    with probe.phase("generate"):
                        probe.samples([5, 4 + step], prompt_tokens=[3, 2], advantages=[1.0, -1.0], passes=2)
                lengths = [8, 6 + step - step % 2]
                with (
                    probe.phase("update"),
                    probe.micro_batch(0, lengths=lengths if parts == 1 else [lengths[step % 2]]),
                ):
                    time.sleep(0.002)
    with Run(tmp_path / "run") as run:
        found = ledger(run)
        whole = run.sql("select sum(duration) as s from spans where level = 'step'")["s"][0]
    slots = {(line.phase, line.kind): line.slots for line in found.slots}
    sampled = sum(9 + step for step in range(0, 7, 2))
    assert (found.first, found.last, found.sampled_tokens) == (0, 6, sampled)
    assert found.seconds == pytest.approx(whole)
    if parts == 1:
        assert slots["update", "again"] == sampled + 4 * 5 - 15 - 5  # of all but the last
        assert (slots["update", "response"], slots["update", "prompt"]) == (sampled, 20)
    else:
        assert (slots["update", "response"], slots["update", "prompt"]) == (sampled - 15, 15)
        assert slots["update", "tokens"] == 8  # the last has trained one of its two answers


def test_steps_whose_samples_nobody_told_stay_out(tmp_path):
    with probe.start("p", run_dir=tmp_path / "run", rank=0, world_size=1) as session:
        for step in range(5):
            with session.step(step), probe.phase("update"):
                if step % 2 == 0:
                    probe.samples([5, 4], prompt_tokens=[3, 2], advantages=[1.0, -1.0], clipped=False)
                with probe.micro_batch(0, lengths=[8, 6 + step]):
                    pass
    with Run(tmp_path / "run") as run:
        found = ledger(run)
    assert sum(line.slots for line in found.slots) == 14 + 16 + 18
