"""The ways from a finding and from a strip of differences to single answers, in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.opened import Run
from probe.views.panel.browsing import Browsing
from probe.views.panel.disagree import kept as kept_disagreement
from probe.views.panel.looking import Looker
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_answers import answer
from tests.views.panel_findings import TOPICS
from tests.views.panel_page import box, expect, shown
from tests.views.test_disagree import sampled as mismatched
from tests.views.test_panel_tokens import FUNNEL

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def changed_of_six(path: Path) -> Path:
    """Step 2 has six answers, of which five go on with other tokens than were sampled from token 21 on."""
    with probe.start("p", run_dir=path, rank=0, world_size=1) as session, session.step(2):
        rollout = np.full((6, 40), -1.0)
        trained = rollout.copy()
        trained[0, 3] -= 4  # the largest difference is of the one that is as it was sampled
        trained[1:, 21:] -= 2
        ids = np.tile(np.arange(40), (6, 1))
        ids[1:, 21:] += 1
        probe.samples(
            [40] * 6, log_probs=trained, rollout_log_probs=rollout, response_ids=ids, sampled_ids=[range(40)] * 6
        )
    return path


def looked_at(path: Path) -> dict[str, Any]:
    """What a page is told was found in a run."""
    return Looker(str(path)).answer({"attempt": None, "whole": True, "live": False})


WITH_SAMPLES = [*boards.VIEWS, {"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]


def test_15_5_beside_the_token_a_finding_leads_to_all_answers_that_it_is_of(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    path = changed_of_six(tmp_path / "run")
    browsing, told = Browsing(str(path)), looked_at(path)
    findings = [one for one in told["findings"] if one["name"] == "not_sampled"]
    made, _ = shown(page, steps=4, views=WITH_SAMPLES, topics=TOPICS)
    verdict = {"findings": findings, "looking": True, "whole": True, "ledger": FUNNEL}
    host.send(page, made.state(complete_step=4, verdict=verdict))
    see, go = page.get_by_role("button", name="See the 5 answers"), page.get_by_role("button", name="Go to token 21")
    expect(go).to_be_visible()
    see.focus()
    page.keyboard.press("Enter")
    answer(page, browsing)
    lines = page.locator(".pp-samples-list [data-at]:visible")
    expect(lines).to_have_count(5)
    expect(page.locator(".pp-step")).to_have_text("step 2")
    expect(see).to_have_attribute("aria-disabled", "true")  # one is there
    expect(go).to_have_attribute("aria-disabled", "false")
    answer(page, browsing)
    page.screenshot(path=shots / "see_the_answers.png", full_page=True)
    lines.nth(3).click()
    answer(page, browsing)
    go.click()
    answer(page, browsing)
    answer(page, browsing)
    expect(page.locator(".pp-answer h3")).to_have_text("Answer 1")
    expect(page.locator(".pp-tokens h4")).to_have_text("Token 21 of 40")
    expect(go).to_have_attribute("aria-disabled", "true")
    lines.nth(2).click()  # another answer than the one that it leads to
    answer(page, browsing)
    expect(go).to_have_attribute("aria-disabled", "false")
    browsing.close()


def test_15_5_a_saved_panel_leads_to_the_token_and_the_answers_that_it_keeps(page: Any, tmp_path: Path) -> None:
    told = looked_at(changed_of_six(tmp_path / "run"))
    findings = [one for one in told["findings"] if one["name"] == "not_sampled"]
    made, _ = shown(page, steps=4)
    verdict = {"findings": findings, "looking": True, "whole": True, "ledger": FUNNEL}
    head, body = made.snapshot(live=False, complete_step=4, verdict=verdict)
    page.reload()
    views = WITH_SAMPLES
    host.opened(page, "saved", snapshot=({**head, "samples": told["samples"]}, body), views=views, topics=TOPICS)
    page.get_by_role("button", name="See the 5 answers of this copy").click()
    lines = page.locator(".pp-samples-list [data-at]:visible")
    expect(lines).to_have_count(5)
    expect(page.locator(".pp-sample-tools select").first).to_be_hidden()  # nobody can be asked for another order
    page.get_by_role("button", name="Show all").click()
    expect(lines).to_have_count(6)
    page.get_by_role("button", name="Go to token 21, step 2").click()
    expect(page.locator(".pp-tokens h4")).to_have_text("Token 21 of 40")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []


def test_15_4_a_strip_of_differences_opens_its_answer_at_the_token_that_was_clicked(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    path = mismatched(tmp_path / "run", cut=2)
    with Run(path) as run:
        told = kept_disagreement(run)
    assert told is not None
    browsing = Browsing(str(path))
    made, _ = shown(page, steps=8, views=WITH_SAMPLES, topics=TOPICS)
    verdict = {"findings": [], "looking": True, "whole": True, "ledger": FUNNEL, "disagreement": told}
    host.send(page, made.state(complete_step=7, verdict=verdict))
    page.get_by_role("tab", name="Tokens").click()
    figure, strips = page.locator(".pp-disagree"), [one for one in told["strips"] if one["step"] > 0]
    first = strips[0]
    strip = figure.get_by_role("button", name=f"Open {first['name']} at token {first['token']}:")
    curve = figure.get_by_role(
        "img", name=re.compile(r"^Mean difference by token, median of the points: 0\.00\d+ nats")
    )
    expect(curve).to_be_visible()
    expect(figure.locator(".pp-curve-keys")).to_contain_text("each aligned at its first token that differs")
    strip.focus()
    page.keyboard.press("Enter")
    answer(page, browsing)
    answer(page, browsing)
    row = first["key"][2]
    expect(page.locator(".pp-answer h3")).to_have_text(f"Answer {row}")
    expect(page.locator(".pp-step")).to_have_text(f"step {first['step']}")
    token = page.get_by_role("slider", name="Token")
    expect(token).to_be_focused()  # the keyboard goes with it
    expect(token).to_have_attribute("aria-valuenow", str(first["token"]))
    expect(page.locator(".pp-sample-line[data-open]")).to_contain_text(f"Answer {row}")  # and it stands in the list
    page.get_by_role("tab", name="Tokens").click()
    picture = strip.locator("svg")
    picture.scroll_into_view_if_needed()
    wide = box(picture)["width"]
    part = len(first["tops"]) // 3
    picture.click(position={"x": wide * (part + 0.5) / len(first["tops"]), "y": 5})
    answer(page, browsing)
    answer(page, browsing)
    expect(token).to_have_attribute("aria-valuenow", str(first["tops"][part]))
    browsing.close()
