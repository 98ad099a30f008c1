"""What docs/backends.md says is so."""

from __future__ import annotations

import dataclasses
import http.server
import json
import re
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from probe.tracking.backends import BACKENDS, Setup, backend_class
from probe.tracking.backends.base import NOTES
from probe.tracking.media import KINDS
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import wandb_records

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "backends.md").read_text(encoding="utf-8")


@pytest.fixture
def pages():
    """How the site's pages are made."""
    before = list(sys.path)
    sys.path.insert(0, str(DOCS))
    import pages.backends
    import pages.inserts

    yield pages
    sys.path[:] = before


def table(text, first_cell):
    """Row by its first cell: column → cell."""
    lines = text.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(first_cell))
    head = [cell.strip() for cell in lines[begin].strip("|").split("|")]
    rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return rows
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = dict(zip(head[1:], cells[1:], strict=True))
    return rows


def test_every_backend_has_its_section_on_the_site(pages):
    made = pages.inserts.filled(TEXT)
    assert set(re.findall(r"^## (\w+)$", made, re.MULTILINE)) == set(BACKENDS)
    for name in set(BACKENDS) - {"console", "file"}:
        assert f"probe-rl[{name}]" in made


def test_the_tables_of_the_page_are_what_the_classes_say(pages):
    """For the backends that it lists: one that has just been added stands on the site, and here once it is written."""
    written = pages.inserts.written(TEXT)
    for name, make in (("backend_kinds", pages.backends.kinds), ("backend_runs", pages.backends.run)):
        listed = [cell.strip() for cell in written[name].splitlines()[0].strip("|").split("|")][1:]
        assert set(listed) <= set(BACKENDS)
        assert written[name] == make(listed), "run python docs/make_backends.py"
        assert make() in pages.inserts.filled(TEXT)


def test_a_backend_that_has_just_been_added_stands_on_the_site(pages, monkeypatch, tmp_path):
    source = """
        from probe.tracking.backends.base import Backend

        class Heliograph(Backend):
            \"""Sends metrics by mirrors, to :class:`Loft`.\"""

            shows = frozenset({"text"})
            places = {"describe": "a note below"}

            def log(self, values, step): pass
            def describe(self, markdown): pass
            def tag(self, tags): pass
            def close(self, exit_code): pass
    """
    (tmp_path / "heliograph_backend.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(BACKENDS, "heliograph", "heliograph_backend:Heliograph")
    made = pages.inserts.filled(TEXT)
    sys.modules.pop("heliograph_backend")
    assert "## heliograph\n\nNothing to install.\n\nSends metrics by mirrors, to `Loft`.\n" in made
    shown = {kind for kind, columns in table(made, "| kind |").items() if columns["heliograph"] == "yes"}
    assert shown == {"number", "text"}
    said = {row: columns["heliograph"] for row, columns in table(made, "| |").items()}
    assert said == {
        "parameters": "–",
        "description": "a note below",
        "tags": "yes",
        "layout": "–",
        "alerts": "–",
        "exit code": "–",
    }


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_a_backend_says_where_it_shows_only_what_it_takes(name):
    backend = backend_class(name)
    assert set(backend.places) - {"exit_code"} <= {method for method in (*NOTES, "alert") if backend.has(method)}
    assert backend.shows <= KINDS
    assert backend.has("show") == bool(backend.shows)


def test_the_backend_of_ones_own_works_as_it_stands_there(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n# my_team/webhook.py\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "my_team").mkdir()
    (tmp_path / "my_team" / "webhook.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    posted = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("MY_TEAM_HOOK", f"http://127.0.0.1:{server.server_port}/")
        path = "my_team.webhook:WebHook"
        try:
            with Tracking("project", "experiment", ["console", path], directory=tmp_path / "run") as tracking:
                tracking.log({"loss": 0.5, "note": "good"}, 1)
                assert tracking.flush()
                tracking.describe("# Found")
        finally:
            server.shutdown()
            thread.join()
            sys.modules.pop("my_team.webhook", None)
            sys.modules.pop("my_team", None)
    assert [sorted(set(one) - {"run"}) for one in posted] == [
        ["step", "values"],
        ["step", "texts"],
        ["description"],
        ["exit_code"],
    ]
    assert posted[0] == {"run": "project/experiment", "step": 1, "values": {"loss": 0.5}}


# ------------------------------------------------------------------------ configuration, as verl's users know it


@dataclasses.dataclass
class Trainer:
    lr: float = 0.5
    layers: tuple[int, ...] = (1, 2)


def omegaconf():
    from omegaconf import OmegaConf

    return OmegaConf.create({"trainer": {"lr": 0.5, "layers": [1, 2], "copy": "${trainer.lr}"}})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"trainer": Trainer()}, {"trainer/lr": "0.5", "trainer/layers": "[1, 2]"}),
        (Trainer(), {"lr": "0.5", "layers": "[1, 2]"}),
        (omegaconf(), {"trainer/lr": "0.5", "trainer/layers": "[1, 2]", "trainer/copy": "0.5"}),
        (None, {}),
        ({}, {}),
    ],
)
def test_a_configuration_of_any_shape_becomes_parameters(config, expected, tmp_path):
    with Tracking("p", "e", ["file"], config, directory=tmp_path) as tracking:
        tracking.log({"x": 1}, 1)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (found,) = [line["parameters"] for line in lines if "parameters" in line] or [{}]
    assert {name: str(value) for name, value in found.items()} == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # W&B's own client
def test_wandb_takes_its_entity_directory_and_run_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ENTITY", "our-team")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("WANDB_RUN_ID", "chosen")
    (tmp_path / "elsewhere").mkdir()
    with Tracking("p", "e", "wandb", {"no": "trainer key"}, directory=tmp_path / "run") as tracking:
        tracking.log({"x": 1}, 1)
    assert tracking.locations["wandb"].startswith(str(tmp_path / "elsewhere"))
    (run, *_) = [
        one.run for one in wandb_records(tracking.locations["wandb"]) if one.WhichOneof("record_type") == "run"
    ]
    assert (run.entity, run.run_id) == ("our-team", "chosen")


def test_swanlab_takes_its_directory_and_mode_from_the_environment(tmp_path, monkeypatch):
    pytest.importorskip("swanlab", reason="swanlab lives in an environment of its own")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_LOG_DIR", str(tmp_path / "elsewhere"))
    with Tracking("p", "e", "swanlab", directory=tmp_path / "run") as tracking:
        tracking.log({"x": 1}, 1)
    assert tracking.locations["swanlab"].startswith(str(tmp_path / "elsewhere"))


def test_a_setup_is_what_the_page_says():
    assert {"project", "experiment", "directory", "parameters", "report"} <= set(Setup.__dataclass_fields__)
