"""Item 3 of the verdict in a browser: the strip on top of the panel, the numbers at the tabs, and where they lead."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from probe.analysis.advice import overrides
from probe.opened import Run
from probe.records import GIB
from probe.views.panel.browsing import Browsing, kept
from probe.views.panel.lanes import kept as kept_lanes
from probe.views.panel.what_if import kept as kept_batches
from probe.views.panel.what_if import with_limits
from probe.views.server.server import PageServer
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_what_if_in_pages import CONFIG
from tests.served_run import served_run
from tests.told_samples import told_samples
from tests.views import stub_host as host
from tests.views.panel_page import box, card, expect, frames, resized, shown, store, to_view, up_to_date
from tests.views.test_axe import AXE, found
from tests.views.test_panel_layout import every_text_can_be_read, look, nothing_overflows
from tests.waiting import until
from tests.zoo import planting

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TOPICS = {"overview": "overview", "memory": "memory", "token_balance": "tokens", "reductions": "metrics"}
NOWHERE = dict.fromkeys(("step", "role", "phase", "micro_batch", "rank", "process"))


def finding(kind: str, name: str, sentence: str, topic: str = "overview", **more: Any) -> dict[str, Any]:
    """A finding as a page is told it."""
    where = {**NOWHERE, **more.pop("where", {})}
    return {
        "kind": kind,
        "name": name,
        "topic": topic,
        "sentence": sentence,
        "why": "",
        "since": None,
        "change": None,
        "where": where,
        **more,
    }


LEAK = finding(
    "alarm",
    "device_leak",
    "64 MiB more stay on the device of rank 2 after each sync_weights since step 3; memory ends near step 551.",
    "memory",
    why="Each step adds 64 MiB that neither tokens nor the longest sequence explain; sync_weights keeps all of it.",
    where={"rank": 2, "step": 3},
    change={
        "advice": "It gains 155 steps until the leak is found.",
        "setting": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "line": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12288",
        "value": "12288",
        "now": "16384",
    },
)
NAN = finding("alarm", "nan", f"NaN went into {host.NASTY}.", "reductions", where={"step": 5, "rank": 1})
UNEVEN = finding("tuning", "uneven", "Micro-batches of update are uneven: 1.4 times the mean.", "token_balance")
PEAK = finding("fine", "peak", "The largest peak was 9.2 GiB.", "memory")
UNKNOWN = finding(
    "withheld",
    "agreement",
    "Whether rollout and training agree about their tokens isn't known: the rollout's log-probabilities weren't "
    "recorded.",
    "token_balance",
    change={
        "advice": "Record them.",
        "setting": "actor_rollout_ref.rollout.calculate_log_probs",
        "line": "actor_rollout_ref.rollout.calculate_log_probs=True",
        "value": "True",
        "now": "False",
    },
)
FEW = finding("withheld", "few_steps", "8 steps have ended, too few to say whether memory leaks (takes 16).")


def judged(page: Any, *findings: dict[str, Any], steps: int = 8, **state: Any) -> host.Encoder:
    """A panel that was told these findings."""
    made, _ = shown(page, steps=steps, topics=TOPICS)
    told = {"findings": list(findings), "looking": True, "whole": True}
    host.send(page, made.state(complete_step=steps, verdict=told, **state))
    expect(page.locator(".pp-found-first")).to_be_visible()
    return made


def test_3_the_worst_finding_stands_below_the_tabs_with_its_change_and_the_rest_unfolds(page: Any) -> None:
    judged(page, LEAK, NAN, UNEVEN, PEAK)
    strip = page.get_by_role("region", name="What was found")
    expect(strip.locator("h3")).to_have_text(f"Alarm {LEAK['sentence']}")
    expect(strip.locator(".pp-why")).to_have_text(LEAK["why"])
    expect(strip.locator("code")).to_have_text("actor_rollout_ref.actor.ppo_max_token_len_per_gpu: 16384 → 12288")
    until(
        lambda: [box(one) for one in (page.locator(".pp-tabs"), strip, page.locator(".pp-lead"))],
        lambda places: all(one["y"] + one["height"] <= two["y"] + 1 for one, two in itertools.pairwise(places)),
    )
    expect(strip.locator(".pp-more")).to_be_hidden()
    more = strip.get_by_role("button", name="2 more")
    more.focus()
    page.keyboard.press("Enter")
    expect(strip.locator(".pp-more li")).to_have_count(2)
    expect(strip.locator(".pp-more li").first).to_contain_text(host.NASTY)  # as a text
    expect(strip.locator(".pp-more li").last).to_contain_text(UNEVEN["sentence"])
    assert page.evaluate("globalThis.__hurt") is None
    fewer = strip.get_by_role("button", name="Fewer")
    expect(fewer).to_be_focused()
    expect(fewer).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Enter")
    expect(strip.locator(".pp-more")).to_be_hidden()


def test_3_the_button_moves_all_charts_to_the_place_and_keeps_the_focus(page: Any) -> None:
    judged(page, LEAK, NAN)
    go = page.get_by_role("button", name="Go to step 3")
    go.click()
    expect(page.locator(".pp-step")).to_have_text("step 3")
    expect(page.get_by_label("Rank", exact=True)).to_have_value("rank 2")
    expect(page.locator("[data-view=memory]")).to_have_attribute("aria-selected", "true")
    expect(go).to_have_attribute("aria-disabled", "true")
    expect(go).to_be_focused()
    page.get_by_role("button", name="1 more").click()
    page.get_by_role("button", name="Go to step 5").click()
    expect(page.locator(".pp-step")).to_have_text("step 5")
    expect(page.locator("[data-view=metrics]")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".pp-verdict h3")).to_contain_text("NaN went into")  # of this view, among alarms
    assert store(page, "[...store.views][0].ui.rank") == "rank 1"


def test_3_copy_takes_the_line_that_can_be_pasted(page: Any) -> None:
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { globalThis.__copied = text; }}})"
    )
    made = judged(page, LEAK)
    page.get_by_role("button", name=re.compile("^Copy actor_")).click()
    expect(page.locator(".pp-chip button")).to_have_text("Copied")
    assert page.evaluate("globalThis.__copied") == LEAK["change"]["line"]
    # 16, item 4: advice unfolds as it is printed, and is copied change by change or as a patch.
    gains = ["trainer.balance_batch: false → true", "  imbalance over ranks 1.31× → 1.03×"]
    change = {**LEAK["change"], "told": gains}
    advice = {"changes": [{"told": gains, "line": "trainer.balance_batch=True"}], "patch": "--- a/config.yaml\n"}
    told = {"findings": [{**LEAK, "change": change}], "looking": True, "whole": True, "advice": advice}
    host.send(page, made.state(complete_step=8, verdict=told))
    expect(page.locator(".pp-gains")).to_have_text(gains[1].strip())
    page.get_by_role("button", name="1 change to the settings").click()
    unfolded = page.get_by_role("group", name="Changes to the settings")
    expect(unfolded.locator("code").first).to_have_text("\n".join(gains))
    for name, copied in (
        ("Copy trainer.balance_batch=True", "trainer.balance_batch=True"),
        ("Copy patch", advice["patch"]),
    ):
        unfolded.get_by_role("button", name=name).click()
        expect(unfolded.get_by_role("button", name=name)).to_have_text("Copied")
        assert page.evaluate("globalThis.__copied") == copied


def test_3_tabs_have_the_number_of_findings_of_their_view_red_or_amber(page: Any) -> None:
    made = judged(page, LEAK, NAN, UNEVEN, PEAK)
    for view, tone in (("memory", "alarm"), ("metrics", "alarm"), ("tokens", "tune")):
        mark = page.locator(f"[data-view={view}] .pp-findings")
        expect(mark).to_have_text("1")
        expect(mark).to_have_attribute("data-tone", tone)
    expect(page.locator("[data-view=time] .pp-findings")).to_be_hidden()
    host.send(page, made.state(complete_step=8, verdict={"findings": [PEAK], "looking": True, "whole": True}))
    expect(page.locator("[data-view=memory] .pp-findings")).to_be_hidden()


def test_3_silence_is_a_result_and_each_state_has_its_word(page: Any) -> None:
    made = judged(page, PEAK)
    title = page.locator(".pp-verdict h3")
    expect(title).to_have_text("All is well Nothing is wrong and nothing is worth a change.")
    expect(page.locator(".pp-filled")).to_be_hidden()
    page.get_by_role("button", name="What was checked").click()
    expect(page.locator(".pp-more li")).to_contain_text([PEAK["sentence"]])
    expect(page.locator(".pp-more li button")).to_be_hidden()
    found_nothing = {"findings": [], "looking": True, "whole": True}
    host.send(page, made.state(complete_step=None, verdict=found_nothing))
    expect(title).to_have_text("Starting No step has ended yet.")
    host.send(page, made.state(complete_step=None, verdict=found_nothing, finished=True))
    expect(title).to_have_text("Silent No step has ended in this run.")
    host.send(page, made.state(complete_step=8, verdict={"findings": None, "looking": False, "whole": False}))
    expect(page.locator(".pp-found-first")).to_be_hidden()  # what failed says nothing


def test_3_what_could_not_be_judged_stands_under_what_was_checked_with_what_is_missing(page: Any) -> None:
    made = judged(page, PEAK, UNKNOWN, FEW)
    expect(page.locator(".pp-verdict h3")).to_have_text("All is well Nothing is wrong and nothing is worth a change.")
    expect(page.locator(".pp-why")).to_have_text("2 questions couldn't be judged.")
    page.get_by_role("button", name="What was checked").click()
    lines = page.locator(".pp-more li")
    expect(lines).to_contain_text([PEAK["sentence"], f"Not judged: {UNKNOWN['sentence']}", FEW["sentence"]])
    expect(lines.nth(1)).to_contain_text("Record them. actor_rollout_ref.rollout.calculate_log_probs=True")
    expect(lines.locator("button:visible")).to_have_count(0)
    expect(page.locator(".pp-findings:visible")).to_have_count(0)  # no view has anything to do
    # Beside an alarm it stands back, and it is nothing to walk to.
    found = {"findings": [NAN, PEAK, UNKNOWN], "looking": True, "whole": True}
    host.send(page, made.state(complete_step=8, verdict=found))
    expect(page.locator(".pp-verdict h3")).to_contain_text("NaN went into")
    expect(page.get_by_role("button", name=re.compile("more$"))).to_be_hidden()
    host.send(page, made.state(complete_step=8, verdict={**found, "findings": [UNKNOWN]}))
    expect(page.locator(".pp-found-first")).to_be_hidden()  # who has judged nothing doesn't say that all is well


def test_3_an_alarm_is_told_to_a_screen_reader_once(page: Any) -> None:
    made = judged(page, UNEVEN)
    host.send(page, made.state(complete_step=8, verdict={"findings": [LEAK], "looking": True, "whole": True}))
    expect(page.locator("[aria-live]")).to_have_text(f"Alarm: {LEAK['sentence']}")


def test_3_what_had_the_focus_may_go_and_the_panel_keeps_it(page: Any) -> None:
    made = judged(page, LEAK)
    page.locator(".pp-filled").focus()
    host.send(page, made.state(complete_step=8, verdict={"findings": [PEAK], "looking": True, "whole": True}))
    expect(page.locator(".pp-filled")).to_be_hidden()
    expect(page.locator(".probe-panel")).to_be_focused()


RAISED = finding(
    "alarm",
    "failed",
    f"Rank 1 raised ValueError in update · micro-batch 2 · step 8: {host.NASTY}.",
    where={"rank": 1, "step": 8},
    failure=True,
    folded=["Rank 0 failed 0.51 s after it: RuntimeError, Connection closed by peer."],
    sql="select * from failures where process = 'rank-00001'\n    and exception_id = 1",
)
MORTEM = {
    "sentence": RAISED["sentence"],
    "why": "It came from batch.py, line 24.",
    "parts": [
        {"title": "Where", "lines": ["step 8 · rank 1"], "head": [], "rows": [], "left_out": 0, "text": "", "long": 0},
        {
            "title": "Exception",
            "lines": [f"ValueError: {host.NASTY}"],
            "head": [],
            "rows": [],
            "left_out": 0,
            "text": "Traceback (most recent call last): …",
            "long": True,
        },
        {
            "title": "In this order",
            "lines": [],
            "head": ["when", "who"],
            "rows": [["+0 ms", "rank 1"], ["+510 ms", "rank 0"]],
            "left_out": 3,
            "text": "",
            "long": False,
        },
    ],
}


def test_3_the_bracket_keys_walk_from_finding_to_finding(page: Any) -> None:
    judged(page, LEAK, NAN, UNEVEN, PEAK)
    page.locator(".probe-panel").focus()
    page.keyboard.press("]")
    expect(page.locator(".pp-step")).to_have_text("step 3")
    expect(page.locator("[data-view=memory]")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("]")
    expect(page.locator(".pp-step")).to_have_text("step 5")
    expect(page.locator("[data-view=metrics]")).to_have_attribute("aria-selected", "true")
    expect(page.locator("[aria-live]")).to_have_text(f"Finding 2 of 3: {NAN['sentence']}")
    page.keyboard.press("]")
    expect(page.locator(".pp-verdict h3")).to_contain_text(UNEVEN["sentence"])  # though it is no alarm
    page.keyboard.press("]")
    expect(page.locator(".pp-verdict h3")).to_contain_text("64 MiB more")  # the worst follows the last
    page.keyboard.press("[")
    expect(page.locator(".pp-verdict h3")).to_contain_text(UNEVEN["sentence"])
    page.locator("[data-view=overview]").click()  # who goes elsewhere sees the worst again
    expect(page.locator(".pp-verdict h3")).to_contain_text("64 MiB more")
    assert page.evaluate("globalThis.__hurt") is None


def test_3_brackets_are_keys_of_the_panel_only_where_nobody_types(page: Any) -> None:
    judged(page, LEAK, NAN)
    page.locator("[data-view=metrics]").click()
    search = page.locator("input[type=search]:visible").first
    search.focus()
    page.keyboard.type("]")
    expect(search).to_have_value("]")
    expect(page.locator(".pp-step")).to_have_text("step 8")
    search.evaluate("(input) => input.blur()")
    page.keyboard.press("]")  # the panel has no focus
    expect(page.locator(".pp-step")).to_have_text("step 8")
    page.locator(".probe-panel").focus()
    page.keyboard.press("Control+]")  # a shortcut of somebody else's
    expect(page.locator(".pp-step")).to_have_text("step 8")
    page.keyboard.press("Alt+]")  # as it is typed on many keyboards
    expect(page.locator(".pp-step")).to_have_text("step 3")
    expect(page.locator(".pp-foot")).to_contain_text("finding")


def test_3_the_map_is_marked_where_findings_begin(page: Any) -> None:
    made = judged(page, LEAK, NAN, {**UNEVEN, "since": 2})
    until(
        lambda: [page.locator(f".pp-map-{kind}").get_attribute("d") or "" for kind in ("alarm", "tune")],
        lambda marks: [mark.count("M") for mark in marks] == [2, 1],
    )
    expect(page.get_by_label("Step", exact=True)).to_have_attribute(
        "aria-description", "Findings begin in step 2, 3, 5"
    )
    host.send(page, made.state(complete_step=8, verdict={"findings": [PEAK], "looking": True, "whole": True}))
    expect(page.locator(".pp-map-alarm")).to_have_attribute("d", "")


def test_3_what_follows_unfolds_under_its_cause_and_the_query_for_its_rows_can_be_copied(page: Any) -> None:
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { globalThis.__copied = text; }}})"
    )
    judged(page, RAISED, UNEVEN)
    follows = page.get_by_role("button", name="1 thing follows from it")
    follows.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="What follows from it")).to_have_text(RAISED["folded"][0])
    expect(follows).to_be_focused()
    page.get_by_role("button", name="Rows behind this").click()
    expect(page.get_by_role("group", name="Rows behind this").locator("code")).to_have_text(RAISED["sql"])
    page.get_by_role("button", name="Copy SQL").first.click()
    until(lambda: page.evaluate("globalThis.__copied"), lambda copied: copied == RAISED["sql"])
    page.keyboard.press("]")
    page.keyboard.press("]")
    expect(page.locator(".pp-verdict h3")).to_contain_text(UNEVEN["sentence"])
    expect(page.get_by_role("button", name="Rows behind this")).to_be_hidden()  # it has none
    expect(page.get_by_role("group", name="Rows behind this")).to_be_hidden()


def test_3_a_run_that_was_ended_is_failed_and_opens_its_post_mortem(page: Any) -> None:
    made = judged(page, RAISED)
    expect(page.locator(".pp-verdict .pp-kind")).to_have_text("Alarm")  # somebody still writes
    expect(page.get_by_role("button", name="Post-mortem")).to_be_hidden()
    verdict = {"findings": [RAISED], "looking": True, "whole": True, "post_mortem": MORTEM}
    host.send(page, made.state(complete_step=8, verdict=verdict, writers="gone", newest_at=1.0))
    expect(page.locator(".pp-verdict .pp-kind")).to_have_text("Failed")
    expect(page.locator(".pp-status").first).to_have_text("failed")
    page.get_by_role("button", name="Post-mortem").click()
    told = page.get_by_role("group", name="Post-mortem")
    expect(told).to_contain_text(f"ValueError: {host.NASTY}")  # as a text
    expect(told.locator("tbody tr")).to_have_count(2)
    expect(told).to_contain_text("3 rows more: run.post_mortem() has them.")
    expect(told).not_to_contain_text("Rank 1 raised")  # which the strip says
    expect(told.locator("pre")).to_be_hidden()
    told.get_by_text("Traceback", exact=True).click()
    expect(told.locator("pre")).to_be_visible()
    assert page.evaluate("globalThis.__hurt") is None
    page.get_by_role("button", name="Post-mortem").click()
    expect(told).to_be_hidden()


def test_3_metrics_are_shown_where_the_chosen_rank_logs_none(page: Any) -> None:
    judged(page, LEAK, NAN)
    facets = page.locator(".pp-facet")
    page.locator("[data-view=metrics]").click()
    expect(facets.first).to_be_visible()
    up_to_date(page)
    many = facets.count()
    page.locator("[data-view=overview]").click()
    page.locator(".probe-panel").focus()
    page.keyboard.press("]")
    page.keyboard.press("]")  # to step 5, rank 1
    expect(page.get_by_label("Rank", exact=True)).to_have_value("rank 1")
    expect(facets).to_have_count(many)
    expect(page.locator(".pp-tools").first).to_contain_text("rank 1 logs none")
    page.get_by_label("Rank", exact=True).select_option("rank 0")
    expect(page.locator(".pp-tools").first).not_to_contain_text("logs none")
    expect(facets).to_have_count(many)


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1040),
        pytest.param("dark", 1040, marks=pytest.mark.thorough),
        pytest.param("light", 400, marks=pytest.mark.thorough),
        ("dark", 400),
    ],
)
def test_3_the_strip_fits_can_be_read_and_axe_finds_nothing(page: Any, theme: str, width: int, shots: Path) -> None:
    page.emulate_media(color_scheme=theme)
    resized(page, width, 900)
    for at, findings in enumerate([[LEAK, NAN, UNEVEN], [UNEVEN, LEAK], [PEAK, UNKNOWN, FEW], [RAISED, LEAK]]):
        if at:
            page.reload()
        made = judged(page, *findings)
        if RAISED in findings:
            verdict = {"findings": findings, "looking": True, "whole": True, "post_mortem": MORTEM}
            host.send(page, made.state(complete_step=8, verdict=verdict, finished=True))
            for name in ("Post-mortem", "Rows behind this", "1 thing follows from it"):
                page.get_by_role("button", name=name).click()
        page.locator(".pp-acts button").first.click()
        frames(page)  # what unfolds is there
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        page.screenshot(path=shots / f"strip_{theme}_{width}_{at}.png")
        nothing_overflows(page)
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-verdict, .pp-tabs") == []


def test_3_the_page_of_a_planted_fault_says_it_and_goes_there(
    browser: Any, tmp_path: Path, shots: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = planting.planted(tmp_path_factory, "nan", tmp_path / "run")
    with PageServer(run) as server:
        server.start()
        server.follow()
        page = browser.new_context(viewport={"width": 1040, "height": 900}).new_page()
        page.set_default_timeout(180_000)
        page.goto(server.url)
        title = page.locator(".pp-verdict h3")
        expect(title).to_have_text(
            "Alarm NaN went into actor/pg_loss (update · micro-batch 1 · step 9 · rank 1): 5 of 8 values; "
            "1 other metric had some after it."
        )
        expect(page.locator("[data-view=metrics] .pp-findings")).to_have_text("1")
        page.get_by_role("button", name="Go to step 9").click()
        expect(page.locator(".pp-step")).to_have_text("step 9")
        expect(page.get_by_label("Rank", exact=True)).to_have_value("rank 1")
        page.get_by_role("tab", name="Metrics").click()
        for metric, now in (("actor/pg_loss", "NaN"), ("reward/mean", "0.")):
            chart = page.get_by_role("region", name=metric, exact=True)
            expect(chart.locator(".pp-key b")).to_contain_text(now)  # and not the last number before it
        page.screenshot(path=shots / "strip_nan.png")
        page.reload()  # a page that comes later finds it in the snapshot
        expect(title).to_contain_text("NaN went into actor/pg_loss")
        page.context.close()


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


#: Questions about samples that nobody has answered.
ASKED = "__host.sent.filter(({ ask, done }) => ask === 'samples' && !done)"


def answer(page: Any, browsing: Browsing) -> None:
    """Answer the next questions about samples, as the process beside a kernel does."""
    until(lambda: page.evaluate(ASKED))
    answer_all(page, browsing)


def answer_all(page: Any, browsing: Browsing) -> None:
    """Answer the questions that there are by now."""
    for question in page.evaluate(f"{ASKED}.map((one) => (one.done = 1, one))"):
        answers = browsing.answer({**question, "attempt": None})
        host.send(page, {"head": {"v": 1, "t": "b", "seq": 0, "q": question["q"], "answer": answers}})


def test_15_5_a_finding_leads_to_the_samples_of_its_micro_batch_and_from_there_to_each_token(
    page: Any, tmp_path: Path, shots: Path
) -> None:
    browsing = Browsing(str(told_samples(tmp_path / "run")))
    views = [*host.VIEWS, {"id": "samples", "title": "Samples", "about": "Answers.", "panels": []}]
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
    begins = [re.compile(rf"^{text}\b") for text in ("b, mean", "Answer 4", "Answer 3")]
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
    expect(page.locator(".pp-samples > .pp-read")).to_contain_text("Saved copy: the worst answers of the last step")
    expect(page.locator(".pp-tokens h4")).to_have_text(re.compile(r"^Token \d of 3$"))
    expect(page.locator(".pp-sample-tools")).to_be_hidden()  # nobody can be asked for another order
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []


WHAT_IF = [{"id": "what_if", "title": "What if", "about": "Other settings.", "panels": []}]
CAP = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that verl's rule has cut, whose micro-batches tell what they need and take."""
    path = tmp_path_factory.mktemp("cut") / "run"
    planted(path, Planted(steps=4, config=CONFIG, total=50 * GIB)).close()
    return path


def numbers(page: Any, name: str) -> Any:
    """The cells of a line of the table: as it was, and what if."""
    return page.locator(f".pp-lines [data-number={name}] .pp-number")


def test_16_2_sliders_answer_in_the_page_and_everything_else_is_asked(page: Any, cut: Path, shots: Path) -> None:
    browsing = Browsing(str(cut))
    with Run(cut) as run:
        packet = kept_batches(run)
        wanted = run.what_if(cap_tokens=4096, steps=[4]).number("micro_batches")
        advice = run.advise()
    made, _ = shown(page, steps=4, views=[*host.VIEWS, *WHAT_IF])
    host.send(page, made.state(complete_step=4, what_if=packet))
    page.click("[data-view=what_if]")
    expect(page.get_by_role("slider", name=CAP)).to_be_visible()
    expect(page.locator(".pp-setting-risk:visible")).to_have_count(0)  # nobody has worked it out yet
    limited = with_limits(packet, advice)
    host.send(page, made.state(complete_step=4, what_if=limited))
    cap = page.get_by_role("slider", name=CAP)
    # 16, item 2: the slider is hatched where the risk of out-of-memory is too large, and the best below it is marked.
    (phase,) = limited["phases"]
    limit, (setting,) = phase["caps"], [one for one in phase["settings"] if one["name"] == "cap_tokens"]
    assert 8192 < limit["best"] < limit["risky"] < max(setting["choices"])
    track, hatched, mark = (page.locator(f".pp-setting-{one}").first for one in ("track", "risk", "best"))
    expect(hatched).to_be_visible()
    share = sum(one < limit["risky"] for one in setting["choices"]) / len(setting["choices"])

    def well_placed(places: list[dict[str, float]]) -> bool:
        whole, bad, best = places
        return (
            bad["x"] + bad["width"] == pytest.approx(whole["x"] + whole["width"], abs=1)
            and (bad["x"] - whole["x"]) / whole["width"] == pytest.approx(share, abs=0.03)
            and whole["x"] < best["x"] + best["width"] / 2 < bad["x"]
        )

    until(lambda: [box(one) for one in (track, hatched, mark)], well_placed)
    expect(page.locator(".pp-read", has_text="Hatched: the risk of running out of memory")).to_contain_text("above 2 %")
    page.get_by_role("button", name="Best within 2 % risk").click()
    expect(cap).to_have_attribute("aria-valuetext", f"{limit['best']:,}, best within 2 % risk")
    page.get_by_role("spinbutton", name=CAP).fill(str(limit["risky"]))
    page.get_by_role("spinbutton", name=CAP).press("Enter")
    expect(cap).to_have_attribute("aria-valuetext", f"{limit['risky']:,}, risk of running out of memory above 2 %")
    page.get_by_role("button", name="Back to the recorded").click()
    expect(cap).to_have_attribute("aria-valuetext", "8,192, as it was")
    expect(page.locator(".pp-what-if h3").first).to_have_text("What if: actor · update_actor, step 4")
    expect(page.locator(".pp-change")).to_be_hidden()
    field = page.get_by_role("spinbutton", name=CAP)
    field.fill("4096")
    host.send(page, made.state(complete_step=4, what_if=packet))  # while somebody types
    frames(page)
    expect(field).to_have_value("4096")
    field.press("Enter")
    expect(page.locator(".pp-what-if .pp-sentence").first).to_have_text("Packed anew in this page.")
    expect(numbers(page, "micro_batches")).to_have_text([f"{one:g}" for one in wanted])
    expect(numbers(page, "predicted_s").nth(1)).to_contain_text("±")
    expect(numbers(page, "predicted_peak_bytes").nth(1)).to_contain_text("±")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []
    page.evaluate("navigator.clipboard.writeText = (text) => { globalThis.__copied = text; return Promise.resolve(); }")
    page.get_by_role("button", name="Copy the change").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("__copied") == "\n".join(overrides({CAP: 4096}))
    field.fill("10")
    field.press("Enter")
    expect(page.locator(".pp-what-if .pp-sentence").first).to_contain_text("It can't be cut so: The longest row has")
    expect(numbers(page, "micro_batches").nth(1)).to_have_text("–")
    page.get_by_role("button", name="Back to the recorded").click()
    expect(cap).to_have_attribute("aria-valuetext", "8,192, as it was")
    cap.focus()
    for key in ("End", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator(".pp-step")).to_have_text("step 4")  # the key was the slider's alone
    expect(page.locator(".pp-read", has_text="No micro-batch above")).to_be_visible()

    page.get_by_role("switch", name="balance_batch").click()  # that takes all ranks: the run is asked
    answer(page, browsing)
    expect(page.locator(".pp-what-if .pp-sentence").first).to_have_text("Worked out from the run.")
    expect(page.locator(".pp-patch ins").last).to_have_text("+ trainer.balance_batch: false")
    for theme, width in (("light", 1040), ("dark", 400)):
        page.emulate_media(color_scheme=theme)
        resized(page, width)
        expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
        page.screenshot(path=shots / f"what_if_{theme}_{width}.png", full_page=True)
        nothing_overflows(page)
        every_text_can_be_read(page)
        if AXE.exists():
            assert found(page, AXE.read_text(), ".pp-what-if") == []
    browsing.close()


def test_16_2_several_steps_are_asked_in_pieces_and_can_be_cancelled(page: Any, cut: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("probe.views.panel.what_if.SLICE_S", -1.0)  # a step a piece
    browsing = Browsing(str(cut))
    made, _ = shown(page, steps=4, views=[*host.VIEWS, *WHAT_IF])
    host.send(page, made.state(complete_step=4, what_if=None))
    page.click("[data-view=what_if]")
    answer(page, browsing)  # the batches: nobody has told of them before
    page.get_by_role("combobox", name="Steps").select_option("20")
    answer(page, browsing)
    expect(page.get_by_role("progressbar")).to_have_attribute("max", "4")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".pp-what-if > .pp-read").first).to_have_text(
        "Cancelled: what is shown is what was asked before."
    )
    field = page.get_by_role("spinbutton", name=CAP)
    field.fill("4096")
    field.press("Enter")

    def sentence() -> str:
        answer_all(page, browsing)
        return str(page.locator(".pp-what-if .pp-sentence").first.inner_text())

    until(sentence, lambda text: text == "Worked out from the run, over 4 steps.")
    with Run(cut) as run:
        wanted = run.what_if(cap_tokens=4096).number("micro_batches")
    told = lambda: [float(one) for one in numbers(page, "micro_batches").all_inner_texts()]  # noqa: E731
    until(told, lambda found: found == pytest.approx(wanted, abs=0.01))
    browsing.close()


def test_16_2_a_saved_panel_answers_what_it_can_and_says_what_it_cant(page: Any, cut: Path) -> None:
    with Run(cut) as run:
        packet = kept_batches(run)
    made, _ = shown(page, steps=2)
    head, body = made.snapshot(live=False, what_if=packet)
    page.reload()
    host.opened(page, "saved", snapshot=(head, body), views=WHAT_IF)
    page.get_by_role("slider", name=CAP).press("Home")
    expect(page.locator(".pp-what-if .pp-sentence").first).to_have_text("Packed anew in this page.")
    expect(page.get_by_role("switch", name="balance_batch")).to_be_disabled()
    expect(page.get_by_role("combobox", name="Steps")).to_be_hidden()
    expect(page.locator(".pp-what-if > .pp-read").first).to_contain_text("what is greyed needs the run")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []


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
    expect(page.locator(".pp-lanes .pp-read").first).to_have_text("This copy keeps the replicas of step 3 alone.")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []
