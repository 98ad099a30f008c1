"""The panel's view of other settings in a browser: what it answers by itself and what it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.analysis.advice import overrides
from probe.opened import Run
from probe.records import GIB
from probe.views.panel.browsing import Browsing
from probe.views.panel.what_if import kept as kept_batches
from probe.views.panel.what_if import with_limits
from tests.analysis.planted_batches import Planted, planted
from tests.analysis.test_what_if_in_pages import CONFIG
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_answers import answer, answer_all
from tests.views.panel_looks import every_text_can_be_read, nothing_overflows
from tests.views.panel_page import box, expect, frames, resized, shown
from tests.views.test_axe import AXE, found
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


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
    made, _ = shown(page, steps=4, views=[*boards.VIEWS, *WHAT_IF])
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
    expect(page.locator(".pp-what-if .pp-sentence").first).to_have_text("Packed again in this page.")
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
    expect(page.locator(".pp-what-if .pp-sentence").first).to_contain_text(
        "The rows can't be packed with these settings: The longest row has"
    )
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
    made, _ = shown(page, steps=4, views=[*boards.VIEWS, *WHAT_IF])
    host.send(page, made.state(complete_step=4, what_if=None))
    page.click("[data-view=what_if]")
    answer(page, browsing)  # the batches: nobody has told of them before
    page.get_by_role("combobox", name="Steps").select_option("20")
    answer(page, browsing)
    expect(page.get_by_role("progressbar")).to_have_attribute("max", "4")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".pp-what-if > .pp-read").first).to_have_text(
        "Cancelled: the numbers are those of the question before."
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
    expect(page.locator(".pp-what-if .pp-sentence").first).to_have_text("Packed again in this page.")
    expect(page.get_by_role("switch", name="balance_batch")).to_be_disabled()
    expect(page.get_by_role("combobox", name="Steps")).to_be_hidden()
    expect(page.locator(".pp-what-if > .pp-read").first).to_contain_text("what is greyed needs the run")
    assert page.evaluate("__host.sent.filter(({ ask }) => ask === 'samples')") == []
