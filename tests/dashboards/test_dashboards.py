"""Dashboards: the files say only what is there, and what they say can be drawn."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import dashboards
from probe.analysis.overview import numbers
from probe.analysis.verdict import findings
from probe.dashboards import NAMES, Chart, Panel
from probe.dashboards import spec as live
from probe.errors import InputError, UnknownNameError
from probe.figures import theme
from probe.figures.panel import draw
from probe.publishing import across_ranks
from probe.records import TABLES
from probe.runs.lines import table_of
from tests.sample_run import open_run, sample_rows

PANELS = [panel for board in dashboards.dashboards() for panel in board.panels]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    with open_run(tmp_path_factory.mktemp("run"), sample_rows(2, 4)) as opened:
        yield opened


def test_all_files_are_read_in_order() -> None:
    folder = Path(__file__).parents[2] / "dashboards"
    assert {path.stem for path in folder.glob("*.yaml")} == {*NAMES, "views", "quantities"}
    assert tuple(board.name for board in dashboards.dashboards()) == NAMES
    assert len({panel.id for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.id)
def test_every_panel_draws_lists_and_offers_its_choices(run, panel: Panel) -> None:
    figure = draw(panel, run, titled=True)
    assert figure.layout.title.text == panel.title
    assert figure.data
    assert list(panel.listing(run).columns) == list(panel.columns)
    assert not panel.listing(run).empty
    options = panel.options(run)
    assert bool(options) is (panel.choices is not None)
    for label, choice in options[:3]:
        assert label
        assert draw(panel, run, **choice).data
    if options:
        assert draw(panel, run).to_json() == draw(panel, run, **options[0][1]).to_json()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.id)
def test_every_panel_reads_tables_that_exist(panel: Panel) -> None:
    assert panel.tables
    assert set(panel.tables) <= set(TABLES)


def declared() -> set[str]:
    from probe import recorders, session

    keys = set(session.KEYS)
    for name in recorders.RECORDERS:
        keys.update(recorders.load(name).keys)
    return keys


def published() -> set[str]:
    from probe.publishing.across_ranks import keys_of

    return keys_of(declared())


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.id)
def test_every_key_is_one_that_a_recorder_declares(panel: Panel) -> None:
    assert set(panel.keys) <= declared(), sorted(declared())


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.id)
def test_every_charted_key_is_one_that_a_recorder_or_the_publisher_declares(panel: Panel) -> None:
    for chart in panel.charts:
        assert set(chart.keys) <= declared() | published(), chart
        # What is drawn of all ranks is the publisher's; a recorder's own numbers are those of rank 0.
        assert chart.kind == "line" or set(chart.keys) <= published(), chart


def test_15_backends_chart_what_carried_policy_gradient_the_mismatch_and_the_long_tail() -> None:
    titles = {key: chart.title for panel in PANELS for chart in panel.charts for key in chart.keys}
    wanted = {
        "probe/samples/carried_ratio": "carried policy gradient",
        "probe/samples/reached_ratio": "reached the loss with an advantage: at most these carried policy gradient",
        **dict.fromkeys((f"probe/samples/mismatch_{one}" for one in ("k1", "k3", "effective_ratio")), "Mismatch"),
        **dict.fromkeys(across_ranks.TAIL, "tail after nine of ten answers"),
        "probe/samples/rollout_longest_s": "longest answer",
    }
    assert {key: words in titles[key] for key, words in wanted.items()} == dict.fromkeys(wanted, True)


def test_every_declared_key_is_in_a_chart() -> None:
    from probe.publishing.across_ranks import base

    charted = {key for panel in PANELS for chart in panel.charts for key in chart.keys}
    apart = {re.sub(r"_(smallest|mean|largest)$", "", key) for key in charted}
    assert [key for key in declared() if key not in charted and base(key) not in apart] == []
    assert published() & {f"{base(key)}_mean" for key in declared()}


def test_a_chart_is_filled_with_what_is_logged() -> None:
    three = tuple(f"probe/across_ranks/{{role}}/peak_{word}" for word in dashboards.MARGIN)
    margin, lines = Chart("Peak", "margin", three), Chart("Lines", "line", ("a/{phase}/b.c", "loss", "nowhere"))
    logged = [*(key.replace("{role}", "actor") for key in three), three[0].replace("{role}", "critic"), "loss"]
    assert margin.filled(logged) == {"Peak: actor": tuple(logged[:3])}  # critic hasn't all three
    assert margin.filled([]) == lines.filled(["a/x/b_c", "a/x/y/b.c"]) == {}
    assert lines.filled(["loss", "a/z/b.c", "a/y/b.c", "loss/more"]) == {"Lines": ("a/z/b.c", "a/y/b.c", "loss")}


@pytest.mark.parametrize(
    ("chart", "message"),
    [
        ({"title": "C"}, r"panel 0 \(p\): charts 0: got .* expected either lines or margin"),
        ({"title": "C", "lines": ["a"], "margin": "a"}, "expected either lines or margin"),
        ({"title": "C", "lines": []}, "lines: got \\[\\], expected a list of keys"),
        ({"title": "C", "lines": "a"}, "lines: got 'a'"),
        ({"title": "C", "margin": ["a"]}, "margin: got"),
        ({"lines": ["a"]}, "title: got None"),
        ({"title": "C", "line": ["a"]}, "unknown line"),
        ("C", "got 'C', expected a mapping"),
    ],
)
def test_a_wrong_chart_is_named(chart: object, message: str) -> None:
    data = good()
    data["panels"][0]["charts"] = [chart]
    with pytest.raises(InputError, match=message):
        dashboards.parse("mine", yaml.safe_dump(data))


def test_a_chart_s_title_is_its_own() -> None:
    data = good()
    data["panels"][0]["charts"] = [{"title": "C", "lines": ["a"]}, {"title": "C", "margin": "b"}]
    with pytest.raises(InputError, match="charts: got the title 'C' twice"):
        dashboards.parse("mine", yaml.safe_dump(data))


def test_keys_hold_no_reducer_by_accident() -> None:
    for panel in PANELS:
        for key in (*panel.keys, *(key for chart in panel.charts for key in chart.keys)):
            assert re.fullmatch(r"[A-Za-z0-9_./{} -]+", key)
            words = re.split(r"[/_]", key)
            assert all(one in ("min", "max") or ("min" not in one and "max" not in one) for one in words), key


def good() -> dict:
    return {
        "title": "T",
        "about": "a",
        "panels": [
            {
                "id": "p",
                "title": "P",
                "about": {"shows": "s", "read": "r", "do": "d"},
                "analysis": "probe.analysis.cost.by_step",
                "figure": "probe.figures.cost.over_steps",
                "tables": ["scalars"],
            }
        ],
    }


def test_a_panel_needs_little() -> None:
    (panel,) = dashboards.parse("mine", yaml.safe_dump(good())).panels
    assert (panel.id, panel.about.do, panel.columns, panel.choices) == ("p", "d", (), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": ["nope"]}, r"dashboard 'mine', panel 0 \(p\): tables: got 'nope', expected one of"),
        ({"figure": "os.system"}, r"figure: got 'os.system', expected a path in probe.figures"),
        ({"table": "probe.figures.cost.over_steps"}, "table: got .* expected a path in probe.analysis"),
        ({"analysis": "probe.figures.cost.over_steps"}, "analysis: got .* expected a path in probe.analysis"),
        ({"keys": "probe/x"}, "keys: got 'probe/x', expected a list"),
        ({"titel": "x"}, "panel 0: unknown titel; fields are"),
        ({"title": None}, "title: got None, expected a str"),
        ({"about": {"shows": "s"}}, "about: read: got None"),
    ],
)
def test_a_wrong_panel_is_named(change: dict, message: str) -> None:
    data = good()
    data["panels"][0].update(change)
    with pytest.raises(InputError, match=message):
        dashboards.parse("mine", yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ({"figure"}, "live: got mark None, x None, expected one of line, stack, .*, or analysis and figure"),
        ({"analysis"}, r"panel 0 \(p\): got a figure without analysis, expected both or neither"),
        ({"analysis", "figure"}, "live: got mark None, x None, expected one of line, stack, "),
    ],
)
def test_a_panel_says_how_it_is_drawn(left_out: set[str], message: str) -> None:
    data = good()
    (panel,) = data["panels"]
    data["panels"] = [{name: value for name, value in panel.items() if name not in left_out}]
    with pytest.raises(InputError, match=message):
        dashboards.parse("mine", yaml.safe_dump(data))


LIVE = {"mark": "line", "table": "spans", "x": "step", "y": "peak", "by": ["rank", "role"], "reduce": "max"}


def test_a_panel_may_be_live() -> None:
    data = good()
    data["panels"][0]["live"] = LIVE
    (panel,) = dashboards.parse("mine", yaml.safe_dump(data)).panels
    assert panel.live == LIVE
    views = {"views": [{"id": "v", "title": "V", "about": "a", "panels": ["p"]}], "panels": []}
    (view,) = dashboards.parse_views(yaml.safe_dump(views), [panel])
    assert (view.panels[0].id, view.panels[0].live, view.panels[0].about.do) == ("p", LIVE, "d")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mark": "pie"}, r"panel 0 \(p\): live: mark: got 'pie', expected one of bars, heat"),
        ({"table": "memories"}, "live: table: got 'memories', expected one of calls"),
        ({"y": "peek"}, "live: y: got 'peek', expected one of .*peak"),
        ({"by": ["rank", "colour"]}, "live: by: got 'colour'"),
        ({"x": "t"}, "live: x: got 't'"),
        ({"y": None}, "live: y: got None, expected a column of spans"),
        ({"reduce": "median"}, "live: reduce: got 'median'"),
        ({"reduce": "ratio"}, "live: y: got 'peak', expected two columns"),
        ({"of": "epoch"}, "live: of: got 'epoch'"),
        ({"unit": "GB"}, "live: unit: got 'GB'"),
        ({"where": {"kinds": "step"}}, "live: where: got 'kinds'"),
        ({"where": {"kind": {"is": "step"}}}, "live: where: kind: got .*expected {not: value}"),
        ({"where": {"kind": None}}, "live: where: kind: got None"),
        ({"columns": ["peak"]}, "live: unknown columns; fields are"),
        ({"lines": [{"title": "cap"}]}, "lines 0: got .*expected either y"),
        ({"lines": [{"title": "cap", "value": "most"}]}, "lines 0: value: got 'most'"),
        ({"divide": {"table": "micro"}}, "live: divide: y: got None"),
        ({"divide": 3}, "live: divide: got 3, expected a mapping"),
        ({"names": ["peak"]}, "live: names: got"),
        ({"x_title": 3}, "live: x_title: got 3, expected a text"),
        ({"mark": "scatter", "fit": 0.5}, "live: fit: got 0.5, expected a dict"),
        ({"mark": "scatter", "fit": {"explained": 2, "rows": 8}}, "fit: explained: got 2, expected a share"),
        ({"mark": "scatter", "fit": {"explained": 0.5, "rows": 2}}, "fit: rows: got 2, expected a whole number from 3"),
    ],
)
def test_a_wrong_live_block_is_named(change: dict, message: str) -> None:
    data = good()
    data["panels"][0]["live"] = {**LIVE, **change}
    with pytest.raises(InputError, match=message):
        dashboards.parse("mine", yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("tiles", "message"),
    [
        ([], "tiles: got .*expected a list of tiles"),
        ([{"id": "a", "table": "spans", "y": "peak"}], "tiles 0: title: got None"),
        ([{"id": "a", "title": "A", "table": "spans", "y": "peak", "warn": "much"}], "warn: got 'much'"),
        ([{"id": "a", "title": "A", "table": "spans", "y": "peak", "better": "big"}], "better: got 'big'"),
        ([{"id": "a", "title": "A", "table": "spans", "y": "peak", "means": {"ok": "x"}}], "means: unknown ok"),
        (
            [{"id": "a", "title": "A", "table": "spans", "y": "peak", "capacity": {"table": "memori"}}],
            "capacity: table",
        ),
        ([{"id": "a", "title": "A", "table": "spans", "y": "peak"}] * 2, "got the ids a, a, expected each once"),
    ],
)
def test_wrong_tiles_are_named(tiles: list, message: str) -> None:
    data = good()
    data["panels"][0]["live"] = {"mark": "tiles", "tiles": tiles}
    with pytest.raises(InputError, match=message):
        dashboards.parse("mine", yaml.safe_dump(data))


def test_the_views_of_the_live_panel() -> None:
    views = dashboards.views()
    assert [view.id for view in views] == [
        "overview",
        "time",
        "memory",
        "tokens",
        "samples",
        "what_if",
        "metrics",
        "data",
        "events",
    ]
    shown = [panel for view in views for panel in view.panels]
    assert {panel.live["mark"] for panel in shown} == set(live.MARKS)
    assert {panel.live["table"] for panel in shown if "table" in panel.live} == set(live.TABLES)
    assert all(panel.about.shows and panel.about.read and panel.about.do for panel in shown)
    # A panel of a dashboard with a live block is somewhere to be seen.
    assert {panel.id for panel in PANELS if panel.live is not None} <= {panel.id for panel in shown}


def test_g_where_the_panel_draws_another_picture_than_the_report_its_words_are_of_that() -> None:
    """Under a table stands nothing of dots and crosses, and under a line nothing of boxes."""
    shared = {panel.id: panel for panel in PANELS}
    shown = {panel.id: panel for view in dashboards.views() for panel in view.panels}
    others = [
        one for one in shown.values() if one.id in shared and shared[one.id].figure and one.live["mark"] == "table"
    ]
    assert {one.id for one in others} >= {"incidents", "reduction_spread"}
    assert all(one.about != shared[one.id].about for one in others)
    assert "box" not in " ".join(vars(shown["memory_timeline"].about).values())
    assert "about" not in shown["memory_timeline"].live


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": [{"id": "v", "title": "V", "about": "a", "panels": ["nope"]}]}, "panels: got 'nope'"),
        ({"views": [{"id": "v"}]}, "view 0: title"),
        ({"panels": [{"id": "p", "title": "P", "about": {}, "live": LIVE}]}, r"panel 0 \(p\): about: shows"),
        ({"panels": 3}, "views: panels: got 3"),
        ({"more": []}, "views: unknown more"),
    ],
)
def test_wrong_views_are_named(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dashboards.parse_views(yaml.safe_dump({"views": [], "panels": [], **change}), [])


def test_a_view_s_own_panel_has_an_id_of_its_own() -> None:
    about = {"shows": "s", "read": "r", "do": "d"}
    own = {"id": PANELS[0].id, "title": "P", "about": about, "live": LIVE}
    with pytest.raises(InputError, match="got an id twice"):
        dashboards.parse_views(yaml.safe_dump({"views": [], "panels": [own]}), PANELS)


def test_a_panel_says_in_which_view_it_stands() -> None:
    data = good()
    data["panels"][0] |= {"live": LIVE, "view": "v"}
    (panel,) = dashboards.parse("mine", yaml.safe_dump(data)).panels
    found = {"views": [{"id": "v", "title": "V", "about": "a", "panels": []}], "panels": []}
    (view,) = dashboards.parse_views(yaml.safe_dump(found), [panel])
    assert [one.id for one in view.panels] == ["p"]
    found["views"][0]["panels"] = ["p"]  # named there too: once is enough
    (view,) = dashboards.parse_views(yaml.safe_dump(found), [panel])
    assert [one.id for one in view.panels] == ["p"]
    found["views"][0] |= {"id": "w"}
    with pytest.raises(UnknownNameError, match="panel p: view: got 'v', expected one of w"):
        dashboards.parse_views(yaml.safe_dump(found), [panel])


@pytest.mark.parametrize("text", ["a: [", "- 1", "title: x"])
def test_a_wrong_file_is_named(text: str) -> None:
    with pytest.raises(InputError, match="dashboard 'mine'"):
        dashboards.parse("mine", text)


def test_a_path_to_nothing_is_an_error(run) -> None:
    data = good()
    data["panels"][0]["figure"] = "probe.figures.cost.nothing_there"
    (panel,) = dashboards.parse("mine", yaml.safe_dump(data)).panels
    with pytest.raises(InputError, match="nothing_there"):
        draw(panel, run)


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="memory_timeline"):
        dashboards.panel("nope")
    with pytest.raises(UnknownNameError, match="token_balance"):
        dashboards.dashboard("nope")
    assert dashboards.panel("balance_heat").title == "Tokens by rank and micro-batch"
    assert dashboards.dashboard("memory").panels


ROWS = sample_rows(2, 3)


@pytest.mark.slow
@settings(deadline=None, max_examples=3)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.1, 0.5, 0.95]), st.sets(st.sampled_from(list(TABLES))))
def test_whatever_is_missing_the_rest_is_shown(
    tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, off: set[str]
) -> None:
    """Rows may have been dropped, a recorder switched off, a rank killed."""
    chance = random.Random(seed)
    rows = {
        rank: [row for row in own if table_of(row) not in off and chance.random() < share] for rank, own in ROWS.items()
    }
    with open_run(tmp_path_factory.mktemp("run"), rows) as run:
        assert isinstance(list(findings(run)), list)
        assert len(numbers(run)) == len(dashboards.overview_tiles())
        for panel in PANELS:
            figure = draw(panel, run)
            assert bool(figure.data) is (theme.why(figure) is None)
            for _, choice in panel.options(run)[1:2]:
                assert draw(panel, run, **choice).data
            panel.listing(run)


def test_an_installed_wheel_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the files lie in the package, and nothing lies beside it."""
    source = Path(__file__).parents[2] / "dashboards"
    packed = tmp_path / "site" / "probe"
    shutil.copytree(source, packed / "_dashboards")
    monkeypatch.setattr(dashboards.files.resources, "files", lambda _: packed)
    monkeypatch.setattr(dashboards.files, "__file__", str(packed / "dashboards" / "__init__.py"))
    dashboards.dashboards.cache_clear()
    try:
        assert len(dashboards.dashboards()) == len(NAMES)
        shutil.rmtree(packed / "_dashboards")
        dashboards.dashboards.cache_clear()
        with pytest.raises(KeyError, match="install probe-rl again"):
            dashboards.dashboards()
    finally:
        dashboards.dashboards.cache_clear()
