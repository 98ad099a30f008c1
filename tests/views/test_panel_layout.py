"""G: the panel as the design draws it: what stands where, and what can be read."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from probe import dashboards
from tests.views import stub_boards as boards
from tests.views import stub_host as host
from tests.views.panel_looks import every_text_can_be_read, look, nothing_overflows
from tests.views.panel_page import box, card, frames, resized, shown, still, tile, to_view
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect


# ---- what stands where


def test_g_head_tabs_tiles_controls_and_figures_stand_below_each_other(page: Any) -> None:
    shown(page, steps=4)
    resized(page, 1064)
    parts = [".pp-head", ".pp-tabs", ".pp-tiles", ".pp-controls", ".pp-grid", ".pp-foot"]
    until(
        lambda: [box(page.locator(one)) for one in parts],
        lambda places: all(one["y"] + one["height"] <= two["y"] + 1 for one, two in itertools.pairwise(places)),
    )
    assert page.locator(".pp-verdict").inner_text() == ""  # nobody judges here


def test_g_neither_head_nor_tiles_say_anything_of_the_panel_or_of_probe(page: Any) -> None:
    made, _ = shown(page, steps=4)
    host.send(page, made.state(cost={"kernel_ms": 7.5, "bytes": 900}))
    expect(page.locator(".pp-facts-line")).to_have_text(re.compile(r"^step 4 · 4 ranks · [\d.]+ s$"))
    frames(page)  # the state has been drawn
    titles = page.locator(".pp-tile h3").all_inner_texts()
    assert "probe's own cost" not in titles
    assert 0 < len(titles) <= 6
    assert not re.search(r"panel costs|7\.5", page.locator(".probe-panel").inner_text())


@pytest.mark.parametrize(("width", "across"), [(1064, None), (424, 2)])
def test_g_tiles_stand_in_one_row_and_below_640_px_in_twos(page: Any, width: int, across: int | None) -> None:
    resized(page, width)
    shown(page, steps=4)

    def laid_out() -> tuple[list[int], list[int]]:
        """How many stand in each row, and how many should, of the tiles that are there by now."""
        tops = [box(one)["y"] for one in page.locator(".pp-tile").all()]
        begins = [at for at, top in enumerate(tops) if not at or abs(top - tops[at - 1]) > 2]  # one row: parts of a px
        each = across or max(len(tops), 1)
        should = [each] * (len(tops) // each) + [len(tops) % each] * bool(len(tops) % each)
        return [end - begin for begin, end in itertools.pairwise([*begins, len(tops)])], should

    until(laid_out, lambda found: found[0] and found[0] == found[1])


def test_g_figures_have_a_title_a_sentence_and_how_to_read_them_but_no_frame_and_no_fold(page: Any) -> None:
    shown(page, steps=4, view="memory")
    one = card(page, "memory_timeline")
    expect(one.locator(".pp-sentence")).to_have_text("What is drawn.")
    expect(one.locator("figcaption")).to_have_text("How to read it. What to do about it.")
    assert page.locator(".pp-card details").count() == 0
    looks = (
        "(one) => { const { borderTopWidth, boxShadow } = getComputedStyle(one); return [borderTopWidth, boxShadow]; }"
    )
    assert one.evaluate(looks) == ["0px", "none"]


def test_g_controls_stay_in_sight(page: Any) -> None:
    resized(page, 1240, 500)
    shown(page, view="memory")
    expect(card(page, "memory_timeline").locator("canvas")).to_be_visible()
    page.evaluate("scrollTo(0, 400)")
    until(lambda: box(page.locator(".pp-controls"))["y"], lambda top: 0 <= top < 10)
    page.get_by_role("button", name="One step back").click()  # and can be used there
    expect(page.locator(".pp-step")).to_have_text("step 19")
    assert page.evaluate("scrollY") == 400


def test_g_controls_stay_in_sight_in_a_notebook_s_output(page: Any) -> None:
    """Whose outputs are scroll containers that never scroll."""
    page.add_style_tag(
        content=".jp-OutputArea-output, .jp-OutputArea { overflow: auto } #book { height: 700px; overflow: auto }"
    )
    shown(page, view="memory")
    page.evaluate("""() => {
        const panel = document.querySelector(".probe-panel").parentElement;
        const [book, area, output] = ["", "jp-OutputArea", "jp-OutputArea-output"].map((name) => {
            const made = document.createElement("div");
            made.className = name;
            return made;
        });
        book.id = "book";
        document.body.append(book);
        book.append(area);
        area.append(output);
        output.append(panel);
        book.scrollTop = 900;
    }""")
    until(
        lambda: (box(page.locator("#book"))["y"], box(page.locator(".pp-controls"))["y"]),
        lambda tops: tops[0] - 1 <= tops[1] < tops[0] + 10,
    )


def test_g_the_map_shows_the_time_of_each_step_and_dragging_it_scrubs(page: Any) -> None:
    shown(page, steps=12)
    bars = page.locator(".pp-map-bars")
    until(lambda: bars.get_attribute("d"), lambda path: path.count("M") == 11)  # and one for the step that is shown
    area = still(page.locator(".pp-map"))
    middle = lambda step: area["x"] + area["width"] * (step - 0.5) / 12  # noqa: E731  # of the step's bar
    page.mouse.move(middle(3), area["y"] + 10)
    page.mouse.down()
    expect(page.locator(".pp-step")).to_have_text("step 3")
    page.mouse.move(middle(7), area["y"] + 10, steps=3)
    page.mouse.up()
    expect(page.locator(".pp-step")).to_have_text("step 7")
    frame = lambda: box(page.locator(".pp-map-frame"))  # noqa: E731
    until(frame, lambda found: found["x"] + found["width"] / 2 == pytest.approx(middle(7), abs=2))
    expect(page.get_by_role("button", name="Follow")).to_have_text("Follow")
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Following")).to_be_visible()


def test_d_a_tile_names_the_rank_that_stands_out(page: Any, encoder: host.Encoder) -> None:
    panels = host.config("panel")["panels"]
    live = panels["overview_tiles"]["live"]
    tiles = [one | {"who": "rank", "window": 20} for one in live["tiles"] if one["id"] == "step_time"]
    panels["overview_tiles"]["live"] = live | {"tiles": tiles}
    host.opened(page, "panel", panels=panels)
    rows = [
        {"step": step, "rank": rank, "kind": "step", "name": "step", "scope": 10 * step + rank, "begin": 40.0 * step}
        | {"end": 40.0 * step + (15 if rank == 3 else 10)}
        for step in range(5)
        for rank in range(4)
    ]
    host.send(page, encoder.delta({"spans": rows[:8]}))
    one = tile(page, "Step time")
    expect(one.locator(".pp-means")).to_have_text("4 ranks: 10 s to 15 s.")  # of two steps nobody is named
    host.send(page, encoder.delta({"spans": rows[8:]}))
    expect(one.locator(".pp-means")).to_have_text("Rank 3: 15 s, the other 3 ranks: 10 s.")
    expect(one).to_have_attribute("aria-label", re.compile(r"Rank\s3: 15\ss"))
    page.get_by_label("Rank", exact=True).select_option("rank 1")
    expect(one.locator(".pp-means")).to_have_text("The slowest rank's time: the others wait for it.")


def test_g_the_numbers_of_a_figure_come_with_the_sql_that_gives_them(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    panels = host.config("panel")["panels"]
    panels["balance_bars"]["sql"] = "select 1 as one where {step} = 4"
    shown(page, steps=4, view="tokens", panels=panels)
    one = card(page, "balance_bars")
    one.get_by_role("button", name="Numbers of").click()
    copy = one.get_by_role("button", name="Copy SQL of")
    copy.click()
    expect(copy).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "select 1 as one where 4 = 4"
    assert card(page, "balance_heat").get_by_role("button", name="Copy SQL of").count() == 0  # has none


def with_tiles_of_today() -> dict[str, Any]:
    panels: dict[str, Any] = host.config("panel")["panels"]
    panels["overview_tiles"]["live"] = {"mark": "tiles", "tiles": [dict(one) for one in dashboards.overview_tiles()]}
    return panels


def test_g_six_tiles_stand_in_a_row_and_say_in_sentences_of_what_they_are(page: Any) -> None:
    resized(page, 1040)
    shown(page, steps=5, panels=with_tiles_of_today())
    tiles = page.locator(".pp-tile")
    expect(tiles).to_have_count(6)
    until(lambda: {box(one)["y"] for one in tiles.all()}, lambda tops: len(tops) == 1)
    reward = tile(page, "Reward, mean")
    expect(reward.locator(".pp-means")).to_have_text("Logged by the trainer.")
    expect(reward).to_have_attribute("data-status", "none")
    expect(reward.locator(".pp-note")).to_have_text(re.compile(r"^0\.\d+ to 0\.\d+ in 5 steps\.$"))
    for note in page.locator(".pp-note").all_inner_texts():
        assert re.fullmatch(r"[A-Z0-9].*\.", note, re.DOTALL), note
    caption = page.locator(".pp-caption")
    expect(caption).to_have_text(
        "Each number is the median of the last 5 steps; memory is the largest of the run. "
        "The line is the run, and its dot is step 5; dotted red is the capacity."
    )
    page.get_by_role("button", name="One step back").click()
    expect(caption).to_contain_text("Each number is of step 4. The line is the run, and its dot is step 4;")
    page.get_by_label("Window").select_option("steps10")
    expect(caption).to_contain_text("The line is the last 10 steps, and its dot is step 4;")


def test_g_without_a_reward_the_tile_says_who_has_not_logged_it_and_nothing_undrawn_is_told(
    page: Any, encoder: host.Encoder
) -> None:
    host.opened(page, "panel", panels=with_tiles_of_today())
    row = {"t": 1.0, "step": 0, "rank": 0, "key": "loss", "value": 1.0, "own": 0}
    host.send(page, encoder.delta({"scalars": [row]}))
    reward = tile(page, "Reward, mean")
    expect(reward.locator(".pp-value")).to_have_text("–")
    expect(reward.locator(".pp-note")).to_have_text("Your trainer has not logged it.")
    expect(page.locator(".pp-caption")).to_have_text("")


# ---- what can be read

GROUNDS = ("--bg", "--sunken", "--raised", "--alarm-bg", "--tune-bg", "--fine-bg", "--accent-bg")
TEXTS = ("--ink", "--ink-2", "--ink-3", "--accent")
#: Which verdict's text stands on which ground.
VERDICTS = (("--alarm", ("--bg", "--alarm-bg")), ("--tune", ("--bg", "--tune-bg")), ("--fine", ("--bg", "--fine-bg")))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_g_every_text_has_enough_contrast_on_every_ground_of_its_theme(page: Any, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    shown(page, steps=1)
    expect(page.locator(".probe-panel")).to_have_attribute("data-theme", theme)
    names = [*GROUNDS, *TEXTS, *(text for text, _ in VERDICTS), "--on-accent"]
    light = look(page, "luminances", names)

    def contrast(one: str, other: str) -> float:
        low, high = sorted((light[one], light[other]))
        return float((high + 0.05) / (low + 0.05))

    pairs = [*itertools.product(TEXTS, GROUNDS), ("--on-accent", "--accent")]
    pairs += [(text, ground) for text, grounds in VERDICTS for ground in grounds]
    assert {pair: round(contrast(*pair), 2) for pair in pairs if contrast(*pair) < 4.5} == {}


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_g_no_text_is_smaller_than_11_px_or_fainter_than_it_may_be(page: Any, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    made, _ = shown(page, steps=6, plotly=True)
    host.send(page, made.state(dropped=3, errors=[{"where": "feed", "message": "broken"}]))
    for view in boards.VIEWS:
        to_view(page, view["id"])
        expect(page.locator(".pp-card").first).to_have_attribute("data-state", re.compile("drawn|empty"))
        until(lambda: len(look(page, "texts")), lambda many: many > 20)
        every_text_can_be_read(page)


@pytest.mark.parametrize(
    "width", [pytest.param(1040, marks=pytest.mark.thorough), pytest.param(700, marks=pytest.mark.thorough), 400]
)
def test_g_a_font_that_is_15_percent_wider_overflows_nothing(page: Any, width: int) -> None:
    resized(page, width, 1200)
    page.add_style_tag(content="body { margin: 0 !important } .probe-panel * { letter-spacing: 0.075em !important }")
    made, _ = shown(page, steps=6)
    host.send(page, made.state(repeated="Steps 0 to 3 were recorded twice; the newest is shown."))
    tile(page, "Peak memory").click()
    expect(page.get_by_role("complementary", name="What made it")).to_be_visible()
    for view in [None, *(one["id"] for one in boards.VIEWS)]:
        if view:
            to_view(page, view)
        nothing_overflows(page)
        until(lambda: page.evaluate("document.documentElement.scrollWidth"), lambda wide: wide <= width)


def test_g_nothing_that_takes_the_focus_stands_in_another_and_everything_has_a_name(page: Any) -> None:
    shown(page, steps=6, plotly=True)
    page.evaluate("__host.view()")  # twice: no id may come twice
    for view in boards.VIEWS:
        page.locator(f"[data-view={view['id']}]").first.click()
        expect(page.locator(f"[data-view={view['id']}]").first).to_have_attribute("aria-selected", "true")
        expect(page.locator(".pp-card").first).to_have_attribute("data-state", re.compile("drawn|empty"))
        for one in page.locator(".probe-panel").first.locator("button:visible", has_text="Numbers").all():
            one.click()
        until(lambda: look(page, "nesting"), lambda wrong: wrong == [])
