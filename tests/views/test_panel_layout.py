"""G: the panel as the design draws it: what stands where, what can be read, and what mouse and keyboard do."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from probe import dashboards
from tests.views import stub_host as host
from tests.views.panel_page import box, card, drawn, frames, resized, shown, still, tile, to_view, up_to_date
from tests.waiting import until

pytestmark = pytest.mark.browser

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
expect = playwright.expect

PLOT = ".pp-plotly .nsewdrag"


def at_bar(page: Any, id: str, step: int, first: int = 1, last: int = 20) -> tuple[float, float]:
    """Where the bar of a step is on the screen."""
    card(page, id).scroll_into_view_if_needed()
    ready = "(one) => Boolean(one.querySelector('.pp-plotly')?._fullLayout?.xaxis?._length)"
    until(lambda: card(page, id).evaluate(ready))  # plotly draws it once it is in sight
    up_to_date(page)
    still(card(page, id))
    inside = """([one, step]) => {
        const { xaxis, yaxis } = one._fullLayout;
        const { left, top } = one.getBoundingClientRect();
        return [left + xaxis._offset + xaxis.d2p(step), top + yaxis._offset + yaxis._length - 12];
    }"""
    x, y = page.evaluate(inside, [card(page, id).locator(".pp-plotly").element_handle(), step])
    return float(x), float(y)


def look(page: Any, name: str, *values: Any) -> Any:
    """What a function of looks.js finds in the page."""
    page.add_script_tag(path=str(Path(__file__).with_name("looks.js")))
    return page.evaluate(f"(values) => __look.{name}(...values)", list(values))


def nothing_overflows(page: Any) -> None:
    """Nothing is cut off, or hangs out of the panel."""
    up_to_date(page)
    until(lambda: look(page, "overflows"), lambda cut: cut == [])


def every_text_can_be_read(page: Any) -> None:
    """No text is smaller than 11 px, or has less contrast than 4.5."""
    up_to_date(page)
    until(lambda: [one for one in look(page, "texts") if one[1] < 11 or one[2] < 4.5], lambda faint: faint == [])


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
    expect(one.locator(".pp-means")).to_have_text("Rank 3: 15 s, the other 3: 10 s.")
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
    expect(reward.locator(".pp-means")).to_have_text("Logged by trainer.")
    expect(reward).to_have_attribute("data-status", "none")
    expect(reward.locator(".pp-note")).to_have_text(re.compile(r"^0\.\d+ to 0\.\d+ in 5 steps\.$"))
    for note in page.locator(".pp-note").all_inner_texts():
        assert re.fullmatch(r"[A-Z0-9].*\.", note, re.DOTALL), note
    caption = page.locator(".pp-caption")
    expect(caption).to_have_text(
        "Each number is the median of the last 5 steps, memory the largest of the run. "
        "The line is the run, its dot step 5; dotted red is the capacity."
    )
    page.get_by_role("button", name="One step back").click()
    expect(caption).to_contain_text("Each number is of step 4. The line is the run, its dot step 4;")
    page.get_by_label("Window").select_option("steps10")
    expect(caption).to_contain_text("The line is the last 10 steps, its dot step 4;")


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


# ---- what a click opens


def test_g_a_click_on_the_bar_of_a_step_chooses_it_and_opens_its_detail_under_the_figure(page: Any) -> None:
    shown(page, plotly=True)
    drawn(page)
    x, y = at_bar(page, "phase_durations", 7)
    page.mouse.click(x, y)
    expect(page.locator(".pp-step")).to_have_text("step 7")
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane).to_contain_text("step 7")
    above = pane.evaluate("(one) => one.previousElementSibling.querySelector('h3').textContent")
    assert above == host.TITLES["phase_durations"]
    notch = lambda: box(pane.locator(".pp-notch"))  # noqa: E731
    until(notch, lambda found: found["x"] + found["width"] / 2 == pytest.approx(x, abs=3))
    x, y = at_bar(page, "phase_durations", 7)
    page.mouse.click(x, y)  # a second click closes it, and the step stays
    expect(pane).to_be_hidden()
    expect(page.locator(".pp-step")).to_have_text("step 7")


def test_g_one_detail_is_open_at_a_time_and_escape_closes_it(page: Any) -> None:
    shown(page)
    pane = page.get_by_role("complementary", name="What made it")
    expect(tile(page, "Peak memory").locator(".pp-value")).to_have_text("11.1 GiB")
    tile(page, "Peak memory").click()
    expect(pane).to_have_count(1)
    expect(page.locator(".pp-step")).to_have_text("step 17")  # where the largest peak is
    until(lambda: (box(tile(page, "Peak memory"))["y"], box(pane)["y"]), lambda tops: tops[0] < tops[1])
    tile(page, "Step time").click()
    expect(pane).to_have_count(1)
    page.keyboard.press("Escape")
    expect(pane).to_have_count(0)
    tile(page, "Step time").click()
    to_view(page, "memory")  # where its figure isn't
    expect(pane).to_have_count(0)


# ---- the keyboard


def test_g_the_footer_says_exactly_the_keys_that_work(page: Any) -> None:
    shown(page, plotly=True)
    drawn(page)
    keys = page.locator(".pp-foot kbd").all_inner_texts()
    assert keys == ["←", "→", "[", "]", "Space", "Tab", "↑", "↓", "Enter", "Esc"]
    page.locator(".probe-panel").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pp-step")).to_have_text("step 19")
    page.keyboard.press(" ")
    expect(page.locator(".pp-status").first).to_have_text("paused")
    page.keyboard.press(" ")
    expect(page.locator(".pp-status").first).to_have_text("live")
    chart = card(page, "phase_durations").locator(".pp-body")
    for _ in range(40):
        page.keyboard.press("Tab")
        if chart.evaluate("(one) => one === document.activeElement"):
            break
    expect(chart).to_be_focused()
    page.keyboard.press("ArrowDown")
    place = card(page, "phase_durations").locator(".pp-place")
    expect(place).to_have_text(re.compile("^19, "))
    largest = place.inner_text()
    expect(page.locator(".hoverlayer .hovertext").first).to_be_attached()  # it is pointed at, too
    page.keyboard.press("ArrowDown")
    expect(place).not_to_have_text(largest)
    page.keyboard.press("ArrowUp")
    expect(place).to_have_text(largest)
    page.keyboard.press("ArrowLeft")  # the step, in a chart too
    expect(page.locator(".pp-step")).to_have_text("step 18")
    page.keyboard.press("Enter")
    pane = page.get_by_role("complementary", name="What made it")
    expect(pane).to_contain_text("step 18")
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()
    expect(chart).to_be_focused()


def test_g_left_and_right_move_the_step_of_all_figures_in_a_chart_of_lines_too(page: Any) -> None:
    shown(page, view="memory")
    plot = card(page, "memory_over_steps").locator(".pp-plot")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".pp-step")).to_have_text("step 18")
    expect(plot).to_be_focused()
    place = card(page, "memory_over_steps").locator(".pp-place")
    page.keyboard.press("ArrowDown")
    expect(place).to_have_text(re.compile("^step 18, "))
    largest = place.inner_text()
    page.keyboard.press("ArrowDown")
    expect(place).not_to_have_text(largest)
    page.keyboard.press("ArrowUp")
    expect(place).to_have_text(largest)
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="What made it")).to_contain_text("step 18")
    over_time = card(page, "memory_timeline").locator(".pp-plot")
    over_time.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".pp-step")).to_have_text("step 19")
    page.keyboard.press("ArrowDown")
    expect(card(page, "memory_timeline").locator(".pp-place")).to_have_text(re.compile("step 19, "))


def test_g_lines_are_named_at_their_last_values_and_by_a_legend_where_the_panel_is_narrow(page: Any) -> None:
    resized(page, 1040)
    shown(page, view="memory")
    for id in ("memory_over_steps", "memory_timeline"):
        places = until(functools.partial(places_of_lines, card(page, id)), named_beside)
        expect(card(page, id).locator(".pp-leaders path")).to_have_count(len(places) - 1)
    resized(page, 600)
    one = card(page, "memory_over_steps")
    expect(one.locator(".pp-leaders")).to_be_hidden()
    until(lambda: places_of_lines(one), named_above)
    nothing_overflows(page)


def places_of_lines(one: Any) -> list[dict[str, float]]:
    """Where the plot of a card of lines is, and then where each of its names is."""
    return [box(part) for part in (one.locator(".pp-plot"), *one.locator(".pp-key").all())]


def named_beside(places: list[dict[str, float]]) -> bool:
    """Whether the names stand beside the lines, none on another."""
    plot, *names = places
    tops = sorted(name["y"] for name in names)
    return (
        len(names) > 2
        and all(name["x"] >= plot["x"] + plot["width"] for name in names)
        and all(after - before >= 16 for before, after in itertools.pairwise(tops))
        and plot["y"] <= tops[0]
        and tops[-1] <= plot["y"] + plot["height"]
    )


def named_above(places: list[dict[str, float]]) -> bool:
    plot, *names = places
    return all(name["y"] + name["height"] <= plot["y"] + 1 for name in names)


def test_g_enter_on_the_panel_opens_the_step_that_is_shown(page: Any) -> None:
    shown(page, steps=5)
    page.locator(".probe-panel").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("complementary", name="What made it")).to_contain_text("step 5")
    expect(page.get_by_role("button", name="Following")).to_be_visible()


def test_g_a_button_that_has_come_to_its_end_keeps_the_focus(page: Any) -> None:
    shown(page, steps=3)
    page.evaluate("""() => {
        globalThis.__keys = [];
        document.addEventListener("keydown", (event) => __keys.push(event.key));
    }""")
    back = page.get_by_role("button", name="One step back")
    back.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
        frames(page)  # a browser takes the focus from a disabled button in the next one
    expect(back).to_have_attribute("aria-disabled", "true")
    expect(back).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("d")
    assert page.evaluate("__keys") == []


def test_g_no_key_leaks_into_the_notebook_from_any_part_of_the_panel(page: Any) -> None:
    shown(page, steps=3, plotly=True)
    drawn(page)
    page.evaluate("""() => {
        globalThis.__keys = [];
        for (const kind of ["keydown", "keypress", "keyup"])
            document.addEventListener(kind, (event) => __keys.push([kind, event.key]));
    }""")
    for part in (
        ".probe-panel",
        ".pp-tile",
        ".pp-body[tabindex='0']",
        ".pp-controls button",
        "[role=tab]",
        "input[type=range]",
    ):
        page.locator(part).first.focus()
        for key in ("ArrowLeft", "a", "b", "d", "x", "Enter", "Escape", "ArrowDown"):
            page.keyboard.press(key)
    assert page.evaluate("__keys") == []


# ---- attempts


def test_a_an_attempt_is_chosen_and_takes_the_place_of_what_was_shown(page: Any) -> None:
    _, _ = shown(page, steps=6)
    attempts = [[1, 1, 20], [2, 1, 6]]
    made, older = host.Encoder(), host.Run(ranks=2)
    made.seq = 6
    host.send(page, made.state(attempts=attempts, attempt=None, repeated="Steps 1 to 20 were recorded twice."))
    expect(page.locator(".pp-facts-line")).to_contain_text("attempt 2 (from step 1)")
    expect(page.locator(".pp-strip")).to_contain_text("recorded twice")
    page.get_by_role("button", name="One step back").click()
    choice = page.get_by_label("Attempt", exact=True)
    expect(choice.locator("option")).to_have_text(["attempt 2 (newest)", "attempt 1: steps 1 to 20"])
    choice.select_option("1")
    last = lambda: page.evaluate("__host.sent.at(-1)")  # noqa: E731
    until(last, lambda said: (said["ask"], said.get("attempt")) == ("attempt", 1))
    for tables in older.steps(1, 20):
        made.delta(tables)
    made.seq = 7
    whole = made.keyframe(attempts=attempts, attempt=1, repeated="")
    whole["head"]["anew"] = True
    host.send(page, whole)
    expect(page.locator(".pp-step")).to_have_text("step 20")
    expect(choice).to_have_value("1")
    expect(page.locator(".pp-facts-line")).to_contain_text("attempt 1: steps 1 to 20")
    expect(page.get_by_label("Rank", exact=True).locator("option")).to_have_text(["all", "rank 0", "rank 1"])
    count = "[...__probe_panels.values()][0].table('spans').count"
    assert page.evaluate(count) == len(made.rows["spans"])  # nothing of the other attempt is left
    host.send(page, made.state(attempts=attempts, live=False))
    expect(choice).to_be_hidden()  # without a kernel nobody could show another one


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
    for view in host.VIEWS:
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
    for view in [None, *(one["id"] for one in host.VIEWS)]:
        if view:
            to_view(page, view)
        nothing_overflows(page)
        until(lambda: page.evaluate("document.documentElement.scrollWidth"), lambda wide: wide <= width)


def test_g_nothing_that_takes_the_focus_stands_in_another_and_everything_has_a_name(page: Any) -> None:
    shown(page, steps=6, plotly=True)
    page.evaluate("__host.view()")  # twice: no id may come twice
    for view in host.VIEWS:
        page.locator(f"[data-view={view['id']}]").first.click()
        expect(page.locator(f"[data-view={view['id']}]").first).to_have_attribute("aria-selected", "true")
        expect(page.locator(".pp-card").first).to_have_attribute("data-state", re.compile("drawn|empty"))
        for one in page.locator(".probe-panel").first.locator("button:visible", has_text="Numbers").all():
            one.click()
        until(lambda: look(page, "nesting"), lambda wrong: wrong == [])
