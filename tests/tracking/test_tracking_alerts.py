"""Item 3 of the verdict: the alert calls of W&B and Trackio, each alarm once, from no thread of the training."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import probe
from probe.core.metric import reduce_metrics
from probe.errors import InputTypeError
from probe.tracking.backends.base import TITLE_LENGTH, Alert
from probe.tracking.tracking import Tracking
from tests.tracking.tracking_readers import wandb_records
from tests.waiting import PATIENCE_S

SENTENCE = "Rank 0 waits in all_reduce for rank 1, which has one micro-batch fewer."


class Pager:
    """A user's own backend, which pages somebody."""

    made: list[Pager] = []

    def __init__(self, setup: Any) -> None:
        self.alerts: list[Alert] = []
        self.threads: set[str] = set()
        self.values: list[dict[str, float]] = []
        self.down = 0
        Pager.made.append(self)

    def log(self, values: dict[str, float], step: int) -> None:
        self.values.append(dict(values))

    def alert(self, alert: Alert) -> None:
        self.threads.add(threading.current_thread().name)
        if self.down:
            self.down -= 1
            raise ConnectionError("nobody answers")
        self.alerts.append(alert)

    def close(self, exit_code: int) -> None:
        pass


OWN = f"{__name__}:Pager"


def test_3_an_alert_reaches_a_backend_on_its_own_thread_and_is_tried_again(tmp_path) -> None:
    with Tracking("p", "e", [OWN, "file"], directory=tmp_path, announce=False) as tracking:
        pager = Pager.made[-1]
        pager.down = 2
        tracking.alert("hang · rank 0", SENTENCE, 7)
        tracking.log({"loss": 1.0}, 7)
        assert tracking.flush()
    (alert,) = pager.alerts
    assert (alert.title, alert.text, alert.step) == ("hang · rank 0", SENTENCE, 7)
    assert threading.main_thread().name not in pager.threads
    assert pager.values == [{"loss": 1.0}]  # what fails harms no metric


def test_3_alerts_of_one_title_are_several(tmp_path) -> None:
    with Tracking("p", "e", OWN, directory=tmp_path, announce=False) as tracking:
        for rank in range(3):
            tracking.alert("killed", f"Rank {rank} was killed.")
    assert [one.text for one in Pager.made[-1].alerts] == [f"Rank {rank} was killed." for rank in range(3)]


def test_3_a_title_fits_and_what_is_no_text_is_an_error(tmp_path) -> None:
    with Tracking("p", "e", OWN, directory=tmp_path, announce=False) as tracking:
        tracking.alert("x" * 200, SENTENCE)
        with pytest.raises(InputTypeError, match="title: got int, expected a str"):
            tracking.alert(1, SENTENCE)
        with pytest.raises(InputTypeError, match="text: got NoneType, expected a str"):
            tracking.alert("a", None)
    assert [len(one.title) for one in Pager.made[-1].alerts] == [TITLE_LENGTH]
    tracking.alert("late", SENTENCE)  # after finish(): reported, not raised


@pytest.mark.slow
def test_3_wandb_has_each_alarm_once(tmp_path, monkeypatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    heard = threading.Event()
    with probe.start(
        "p", run_dir=tmp_path / "run", rank=0, world_size=1, track="wandb", alarms=True, publish=False
    ) as session:
        place = session.tracking.locations["wandb"]
        session.on_alarm(lambda _: heard.set())
        for step in range(4):
            with session.step(step), probe.phase("update"):
                reduce_metrics({"actor/pg_loss": [0.5, math.nan if step == 2 else 0.25]})
        assert heard.wait(PATIENCE_S)  # while the run goes on; it looks once more when that ends
    (alert,) = [one.alert for one in wandb_records(place) if one.WhichOneof("record_type") == "alert"]
    assert (alert.title, alert.level) == ("nan · rank 0", "ERROR")
    assert alert.text.startswith("NaN went into actor/pg_loss (update · step 2 · rank 0): 1 of 2 values.")


@pytest.mark.slow
def test_3_trackio_has_the_alert_once_and_posts_it_where_its_user_wants(
    tmp_path, monkeypatch, trackio_directory
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", trackio_directory)  # before it is imported, which reads it once
    trackio = pytest.importorskip("trackio", reason="trackio lives in an environment of its own")
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TRACKIO_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/hook")
    try:
        with Tracking("alerts", "e", "trackio", directory=tmp_path, announce=False) as tracking:
            run_id = tracking.logger["trackio"].run_id
            tracking.log({"loss": 1.0}, 7)
            tracking.alert("hang · rank 0", SENTENCE, 7)
            assert tracking.flush()
            alert = Alert("again", SENTENCE, 7)
            for _ in range(2):  # as after an answer that was lost
                tracking.logger["trackio"].alert(alert)
    finally:
        server.shutdown()
        server.server_close()
    told = trackio.SQLiteStorage.get_alerts("alerts", run_id=run_id)
    assert sorted((one["title"], one["text"], one["level"], one["step"]) for one in told) == [
        ("again", SENTENCE, "error", 7),
        ("hang · rank 0", SENTENCE, "error", 7),
    ]
    assert posted[0]["title"] == "hang · rank 0"
