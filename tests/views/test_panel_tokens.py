"""The panel's view of tokens in a browser: the funnel, the samples that a finding leads to, and lanes by replica."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.opened import Run
from probe.views.panel.browsing import Browsing, kept
from probe.views.panel.disagree import kept as kept_disagreement
from probe.views.panel.funnel import kept as kept_funnel
from probe.views.panel.lanes import kept as kept_lanes
from probe.views.panel.looking import told as told_findings
from tests.served_run import served_run
from tests.told_samples import told_samples
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_answers import ASKED, answer
from tests.views.panel_findings import TOPICS, finding
from tests.views.panel_looks import every_text_can_be_read, look, nothing_overflows
from tests.views.panel_page import box, card, expect, resized, shown, to_view
from tests.views.test_axe import AXE, found
from tests.views.test_disagree import sampled as mismatched
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


FUNNEL = {
    "sentence": "Of 1,000 sampled tokens 500 carried policy gradient; 30 % had no advantage.",
    "head": ["Tokens", "Share", "GPU-seconds"],
    "lines": [
        {
            "title": "Sampled",
            "about": "4 answers",
            "cells": ["20", "100 %", ""],
            "stream": 1,
            "part": 0,
            "kind": "sampled",
        },
        {
            "title": "No advantage",
            "about": "",
            "cells": ["− 6", "30 %", "1"],
            "stream": 0.7,
            "part": 0.3,
            "kind": "lost",
        },
        {"title": "Padding", "about": "", "cells": ["+ 40", "", "2"], "stream": 0, "part": 2, "kind": "added"},
        {"title": "Carried", "about": "", "cells": ["10", "50 %", "3"], "stream": 0, "part": 0.5, "kind": "carried"},
    ],
    "notes": ["A slot costs the seconds of its phase."],
}


def test_15_3_the_view_of_tokens_begins_with_the_funnel_of_both_ledgers(page: Any) -> None:
    made, _ = shown(page, steps=4, topics=TOPICS)
    told = {"findings": [], "looking": True, "whole": True, "ledger": FUNNEL}
    host.send(page, made.state(complete_step=4, verdict=told))
    funnel = page.locator(".pp-funnel")
    expect(funnel).to_be_hidden()  # of another view
    page.get_by_role("tab", name="Tokens").click()
    expect(funnel.locator(".pp-sentence")).to_have_text(FUNNEL["sentence"])
    rows = funnel.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(1).locator(".pp-number")).to_have_text(["− 6", "30 %", "1"])
    widths = "rows => rows.map(row => [...row.querySelectorAll('i')].map(one => one.offsetWidth))"
    until(
        lambda: rows.evaluate_all(widths),
        lambda found: (
            found[2] == [max(map(sum, found))]  # what is widest fills the bar
            and abs(found[1][0] + found[1][1] - found[0][0]) <= 2  # what is lost ends where the stream ended before
            and found[3][0] < found[1][0]
        ),
    )


def told_tokens(path: Path) -> Path:
    """A run of three steps; of the tokens of step s of three answers s carried policy gradient."""
    with probe.start("p", "tokens", run_dir=path, rank=0, world_size=1) as session:
        for step in range(1, 4):
            with session.step(step):
                with probe.phase("generate"):
                    pass
                advantages = [1.0 if at < step else 0.0 for at in range(3)]
                probe.samples([10] * 3, prompt_tokens=[2] * 3, rewards=[0.0] * 3, advantages=advantages)
                with probe.phase("update"), probe.micro_batch(0, lengths=[12] * 3, indices=[0, 1, 2]):
                    probe.trained([0, 1, 2], clipped=np.zeros((3, 10)))
    return path


KEYS = ["still on its way", "lost here", "computed in addition, beside the stream", "carried policy gradient"]


def test_15_3_the_funnel_and_its_tiles_are_of_a_step_of_the_last_20_or_of_the_attempt(
    page: Any, tmp_path: Path, shots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_GPU_HOUR", "2.5")
    path = told_tokens(tmp_path / "run")
    monkeypatch.delenv("PROBE_GPU_HOUR")  # the run keeps it
    with Run(path) as run:
        packet = kept_funnel(run)
    assert packet is not None
    browsing = Browsing(str(path))
    made, _ = shown(page, steps=3, topics=TOPICS)
    verdict = {"findings": [], "looking": True, "whole": True, "ledger": packet}
    page.get_by_role("tab", name="Tokens").click()
    host.send(page, made.state(complete_step=3, verdict=verdict))
    funnel = page.locator(".pp-funnel")
    tiles, title = funnel.locator(".pp-funnel-tiles dd"), funnel.locator("h3")
    expect(title).to_have_text("Where the tokens of step 3 went")
    expect(tiles).to_have_count(3)
    expect(tiles.first).to_have_text("100 %")
    expect(funnel.locator("dt").last).to_have_text("is what a million tokens that carried policy gradient cost")
    keys = funnel.get_by_role("list", name="Colours").get_by_role("listitem")
    expect(keys).to_have_text([KEYS[0], *KEYS[2:]])  # of step 3 nothing was lost
    heads, total = funnel.locator("thead th"), funnel.locator("tbody tr").last.locator(".pp-number")
    expect(heads).to_have_text(["Tokens", "Share", "rank-seconds", "A step", "Attempt"])
    whole = {one["title"]: one["money"] for one in packet["lines"]}["Total"]
    of_step = {one["title"]: one["money"] for one in packet["step"]["lines"]}["Total"]
    expect(total.nth(3)).to_have_text(of_step["step"])  # of one step the mean is its own
    expect(total.nth(4)).to_have_text(whole["all"])
    for name, about in (("Last 20", "67 %"), ("Attempt", "67 %")):
        funnel.get_by_role("button", name=name).click()
        expect(title).to_have_text("Where the tokens of steps 1 to 3 went")
        expect(tiles.first).to_have_text(about)
        expect(keys).to_have_text(KEYS)
        expect(total.nth(3)).to_have_text(whole["step"])  # the mean of three steps
        expect(total.nth(4)).to_have_text(whole["all"])
    page.get_by_role("button", name="One step back").click()
    expect(tiles.first).to_have_text("67 %")  # of the attempt, whichever step is chosen
    funnel.get_by_role("button", name="Last 20").click()
    answer(page, browsing)
    expect(title).to_have_text("Where the tokens of steps 1 to 2 went")
    expect(tiles.first).to_have_text("50 %")
    funnel.get_by_role("button", name="Step", exact=True).click()
    expect(title).to_have_text("Where the tokens of step 2 went")
    expect(funnel.get_by_role("button", name="Step", exact=True)).to_have_attribute("aria-pressed", "true")
    for theme, width in (("light", 1040), ("dark", 400)):
        page.emulate_media(color_scheme=theme)
        resized(page, width)
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        funnel.screenshot(path=shots / f"funnel_{theme}_{width}.png")
        scrolls = "one => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight]"
        assert funnel.locator(".pp-scroll").evaluate(scrolls) == [0, 0]  # every line is in sight
        nothing_overflows(page)
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-funnel") == []
    browsing.close()


def test_15_3_a_saved_panel_keeps_the_funnel_of_its_last_step_and_says_so(page: Any, tmp_path: Path) -> None:
    with Run(told_tokens(tmp_path / "run")) as run:
        packet = kept_funnel(run)
    made, _ = shown(page, steps=3)
    verdict = {"findings": [], "looking": True, "whole": True, "ledger": packet}
    head, body = made.snapshot(live=False, complete_step=3, verdict=verdict)
    page.reload()
    host.opened(page, "saved", snapshot=(head, body))
    page.click("[data-view=tokens]")
    expect(page.locator(".pp-funnel h3")).to_have_text("Where the tokens of step 3 went")
    page.get_by_role("button", name="One step back").click()
    expect(page.locator(".pp-funnel .pp-read").first).to_have_text("This copy keeps only the tokens up to step 3.")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []


def test_15_5_a_finding_leads_to_the_samples_of_its_micro_batch_and_from_there_to_each_token(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    browsing = Browsing(str(told_samples(tmp_path / "run")))
    views = [*boards.VIEWS, {"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]
    made, _ = shown(page, steps=4, views=views, topics=TOPICS)
    where = {"step": 2, "micro_batch": 1, "phase": "update_actor", "process": "rank-00000"}
    told = [finding("alarm", "nan", "NaN went into actor/pg_loss.", "reductions", where=where)]
    verdict = {"findings": told, "looking": True, "whole": True, "ledger": FUNNEL}
    host.send(page, made.state(complete_step=4, verdict=verdict))
    go = page.get_by_role("button", name="Go to samples of micro-batch 1, step 2")
    expect(go).to_be_visible()
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []  # nothing before it is opened
    go.click()
    answer(page, browsing)
    lines = page.locator(".pp-samples-list [data-at]:visible")
    expect(lines).to_have_count(3)
    begins = [re.compile(rf"^{text}\b") for text in ("b: 3 answers, 1 cut off", "Answer 4", "Answer 3")]
    expect(lines).to_have_text(begins, use_inner_text=True)
    answer(page, browsing)
    expect(page.locator(".pp-answer h3")).to_have_text("Answer 4 of group b")
    expect(page.locator(".pp-answer-text")).to_have_text("What is <b>1</b>?\n\nanswer 4")
    page.get_by_role("button", name="Only micro-batch 1 of update_actor").click()
    answer(page, browsing)
    expect(lines).to_have_count(8)
    grid, token = page.get_by_role("grid"), page.get_by_role("slider", name="Token")
    expect(grid).to_be_focused()
    for key in ("End", "k", "k", "j", "ArrowDown", "Enter"):  # to group b and back to a, of which the worst answer
        page.keyboard.press(key)
    answer(page, browsing)
    expect(page.locator(".pp-answer h3")).to_have_text("Answer 1 of group a")
    token.focus()
    expect(token).to_have_attribute("aria-valuenow", "2")  # where it differs most
    expect(token).to_have_attribute("aria-valuetext", re.compile("Difference −3, Ratio 0.0498"))
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pp-tokens h4")).to_have_text("Token 1 of 4")
    expect(page.locator(".pp-step")).to_have_text("step 2")  # the key was the token's alone
    page.keyboard.press("Escape")
    expect(grid).to_be_focused()
    assert page.locator(".pp-samples *").count() <= 200
    for theme, width in (("light", 1040), ("dark", 400)):
        page.emulate_media(color_scheme=theme)
        resized(page, width)
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        page.screenshot(path=shots / f"samples_{theme}_{width}.png", full_page=True)
        nothing_overflows(page)
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-samples") == []
    resized(page, 1040)
    to_view(page, "memory")  # from a peak to the answers that made it
    card(page, "memory_over_steps").locator(".pp-plot").focus()
    for key in ("ArrowLeft", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("button", name=re.compile("^Samples of micro-batch")).click()
    last = until(lambda: page.evaluate(ASKED))[-1]
    told = f"Only micro-batch {last['micro_batch']} of {last['phase']}"
    expect(page.get_by_role("button", name=told)).to_be_visible()
    for _ in range(2):  # to step 3, of which no samples were recorded
        page.get_by_role("button", name="One step on").click()
    until(lambda: any(one["step"] == 3 for one in page.evaluate(ASKED)))
    answer(page, browsing)
    expect(page.get_by_role("button", name=told)).to_be_visible()
    page.get_by_role("button", name="Go to step 2").click()  # where that micro-batch isn't meant
    until(lambda: [(one["step"], one["micro_batch"]) for one in page.evaluate(ASKED)][-1:] == [(2, None)])
    expect(page.get_by_role("button", name=told)).to_be_hidden()
    browsing.close()


def test_15_5_tokens_that_werent_sampled_lead_to_the_first_of_them(page: Any, tmp_path: Path, shots: Path) -> None:
    path = tmp_path / "run"
    with probe.start("p", run_dir=path, rank=0, world_size=1, samples="text") as session, session.step(2):
        rollout = np.full((3, 40), -1.0)
        trained = rollout.copy()
        trained[0, 3] -= 4  # the largest difference is of an answer that is as it was sampled
        trained[1, 30] -= 2
        ids = np.tile(np.arange(40), (70, 1))
        ids[1:, 21:] += 1
        many = [one.repeat([1, 1, 68], 0) for one in (trained, rollout)]
        probe.samples(
            [40] * 70, log_probs=many[0], rollout_log_probs=many[1], response_ids=ids, sampled_ids=[range(40)] * 70
        )
    with Run(tmp_path / "run") as run:
        told = [one for one in told_findings(run.findings()) if one["name"] == "not_sampled"]
    views = [*boards.VIEWS, {"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]
    made, _ = shown(page, steps=4, views=views, topics=TOPICS)
    verdict = {"findings": told, "looking": True, "whole": True, "ledger": FUNNEL}
    host.send(page, made.state(complete_step=4, verdict=verdict))
    page.get_by_role("button", name="Go to token 21, step 2").click()
    browsing = Browsing(str(tmp_path / "run"))
    answer(page, browsing)
    expect(page.locator(".pp-samples .pp-read[role=status]").first).to_have_text(
        "69 answers of this step are trained on tokens that weren't sampled; 64 of them have a row. "
        "A batch names its first 64."
    )
    answer(page, browsing)
    expect(page.locator(".pp-answer h3")).to_have_text("Answer 1")
    expect(page.locator(".pp-tokens h4")).to_have_text("Token 21 of 40")
    expect(page.locator(".pp-answer .pp-sentence")).to_contain_text("the first other token is 21")
    page.screenshot(path=shots / "samples_changed.png", full_page=True)
    browsing.close()


def test_15_5_a_saved_panel_shows_its_few_samples_and_asks_nobody(page: Any, tmp_path: Path) -> None:
    with Run(told_samples(tmp_path / "run")) as run:
        few = kept(run)
    made, _ = shown(page, steps=2)
    head, body = made.snapshot(live=False)
    views = [{"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]
    page.reload()
    host.opened(page, "saved", snapshot=({**head, "samples": few}, body), views=views)
    expect(page.locator(".pp-samples-list [data-at]:visible")).to_have_count(6)
    expect(page.locator(".pp-samples > .pp-read")).to_contain_text(
        "Saved copy: some answers of the last step, the worst first"
    )
    expect(page.locator(".pp-tokens h4")).to_have_text(re.compile(r"^Token \d of 3$"))
    expect(page.locator(".pp-sample-tools")).to_be_hidden()  # nobody can be asked for another order
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []


def test_15_4_the_view_of_tokens_says_why_rollout_and_training_disagree_and_what_it_isnt(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    with Run(mismatched(tmp_path / "run", cut=2)) as run:
        told = kept_disagreement(run)
    with Run(mismatched(tmp_path / "clean")) as run:
        agree = kept_disagreement(run)
    assert told is not None
    assert agree is not None
    made, _ = shown(page, steps=4, topics=TOPICS)
    verdict = {"findings": [], "looking": True, "whole": True}
    host.send(page, made.state(complete_step=4, verdict=verdict | {"disagreement": told}))
    figure = page.locator(".pp-disagree")
    expect(figure).to_be_hidden()  # of another view
    page.get_by_role("tab", name="Tokens").click()
    expect(figure.locator("h3")).to_have_text("Why rollout and training disagree")
    expect(figure.locator(".pp-sentence")).to_have_text(told["sentence"])
    rows = figure.locator(".pp-causes tbody tr")
    expect(rows).to_have_count(len(told["causes"]))
    for at, one in enumerate(told["causes"]):
        expect(rows.nth(at).locator(":is(th, td)")).to_have_text([one["name"], one["seen"], one["word"]])
        expect(rows.nth(at)).to_be_visible()
    strips = figure.get_by_role("listitem")
    expect(strips).to_have_count(len(told["strips"]))
    widths = strips.locator("svg").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    shares = [one["share"] for one in told["strips"]]
    assert widths == pytest.approx([max(widths) * one for one in shares], abs=1)
    expect(strips.first).to_contain_text("●")
    for theme, width in (("light", 1040), ("dark", 1040), ("light", 400)):
        page.emulate_media(color_scheme=theme)
        resized(page, width)
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        figure.screenshot(path=shots / f"disagree_{theme}_{width}.png")
        nothing_overflows(page)
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-disagree") == []
    figure.get_by_text("Causes that were looked for").click()
    expect(rows.first).to_be_hidden()
    host.send(page, made.state(verdict=verdict | {"disagreement": told | {"confidence": "Confidence: low."}}))
    expect(figure.locator(".pp-read").first).to_have_text("Confidence: low.")
    expect(rows.first).to_be_hidden()  # what was folded stays so
    host.send(page, made.state(verdict=verdict | {"disagreement": agree}))
    expect(figure.locator("h3")).to_have_text("Rollout and training agree")
    expect(figure.get_by_role("list")).to_be_hidden()
    figure.get_by_text("Causes that were looked for").click()
    expect(rows.first).to_be_visible()
    figure.screenshot(path=shots / "agree.png")
    host.send(page, made.state(verdict=verdict | {"disagreement": None}))
    expect(figure).to_be_hidden()


def test_15_6_the_view_of_tokens_has_lanes_by_replica_beside_the_trainers_for_the_chosen_step(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    path = served_run(tmp_path / "run")
    browsing = Browsing(str(path))
    with Run(path) as run:
        packet = kept_lanes(run)
    assert packet is not None
    made, _ = shown(page, steps=4, topics=TOPICS)
    page.click("[data-view=tokens]")
    host.send(page, made.state(complete_step=3))
    lanes = page.locator(".pp-lanes")
    expect(lanes).to_be_hidden()  # nobody has told when answers were sampled
    host.send(page, made.state(complete_step=3, long_tail=packet))
    figure = page.get_by_role("figure", name="Replicas beside the trainer, step 3")
    expect(figure.locator(".pp-sentence")).to_contain_text("The last tenth of the answers ends within")
    trainer = figure.get_by_role("img", name=re.compile(r"^Trainer: generate from 0 s to 6 s, old_log_prob from 6 s"))
    expect(trainer).to_be_visible()
    lane = figure.get_by_role("img", name=re.compile("16 answers, at most 16 at once"))
    expect(lane).to_have_count(3)
    rows = figure.locator(".pp-lane-table tbody tr")
    expect(rows.nth(1).locator(".pp-number")).to_have_text(["6.00 s", "0 s"])  # of step 3 the first ends last
    expect(rows.nth(2).locator(".pp-number")).to_have_text(["4.00 s", "2.00 s"])

    page.get_by_role("button", name="One step back").click()
    answer(page, browsing)  # another step is asked of whoever reads the run
    other = page.get_by_role("figure", name="Replicas beside the trainer, step 2")
    expect(other.locator(".pp-lane-table tbody tr").nth(3).locator(".pp-number")).to_have_text(["6.00 s", "0 s"])
    numbers = other.locator("summary")
    numbers.focus()
    page.keyboard.press("Enter")
    expect(other.get_by_role("region", name="The replicas: numbers").locator("tbody tr")).to_have_count(3)
    drawn, phase, hatched = (other.locator(f".pp-{one}").first for one in ("busy", "phase", "idle"))
    until(lambda: [box(one) for one in (drawn, phase, hatched)], on_one_clock)
    for theme, width in (("light", 1040), ("dark", 400)):
        page.emulate_media(color_scheme=theme)
        resized(page, width)
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        other.screenshot(path=shots / f"lanes_{theme}_{width}.png")
        until(
            lambda: [one for one in look(page, "overflows") if "pp-lane" in one or "pp-tail" in one],
            lambda cut: cut == [],
        )
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-lanes") == []
    browsing.close()


def on_one_clock(places: list[dict[str, float]]) -> bool:
    """Whether what a replica did begins with the phase that samples, at the step's begin, and what it waits ends so."""
    drawn, phase, hatched = places
    return drawn["x"] == pytest.approx(phase["x"], abs=1.5) and hatched["x"] + hatched["width"] == pytest.approx(
        phase["x"] + phase["width"], abs=1.5
    )


def test_15_6_a_saved_panel_shows_the_lanes_that_it_keeps_and_says_which_step_they_are_of(
    page: Any, tmp_path: Path
) -> None:
    with Run(served_run(tmp_path / "run")) as run:
        packet = kept_lanes(run)
    made, _ = shown(page, steps=4)
    head, body = made.snapshot(live=False, complete_step=3, long_tail=packet)
    page.reload()
    host.opened(page, "saved", snapshot=(head, body))
    page.click("[data-view=tokens]")
    expect(page.get_by_role("figure", name="Replicas beside the trainer, step 3")).to_be_visible()
    page.get_by_role("button", name="One step back").click()
    expect(page.locator(".pp-lanes .pp-read").first).to_have_text("This copy keeps only the replicas of step 3.")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []
