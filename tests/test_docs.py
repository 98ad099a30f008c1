"""The documentation: its code runs, its links lead somewhere, and what it says is generated from what there is."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import probe
from probe import dashboards
from probe.cli import COMMANDS
from probe.demo.zoo import FAULTS, fault
from probe.demo.zoo.mismatches import PLANTS
from probe.opened import Run
from probe.recorders import RECORDERS, load
from probe.records import TABLES
from tests.once import once

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: Panels that the example run has nothing for: nothing went wrong there, and its micro-batches are packed.
EMPTY = ("incidents", "padding_by_field", "padding_time")

#: Pages whose code is run by tests of their own, or isn't ours to run.
ELSEWHERE = {"hooks.md", "benchmarks.md", "backends.md", "hosts.md", "scale.md"}
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
OURS = [page for page in PAGES if page not in ELSEWHERE]
FARMS = {"guides/ranks.md"}  # these spawn ranks
SLOW = {"tutorial.md", "guides/ci.md"}

needs_mkdocs = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs isn't installed")


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    """``docs/mkdocs_hooks.py``, as mkdocs loads it."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", DOCS / "mkdocs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def generated(site: ModuleType) -> dict[str, str]:
    return dict(site.generated())


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------- the code on the pages


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, marks=pytest.mark.multiprocess) for page in OURS if page in FARMS),
        *(pytest.param(page, marks=pytest.mark.slow) for page in OURS if page in SLOW),
        *(page for page in OURS if page not in FARMS | SLOW),
    ],
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page: str, tmp_path: Path, site: ModuleType) -> None:
    from pages import blocks

    shutil.copytree(DOCS / "example_run", tmp_path / "runs" / "first")
    try:
        with contextlib.chdir(tmp_path):
            outputs = list(blocks.run(text_of(page), page))
    finally:
        if probe.current_session() is not None:
            probe.current_session().close()
    for block, printed in outputs:
        assert block.code == printed, f"{page}, line {block.line}: run docs/make_outputs.py"


@pytest.mark.parametrize("page", sorted(one.name for one in (DOCS / "frameworks").glob("*.md")))
def test_9_of_12_a_framework_s_page_says_what_to_set_what_is_seen_what_isn_t_and_what_it_costs_with_a_picture(page):
    text = text_of(f"frameworks/{page}")
    pictures = re.findall(r"!\[[^\]]{40,}\]\(\.\./(images/\w+\.png)\)", text)
    assert pictures
    assert all((DOCS / one).is_file() for one in pictures)
    said = (
        "PROBE_RUN_DIR",
        r"seen|done to a process",
        r"isn't|Not seen|can't see",
        r"What it costs|what a step of theirs costs",
    )
    for words in said:
        assert re.search(words, text), words
    assert "benchmarks" in text  # where the figure of its cost comes from


@pytest.mark.parametrize("page", ["numbers", "tokens", "mismatch", "long_tail", "idle"])
def test_15_each_page_on_what_happened_to_the_tokens_has_a_picture_of_a_fault_that_the_demo_plants(page):
    text = text_of(f"guides/{page}.md")
    pictures = set(re.findall(r"!\[[^\]]{40,}\]\(\.\./images/(\w+)\.png\)", text))
    assert pictures
    maker = (DOCS / "make_token_pictures.py").read_text()
    for picture in pictures:
        assert (DOCS / "images" / f"{picture}.png").is_file()
        assert f'"{picture}": take_{picture},' in maker
    said = re.search(r"pictures? (?:is|are) of `probe demo --fault (\w+)`", text)
    assert said
    assert said[1] in FAULTS
    assert f'fault("{said[1]}")' in maker


def test_blocks_are_found_run_and_refused(tmp_path: Path, site: ModuleType) -> None:
    from pages import blocks

    text = (
        "```python\nx = 2\nprint(x)\n```\n\n<!-- output -->\n```text\n3\n```\n"
        "<!-- not run: it would fail -->\n```python\n1 / 0\n```\n"
        "<!-- file: data.txt -->\n```text\nhello\n```\n"
        "```console\npython -c \"print(open('data.txt').read())\"\n```\n<!-- output -->\n```text\nhello\n```\n"
    )
    with contextlib.chdir(tmp_path):
        found = [(block.code, printed) for block, printed in blocks.run(text, "a page")]
        assert found == [("3\n", "2\n"), ("hello\n", "hello\n")]  # the first one would fail its page
        with pytest.raises(ZeroDivisionError):
            list(blocks.run("```python\n1 / 0\n```\n", "a page"))
        with pytest.raises(ValueError, match="expected a command out of make, probe"):
            list(blocks.run("```console\nrm -r /nothing\n```\n", "a page"))
        with pytest.raises(RuntimeError, match="ended with 2"):
            list(blocks.run("```console\nprobe no-such-command\n```\n", "a page"))


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_make_are_its_targets(page: str, site: ModuleType) -> None:
    from pages import blocks

    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert blocks.make_targets(text_of(page)) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_files_and_tests_that_a_page_names_are_there(page: str) -> None:
    # probe/… without .py is the name of a metric
    paths = r"probe/[\w/]+\.py|(?:tests|docs|dashboards|benchmarks|notebooks)/[\w./]*"
    named = re.findall(rf"`({paths})(?:::(\w+))?`", text_of(page))
    for path, test in named:
        assert (ROOT / path).exists(), path
        if test:
            assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{test}"


def test_15_4_the_tables_of_planted_mismatches_have_the_faults_and_causes_of_the_code() -> None:
    text = text_of("design/mismatch.md")
    made, split, lags = text.partition("## Staleness or the engine")
    assert split
    assert "<!-- Made by docs/make_mismatch.py (make mismatch)" in made
    assert "<!-- Made by docs/make_lag_split.py (make lag-split)" in lags
    named, _, sure = made.partition("## Confident disagreement")
    rows = [line.strip("| ").split(" | ") for line in named.splitlines() if re.search(r"\| \d+/\d+ ", line)]
    planted = {name.replace("_", " "): kind for name, kind in PLANTS.items()}
    assert [row[:3] for row in rows[:-1]] == [[name, kind.about, kind.cause] for name, kind in planted.items()]
    for row in rows[:-1]:  # each cell is of as many trainings as the answers in it
        for right, of, others in re.findall(r"(\d+)/(\d+)(?: \(([^)]*)\))?", " | ".join(row[3:])):
            assert int(right) + sum(map(int, re.findall(r" (\d+)", others))) == int(of)
    told = [line.strip("| ").split(" | ")[0] for line in sure.splitlines() if line.startswith("| ")]
    assert told[1:] == list(planted)


def test_observing_calls_no_collective() -> None:
    """What docs/design/fidelity.md says; the functions of the core that need a collective do so unobserved, too."""
    packages = ("recorders", "runs", "hooks", "devices")
    watching = [path for package in packages for path in (ROOT / "probe" / package).glob("*.py")]
    watching += sorted((ROOT / "probe/session").glob("*.py"))
    for path in watching:
        found = re.findall(r"\b(?:all_reduce|all_gather\w*|broadcast\w*|barrier|reduce_scatter\w*)\(", path.read_text())
        assert not found, path.name


# ----------------------------------------------------------------------------------------------- links and navigation


def test_every_page_of_the_navigation_is_there_and_every_page_is_in_it(site: ModuleType, generated: Any) -> None:
    listed = set(places(navigation(site)))
    there = set(PAGES) | {place for place in generated if place.endswith(".md")}
    assert listed == there


def navigation(site: ModuleType) -> list[Any]:
    config = {"nav": yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]}
    return list(site.on_config(config)["nav"])


def places(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from places(list(entry.values()))
    else:
        for one in entry:
            yield from places(one)


def test_links_between_pages_lead_somewhere(generated: dict[str, str]) -> None:
    pages = {page: text_of(page) for page in PAGES} | generated
    there = set(pages) | {str(path.relative_to(DOCS)) for path in DOCS.rglob("*") if path.is_file()}
    for page, text in pages.items():
        if not page.endswith(".md"):
            continue
        without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`(?!\]\()", "", without_code)):
            if not re.match(r"https?:|#|mailto:", target):
                path = (DOCS / page).parent.joinpath(target.partition("#")[0]).resolve()
                assert str(path.relative_to(DOCS)) in there, f"{page}: {target}"


def test_8_every_fault_that_can_be_planted_leads_to_a_runbook() -> None:
    index = text_of("runbooks/index.md")
    for name in FAULTS:
        assert f"`{fault(name).finds}`" in index, name
    titles = " ".join(text_of(page).partition("\n")[0] for page in PAGES if page.startswith("runbooks/"))
    assert all(word in titles for word in ("OOM", "leak", "Hang", "NaN", "Slow rank", "Padding", "metric"))
    for page in PAGES:
        if page.startswith("runbooks/") and page != "runbooks/index.md":
            assert Path(page).name in index
            assert f"images/runbook_{Path(page).stem}.png" in text_of(page)
            assert "## What to do" in text_of(page)
            assert "## Check that it is gone" in text_of(page)


# --------------------------------------------------------------------------------------------------- generated pages


def test_every_panel_has_its_page_and_its_picture(generated: dict[str, str]) -> None:
    drawn = [panel for board in dashboards.dashboards() for panel in board.panels]
    for panel in drawn:
        page = generated[f"panels/{panel.id}.md"]
        assert page.startswith(f"# {panel.title}\n")
        assert all(f"`{key}`" in page for key in panel.keys)
        assert all(f"schema.md#{table}" in page for table in panel.tables)
        script = generated[f"assets/figures/{panel.id}.js"]
        assert '"data":[{' in script or panel.id in EMPTY, f"{panel.id} shows nothing"
    for view in dashboards.views():
        for live in view.panels:
            assert generated[f"panels/{live.id}.md"].startswith(f"# {live.title}\n")
    for live in {one.id for view in dashboards.views() for one in view.panels} - {one.id for one in drawn}:
        assert (DOCS / "images" / f"live_{live}.png").is_file(), "run docs/make_pictures.py"


def test_the_code_on_a_panel_s_page_runs(generated: dict[str, str], tmp_path: Path, site: ModuleType) -> None:
    from pages import blocks

    shutil.copytree(DOCS / "example_run", tmp_path / "runs" / "first")
    with contextlib.chdir(tmp_path):
        for page in ("panels/memory_timeline.md", "panels/padding_over_steps.md"):
            assert list(blocks.run(generated[page], page)) == []


def test_every_table_and_column_is_documented(generated: dict[str, str]) -> None:
    page = generated["reference/schema.md"]
    for table, kind in TABLES.items():
        section = page.partition(f"{{ #{table} }}")[2].partition("\n## ")[0]
        stamp = page.partition("{ #stamp }")[2].partition("\n## ")[0]
        for field in kind.__struct_fields__:
            assert f"| `{field}` |" in section + stamp, f"{table}.{field}"
    assert "| `peak_allocated_bytes` | `int64` | bytes | may be |" in page
    assert "the largest value between the scope's ends" in page


def test_every_metric_is_documented(generated: dict[str, str]) -> None:
    page = generated["reference/metrics.md"]
    for name in RECORDERS:
        assert all(f"| `{key}` |" in page for key in load(name).keys)
    assert "| `probe/memory/headroom_gib` | GiB (1024³ bytes) | [Memory over time]" in page


def test_every_command_is_documented(generated: dict[str, str]) -> None:
    page = generated["reference/cli.md"]
    for command in COMMANDS:
        assert f"{{ #{command} }}" in page
        assert f"usage: probe {command}" in page
    assert "--run-dir DIR" in page


def test_every_public_name_is_documented(generated: dict[str, str]) -> None:
    pages = "".join(text for place, text in generated.items() if place.startswith("api/"))
    for name in probe.EXPORTS:
        one = getattr(probe, name)
        assert f"`probe.{name}`" in generated["api/index.md"]
        assert f"::: {one.__module__}.{one.__qualname__}\n" in pages, name
    documented = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(documented) == len(set(documented))


def test_every_finding_and_limit_is_documented(generated: dict[str, str]) -> None:
    from probe.analysis.verdict.verdict import LOOKS

    page = generated["reference/findings.md"]
    assert all(f": {look.__name__.replace('_', ' ')}**" in page for look in LOOKS)
    assert "| `balance.UNEVEN` | `1.1` |" in page


def test_small_tables_are_filled_in(site: ModuleType) -> None:
    made = site.on_page_markdown(text_of("install.md"))
    assert "| `make demo` |" in made
    assert "| `tensorboard` | `tensorboard" in made
    assert "torch==" in made
    assert "<!-- make:" not in made
    with pytest.raises(KeyError):
        site.on_page_markdown("<!-- make: nonsense -->")


def test_panels_are_published_under_the_names_that_their_pages_say(generated: dict[str, str]) -> None:
    from probe.publishing import pictures

    for name, panel in pictures.panels():
        assert f"`{name}` (figure) and `{name}_table`" in generated[f"panels/{panel.id}.md"]
        for chart in panel.charts:
            title = chart.title.replace(dashboards.WHO, "of the process that tracks")
            assert title.replace("|", "\\|") in generated[f"panels/{panel.id}.md"]


def test_what_a_caption_has_no_room_for_stands_on_the_page_of_a_panel(generated: dict[str, str]) -> None:
    from pages.panel_notes import NOTES

    for name, notes in NOTES.items():
        assert notes
        for note in notes:
            assert f"\n* {note}\n" in generated[f"panels/{name}.md"]


def test_the_examples_in_the_generators_hold(site: ModuleType) -> None:
    from pages import blocks, markdown

    for module in (blocks, markdown):
        found = doctest.testmod(module)
        assert found.attempted
        assert not found.failed


def test_docstrings_become_markdown(site: ModuleType) -> None:
    from pages.markdown import first_line, markdown

    made = markdown(
        """Do it, as :func:`~probe.hooks.emit` does. ``x[0]`` stays, [this] is no link.

        ::

            as it stands

        Args:
            one: Of *them*, `a
                b`, goes on
                here.
            **rest: A [word].

        Returns:
            That: is
            all.

        Raises:
            probe.errors.InputError: Only one, on
                two lines.

        >>> 1 + 1
        2
        """
    )
    assert made.startswith("Do it, as `emit` does. `x[0]` stays, \\[this\\] is no link.")
    assert "Args:\n    one: Of \\*them\\*, `a b`, goes on here.\n    **rest: A \\[word\\].\n" in made
    assert "Returns:\n    That: is all.\n" in made
    assert "Raises:\n    probe.errors.InputError: Only one, on two lines.\n" in made
    assert "```pycon\n>>> 1 + 1\n2\n```" in made
    assert "```text\nas it stands\n```" in made
    assert first_line(Run) == "A run that is there, being written or finished."


def test_comments_are_found_behind_and_above(tmp_path: Path, site: ModuleType) -> None:
    from pages.comments import comments

    path = tmp_path / "code.py"
    path.write_text(
        "#: Above,\n#: in two lines.\nX = 1\nclass A:\n    y: int = 2  #: behind\n    z: int = 3  # not one\n"
    )
    assert comments(path) == {"X": "Above, in two lines.", "A.y": "behind"}


def test_the_example_run_is_small_and_whole() -> None:
    files = [path for path in (DOCS / "example_run").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000
    with Run(DOCS / "example_run") as run:
        assert run.missing_ranks == []
        assert run.bad_lines == 0


def test_pictures_are_small() -> None:
    for path in (DOCS / "images").iterdir():
        assert path.stat().st_size < 300_000, path.name


# ------------------------------------------------------------------------------------------------------ the built site


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if made := os.environ.get("PROBE_SITE"):  # by `make docs`, which is as strict
        return Path(made)
    return once(tmp_path_factory, "site", _build)


def _build(place: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr


@needs_mkdocs
@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_for_nothing_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        asked = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"?(https?:[^\"\s>]+)", page.read_text())
        asked += re.findall(
            r"<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*href=\"?(https?:[^\"\s>]+)", page.read_text()
        )
        assert not asked, f"{page.name}: {asked}"


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("oom", "guides/troubleshooting.html"),
        ("leak", "guides/troubleshooting.html"),
        ("disable", "guides/instrument.html#switch-it-off"),
        ("slurm", "guides/ranks.html#slurm"),
        ("trl", "guides/instrument.html#callbacks"),
        ("compare", "guides/compare.html"),
    ],
)
def test_d_the_search_finds_what_people_look_for(built: Path, word: str, page: str) -> None:
    """In the index that the page's search reads; it looks for words of the text and of the titles."""
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = [
        one["location"]
        for one in index["docs"]
        if word in re.findall(r"\w+", re.sub(r"<[^>]+>", " ", f"{one['title']} {one['text']}").lower())
    ]
    assert any(location.startswith(page) for location in found), found


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.browser
def test_a_panel_s_page_draws_its_figure_without_network(built: Path, chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((built / "panels" / "padding_over_steps.html").as_uri())
        page.wait_for_selector(".probe-figure .main-svg")
        assert "needs JavaScript" not in page.inner_text(".probe-figure")
        assert page.inner_text("h1").startswith("Padding by cause")
        browser.close()
    assert not errors
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
