"""Item 3 of the verdict in a browser: the strip on top of the panel, the places that it leads to, and its keys."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from probe.views.server.server import PageServer
from tests.views import stub_host as host
from tests.views.panel_findings import TOPICS, finding
from tests.views.panel_looks import every_text_can_be_read, nothing_overflows
from tests.views.panel_page import box, expect, frames, resized, shown, store, up_to_date
from tests.views.test_axe import AXE, found
from tests.waiting import until
from tests.zoo import planting

pytestmark = [pytest.mark.browser, pytest.mark.slow]


LEAK = finding(
    "alarm",
    "device_leak",
    "64 MiB more stay on the device of rank 2 after each sync_weights since step 3; memory runs out near step 551.",
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
    page.get_by_role("button", name="1 suggested change to the settings").click()
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
            "1 other metric had NaN later."
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
