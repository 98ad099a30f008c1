"""TensorBoard and MLflow, opened on the demo's run: the dashboards are there to be looked at."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import another, await_that, served
from tests.ports import free_port

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SIZE = (1400, 1100)

#: The path of a line through several points is longer than that, in characters.
LINE = 40


@pytest.fixture(scope="module")
def tensorboard(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(demo)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with served(command, f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("tensorboard")) as url:
        until_loaded(f"{url}/data/plugin/custom_scalars/layout", "Time of each phase")
        yield url


def until_loaded(url: str, words: str) -> None:
    """A page that is opened while TensorBoard still reads says that there is nothing, and asks again late."""
    deadline, said = time.monotonic() + 240, ""
    while words not in said:
        assert time.monotonic() < deadline, f"{url} never says {words!r}, but {said[:2000]!r}"
        with contextlib.suppress(OSError), urlopen(url, timeout=60) as answer:
            said = answer.read().decode()
        time.sleep(0.5)


@pytest.fixture(scope="module")
def mlflow(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the run's page."""
    from mlflow.tracking import MlflowClient

    port, store = free_port(), f"sqlite:///{demo / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    place = tmp_path_factory.mktemp("mlflow")
    with served(command, f"http://127.0.0.1:{port}/health", place, **quiet):
        client = MlflowClient(f"http://127.0.0.1:{port}")
        experiment = client.get_experiment_by_name("demo")
        (run,) = client.search_runs([experiment.experiment_id])
        yield f"http://127.0.0.1:{port}/#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}"


def drawn(card: Any, kind: str) -> int:
    """How many lines, or areas, a chart has."""
    lengths: list[int] = card.locator(f"svg path.{kind}").evaluate_all(
        "all => all.map(one => (one.getAttribute('d') ?? '').length)"  # a path comes before its line
    )
    return sum(one > LINE for one in lengths)


def card(page: Any, kind: str, title: str) -> Any:
    """A chart of TensorBoard's, scrolled to: it draws those that are in sight."""
    found = page.locator(f"tf-custom-scalar-{kind}-chart-card", has_text=title).first
    found.scroll_into_view_if_needed()
    await_that(page, lambda: drawn(found, "line"))
    return found


def test_tensorboard_s_custom_scalars_are_the_dashboards(chrome, tensorboard, shots: Path) -> None:
    with another(chrome, SIZE) as page:
        page.goto(f"{tensorboard}/#custom_scalars")
        lines = card(page, "multi-line", "Time of each phase, mean across ranks")
        await_that(page, lambda: drawn(lines, "line") >= 5)  # a line for each phase
        margin = card(page, "margin", "Time of a step across ranks")
        await_that(page, lambda: drawn(margin, "area"))  # between the smallest and the largest
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=shots / "tensorboard_custom_scalars.png")
        for title in ("Overview", "Memory", "Token balance", "Padding tax", "Reductions"):
            expect(page.get_by_text(title, exact=True).first).to_be_attached()
        assert page.troubles == []


def test_tensorboard_has_lengths_words_and_hyper_parameters(chrome, tensorboard, shots: Path) -> None:
    with another(chrome, SIZE) as page:
        page.goto(f"{tensorboard}/#histograms")
        page.locator("vz-histogram-timeseries svg path").first.wait_for(state="attached")
        page.screenshot(path=shots / "tensorboard_histograms.png")
        page.goto(f"{tensorboard}/#text")
        page.reload()
        page.get_by_text("config/text_summary").first.wait_for()
        page.locator("tf-tag-filterer input").first.fill("probe/findings")
        # "So far" where the last edition was given up, as on a loaded machine
        page.get_by_text(re.compile("(The whole run|So far), up to step")).first.wait_for()
        page.screenshot(path=shots / "tensorboard_text.png")
        page.goto(f"{tensorboard}/#hparams")
        page.reload()
        page.get_by_text("prompts_per_rank").first.wait_for(state="attached")
        page.screenshot(path=shots / "tensorboard_hparams.png")
        assert page.troubles == []


def test_mlflow_s_run_says_what_was_found(chrome, mlflow, shots: Path) -> None:
    with another(chrome, SIZE) as page:
        page.goto(mlflow)
        page.get_by_text("probe found").first.wait_for()
        page.screenshot(path=shots / "mlflow_overview.png")
        page.goto(f"{mlflow}/system-metrics")
        page.get_by_text("system_memory_usage_megabytes").first.wait_for()
        page.locator(".js-plotly-plot path").first.wait_for(state="attached")
        page.screenshot(path=shots / "mlflow_system_metrics.png")
        assert page.troubles == []


def test_mlflow_s_artifacts_are_interactive_figures(chrome, mlflow, shots: Path) -> None:
    with another(chrome, SIZE) as page:
        page.goto(f"{mlflow}/artifacts/figures.html")
        frame = page.frame_locator("iframe")
        frame.locator(".main-svg").first.wait_for()
        frame.locator("text=Memory over time").first.wait_for()
        page.screenshot(path=shots / "mlflow_figure.png")
        entry = frame.locator(".legend g.traces").first
        expect(entry).to_have_attribute("style", re.compile("opacity: 1"))
        frame.locator(".legendtoggle").first.click()  # switches what it stands for off
        expect(entry).to_have_attribute("style", re.compile(r"opacity: 0\.5"))
        assert page.outside == []  # the page needs no network
