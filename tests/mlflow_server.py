"""A real MLflow server on loopback, as tests of tracking and of publishing use one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.ports import free_port


class MLflowServer:
    """A real one, that can be stopped and started again on its port with its data."""

    def __init__(self, place: Path, port: int | None = None) -> None:
        self.place = place
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers; where it runs there is nothing to do."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.place / 'server.db'}"]
        command += ["--artifacts-destination", str(self.place / "art")]
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # ten processes that nothing here needs
        with (self.place / "log").open("ab") as log:
            # A session of its own: the server has workers, and all of them must end with the test.
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.place, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            assert self._process.poll() is None, (self.place / "log").read_text()
            assert time.monotonic() < deadline, "the MLflow server didn't start"
            time.sleep(0.2)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its orderly end takes ten seconds, and nothing needs it
            self._process.wait(60)
            self._process = None
