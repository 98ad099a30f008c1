"""What docs/backends.md says is so."""

from __future__ import annotations

import dataclasses
import http.server
import json
import re
import sys
import threading
from pathlib import Path

import pytest

from probe.tracking.backends import BACKENDS, Setup, load_backend
from probe.tracking.media import KINDS
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import wandb_records

TEXT = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")


def table(first_cell):
    """Row by its first cell: column → cell."""
    lines = TEXT.splitlines()
    begin = next(place for place, line in enumerate(lines) if line.startswith(first_cell))
    head = [cell.strip() for cell in lines[begin].strip("|").split("|")]
    rows = {}
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            return rows
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[cells[0]] = dict(zip(head[1:], cells[1:], strict=True))
    return rows


def test_every_backend_has_its_section():
    assert set(re.findall(r"^## (\w+)$", TEXT, re.MULTILINE)) == set(BACKENDS)
    for name in set(BACKENDS) - {"console", "file"}:
        assert f"probe-rl[{name}]" in TEXT


def test_the_table_of_kinds_is_what_backends_show():
    rows = table("| kind |")
    assert set(rows) == {*KINDS, "number"}
    for name in BACKENDS:
        shows = getattr(load_backend(name), "shows", None)
        if name == "swanlab":  # as its newest version does
            shows = {"text", "table", "figure", "image"}
        said = {kind for kind, columns in rows.items() if columns[name] == "yes"}
        assert said == {*shows, "number"}, name


def test_the_table_of_the_run_is_what_backends_take():
    rows = table("| |")
    for method, row in (("params", "parameters"), ("describe", "description"), ("tag", "tags"), ("layout", "layout")):
        for name in BACKENDS:
            assert (rows[row][name] != "–") == hasattr(load_backend(name), method), (name, method)


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
                assert tracking.flush(60)
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
