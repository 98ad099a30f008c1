"""A real Jupyter server and a real Chromium, driven without anybody: notebooks are opened, run, saved and looked at.

Commands go through the application object that JupyterLab shows when it is asked to (``--expose-app-in-browser``),
because menus and buttons move between versions.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.ports import free_port

CHROMIUM = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip

#: No pop-ups, no saving by itself, and cells that are out of sight stay in the page.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
DARK = {"@jupyterlab/apputils-extension/themes": {"theme": "JupyterLab Dark"}}

PATIENCE_MS = 180_000


@contextlib.contextmanager
def served(command: Sequence[str], url: str, place: Path, **variables: str) -> Iterator[str]:
    """A server process, from the moment that ``url`` answers."""
    log = place / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=place, env={**os.environ, **variables}, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            _await(url, process, log)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                pass
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 300
    known = ssl.create_default_context()
    known.check_hostname, known.verify_mode = False, ssl.CERT_NONE  # a test's server has signed its certificate itself
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=30, context=known if url.startswith("https") else None).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"{url} doesn't answer; the server said:\n{log.read_text()}")


#: Whoever asks is answered.
OPEN = ("--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True")


@contextlib.contextmanager
def jupyter(
    root: Path,
    place: Path,
    app: str = "jupyterlab",
    settings: dict[str, Any] | None = None,
    port: int | None = None,
    *,
    more: Sequence[str] = OPEN,
    below: str = "http://127.0.0.1:{port}",
) -> Iterator[str]:
    """JupyterLab, or another application of Jupyter's, on the notebooks in ``root``. Gives its URL, which is ``below``
    with the port, where ``more`` says that it is another than usual.
    """
    for name, values in {**SETTINGS, **(settings or {})}.items():
        file = place / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    port = port or free_port()
    command = [
        sys.executable, "-m", app, "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}", "--expose-app-in-browser", *more,
    ]  # fmt: skip
    variables = {
        "JUPYTER_CONFIG_DIR": str(place / "config"),
        "JUPYTER_DATA_DIR": str(place / "data"),
        "JUPYTER_PATH": str(place / "data"),  # goes before what was installed into this environment, perhaps long ago
        "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(place / "workspaces"),
        "IPYTHONDIR": str(place / "ipython"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    url = below.format(port=port)
    with served(command, f"{url}/api", place, **variables):
        yield url


@contextlib.contextmanager
def browser(
    executable: str,
    profile: Path,
    size: tuple[int, int] = (1300, 1000),
    dark: bool = False,
    *,
    zoom: float = 1,
    reduced: bool = False,
) -> Iterator[Page]:
    """A page in a Chromium with a fresh profile, with a window of ``size`` points of the screen that the person has
    enlarged by ``zoom``. What goes wrong in the page is kept in ``page.troubles``, and what it asks of other machines
    in ``page.outside``. A certificate may be anybody's.
    """
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=executable, headless=True, args=CHROMIUM,
            viewport={"width": round(size[0] / zoom), "height": round(size[1] / zoom)}, device_scale_factor=zoom,
            color_scheme="dark" if dark else "light", reduced_motion="reduce" if reduced else "no-preference",
            ignore_https_errors=True,
        )  # fmt: skip
        try:
            yield _noted(context.pages[0] if context.pages else context.new_page())
        finally:
            context.close()


@contextlib.contextmanager
def another(
    page: Page, size: tuple[int, int] = (1300, 1000), dark: bool = False, *, reduced: bool = False
) -> Iterator[Page]:
    """A page as :func:`browser` gives it, in the Chromium of ``page``, which has JupyterLab's code already. Whoever was
    logged in there is so no more.
    """
    page.context.clear_cookies()
    made = _noted(page.context.new_page())
    made.set_viewport_size({"width": size[0], "height": size[1]})
    made.emulate_media(
        color_scheme="dark" if dark else "light", reduced_motion="reduce" if reduced else "no-preference"
    )
    try:
        yield made
    finally:
        made.close()


def _noted(page: Any) -> Any:
    page.troubles, page.outside = [], []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: _note_outside(page, request.url))
    page.set_default_timeout(PATIENCE_MS)
    return page


def _note_outside(page: Any, url: str) -> None:
    own = tuple(f"{kind}://127.0.0.1" for kind in ("http", "https", "ws", "wss"))
    if not url.startswith((*own, "data:", "blob:", "chrome")):
        page.outside.append(url)


def await_that(
    page: Page,
    holds: Callable[[], Any],
    seconds: float = PATIENCE_MS / 1000,
    seen: Callable[[], Any] = lambda: "",
) -> Any:
    """What ``holds`` gives, once that is true or isn't empty; where it never is, the failure says what was ``seen`` and
    what the page says. Playwright's own ``expect`` is better where it can say the same.
    """
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"{found!r} is all that came; {seen()}\n{page.inner_text('body')[:3000]}"
        page.wait_for_timeout(100)
    return found


def end_kernels(url: str, notebook: str) -> None:
    """Shut the kernel of a notebook down, as when its server has gone."""
    with urllib.request.urlopen(f"{url}/api/sessions", timeout=60) as reply:
        sessions = json.load(reply)
    for one in sessions:
        if one["path"] == notebook:
            asked = urllib.request.Request(f"{url}/api/sessions/{one['id']}", method="DELETE")
            urllib.request.urlopen(asked, timeout=60).close()


def write_notebook(path: Path, *cells: str) -> Path:
    """A notebook of code cells that hasn't run."""
    import nbformat

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, path)
    return path


class Lab:
    """A notebook that is open in JupyterLab."""

    def __init__(self, page: Page, url: str, name: str, *, kernel: bool = True, at: str = "lab/tree") -> None:
        self.page = page
        page.goto(f"{url}/{at}/{name}" + ("?reset" if at.startswith("lab") else ""))
        self.await_open(kernel=kernel)

    def await_open(self, *, kernel: bool = True) -> None:
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell")
        self.page.wait_for_function("window.jupyterapp !== undefined")
        if kernel:
            self.page.wait_for_function(
                """() => {
                    const kernel = window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel;
                    return kernel && kernel.connectionStatus === "connected" && kernel.status !== "unknown";
                }"""
            )

    def run(self, cell: int) -> None:
        """Begin to run a cell; see :meth:`busy`."""
        self.page.evaluate(
            """(cell) => {
                const content = window.jupyterapp.shell.currentWidget.content;
                content.deselectAll();
                content.activeCellIndex = cell;
                window.jupyterapp.commands.execute("notebook:run-cell");
            }""",
            cell,
        )

    def run_all(self, cells: int) -> None:
        """Run the first cells, one after the other."""
        for cell in range(cells):
            self.run(cell)
            self.wait(cell)

    def busy(self, cell: int) -> bool:
        prompt = self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-InputPrompt").first
        return "*" in (prompt.text_content() or "")

    def wait(self, cell: int) -> None:
        """Until the cell has run."""
        self.page.wait_for_function(
            """(cell) => {
                const one = document.querySelectorAll(".jp-Notebook .jp-Cell")[cell];
                return /[0-9]/.test(one.querySelector(".jp-InputPrompt").textContent);
            }""",
            arg=cell,
        )

    def text(self, cell: int) -> str:
        output = self.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea")
        return "\n".join(output.all_inner_texts())

    def save(self) -> None:
        """Save it, and wait until nothing in the page is newer than the file."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        self.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
