"""Issue 15, part 3: two ledgers that sum exactly, from rows that a session wrote."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.analysis.ledger import ledger
from probe.analysis.ledger.lines import FATES as TITLES
from probe.analysis.ledger.markup import bars
from probe.analysis.ledger.slots import KINDS, Batch, split
from probe.cli import main
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


def test_run_ledger_the_command_and_the_funnel_say_the_same(run, capsys):
    found = run.ledger()
    assert main(["ledger", run.path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fates"] == json.loads(json.dumps([line._asdict() for line in found.fates]))
    assert told["sentence"] == found.sentence
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
