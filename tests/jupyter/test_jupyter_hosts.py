"""The plugin behind a real JupyterHub, and over HTTPS. ``tests/browser/test_hosts.py`` has it in Notebook 7."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from playwright.sync_api import expect

from tests.browser.conftest import ENDLESS
from tests.browser.jupyter import another, served
from tests.jupyter import plugin
from tests.jupyter.driving import PANEL, await_that, command, layout_saved, row, show, step_of, step_shown
from tests.ports import free_ports
from tests.sample_run import sample_rows, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
TOKEN_OF_ANN = "0123456789abcdef0123456789abcdef"
TRAINING = (sys.executable, str(ROOT / "tests" / "browser" / "training.py"))
PROXY = ROOT / "node_modules" / ".bin" / "configurable-http-proxy"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL of a hub that lies below a path of its own, and the directory of people's homes."""
    if not PROXY.exists():
        if os.environ.get("PROBE_REQUIRE_NODE"):
            pytest.fail("JupyterHub's proxy isn't there: `make js` installs it")
        pytest.skip("JupyterHub's proxy isn't there (needs node: `make js`)")
    place, homes = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("homes")
    plugin.install(place)
    for who in ("ann", "bob"):
        write_run(homes / who / "runs" / f"of-{who}", sample_rows(2, 6), project=who, experiment="grpo")
    ports = free_ports(5)
    variables = {
        "HUB_PORT": str(ports[0]), "HUB_PORT_2": str(ports[1]), "HUB_PORT_3": str(ports[2]),
        "HUB_PORT_OF_ANN": str(ports[3]), "HUB_PORT_OF_BOB": str(ports[4]),
        "HUB_HOMES": str(homes), "HUB_PROXY": str(PROXY), "HUB_TOKEN_OF_ANN": TOKEN_OF_ANN,
        "JUPYTER_CONFIG_PATH": str(place / "config"), "JUPYTER_PATH": str(place / "data"),
    }  # fmt: skip
    start = [sys.executable, "-m", "jupyterhub", "-f", str(Path(__file__).parent / "hub_config.py")]
    url = f"http://127.0.0.1:{ports[0]}/hubs/x"
    with served(start, f"{url}/hub/api", place, **variables):
        yield url, homes


#: Begin a kernel for a notebook of that name.
BEGIN = """(path) => window.jupyterapp.serviceManager.sessions.startNew(
    { path, name: path, type: "notebook", kernel: { name: "python3" } }).then(() => null)"""


def text(url: str, token: str) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"token {token}"})) as reply:
        answer: str = reply.read().decode()
    return answer


def login(page: Any, url: str, who: str) -> None:
    page.goto(f"{url}/hub/login")
    page.fill("input[name=username]", who)
    page.fill("input[name=password]", "pw")
    page.click("[type=submit]")
    page.wait_for_url(f"{url}/user/{who}/lab**")
    page.wait_for_function("window.jupyterapp !== undefined")
    page.evaluate("() => window.jupyterapp.restored.then(() => null)")


@pytest.fixture
def ending() -> Iterator[contextlib.ExitStack]:
    """What is done at the end of a test, however it ends."""
    with contextlib.ExitStack() as made:
        yield made


def test_4_behind_a_hub_each_person_sees_and_opens_their_own_runs(
    hub: tuple[str, Path], chrome: Any, shots: Path, ending: contextlib.ExitStack
):
    url, homes = hub
    with another(chrome) as page:
        login(page, url, "ann")
        # Before the first question of her page: it takes long to begin, and is looked at below.
        writer = subprocess.Popen([*TRAINING, str(homes / "ann" / "runs" / "live"), str(ENDLESS), "0.05"])
        ending.callback(writer.wait)
        ending.callback(writer.kill)
        command(page, "probe:runs")
        await_that(page, lambda: row(page, "ann / grpo").count())
        row(page, "ann / grpo").locator(".probe-run-name").click()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        # A chart that needs plotly.js: a script element can't send the token that the hub asks for.
        loaded = (
            "(globalThis.__probe_plotly ?? Promise.resolve(null)).then((found) => Boolean(found?.newPlot ?? found))"
        )
        await_that(page, lambda: page.evaluate(loaded))
        page.screenshot(path=shots / "lab_plugin_hub.png")
        layout_saved(page, "runs/of-ann")
        page.reload()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        # A run that began after the page: it streams through the proxy, and its alarm comes as a notification.
        page.evaluate("globalThis.__same = true")
        command(page, "probe:runs")
        await_that(page, lambda: row(page, "live").count() and "Live" in row(page, "live").inner_text())
        expect(page.locator(".probe-runs li")).to_have_count(2)
        row(page, "live").locator(".probe-run-name").click()
        await_that(page, lambda: step_of(page) >= 1)
        seen = step_of(page)
        await_that(page, lambda: step_of(page) > seen + 3)
        writer.kill()
        page.wait_for_selector(".jp-toast-message >> text=/was killed/")
        assert page.evaluate("globalThis.__same")  # nobody has loaded the page again meanwhile
        # Her own server refuses whoever isn't logged in.
        assert asked(f"{url}/user/ann/probe/api/runs", None) == 403
        assert asked(f"{url}/user/ann/probe/api/runs", TOKEN_OF_ANN) == 200
    with another(chrome) as page:
        login(page, url, "bob")
        command(page, "probe:runs")
        await_that(page, lambda: row(page, "bob / grpo").count())
        expect(page.locator(".probe-runs li")).to_have_count(1)
        # While both servers run the other person's refuses her: its list, and a run of his by its name.
        for asks in ("runs", "findings?run=runs/of-bob", "stream?run=runs/of-bob", "plotly.js", "memory"):
            assert asked(f"{url}/user/bob/probe/api/{asks}", TOKEN_OF_ANN) == 403
        # A notebook of his is told by his server, and by hers not, although both see all processes of the machine.
        page.evaluate(BEGIN, "secret-of-bob.ipynb")
        name = page.locator(".probe-holder-name", has_text="secret-of-bob.ipynb")
        await_that(page, name.count)
        told = text(f"{url}/user/ann/probe/api/memory", TOKEN_OF_ANN)
        assert '"rss"' in told
        assert "bob" not in told
        page.evaluate("() => window.jupyterapp.serviceManager.sessions.shutdownAll()")
    # His run isn't reached through her own server either.
    his = urllib.parse.quote(str(homes / "bob" / "runs" / "of-bob"), safe="")
    assert asked(f"{url}/user/ann/probe/api/findings?run={his}", TOKEN_OF_ANN) == 404


def asked(url: str, token: str | None) -> int:
    """The status of what a server answers to whom the token says."""
    told = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    try:
        with urllib.request.urlopen(told, timeout=120) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_4_over_https_below_an_address_of_its_own_with_a_token_and_xsrf(chrome: Any, tmp_path: Path):
    root, place = tmp_path / "home", tmp_path / "jupyter"
    root.mkdir()
    place.mkdir()
    write_run(root / "runs" / "first", sample_rows(2, 6), project="shop", experiment="first")
    own = [*certificate(place), "--ServerApp.base_url=/own/a%20b/", "--IdentityProvider.token=known"]
    below = "https://127.0.0.1:{port}/own/a%20b"
    with plugin.server(root, place, more=own, below=below) as url, another(chrome) as page:
        refused = page.request.get(f"{url}/probe/api/runs")
        assert refused.status == 403
        show(page, f"{url}/lab?token=known&reset")
        command(page, "probe:runs")
        await_that(page, lambda: row(page, "shop / first").count())
        row(page, "shop / first").locator(".probe-run-name").click()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        layout_saved(page, "runs/first")
        page.reload()
        await_that(page, lambda: page.locator(PANEL).count() and step_shown(page) == 5)
        assert page.troubles == []
        assert page.outside == []


def certificate(place: Path) -> list[str]:
    """A certificate that nobody but the server itself has signed, as the server's arguments."""
    key, signed = place / "own.key", place / "own.pem"
    own = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, own.public_key(), x509.random_serial_number(), now - day, now + day)
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(own.private_bytes(serialization.Encoding.PEM, *plain))
    signed.write_bytes(made.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return [f"--ServerApp.keyfile={key}", f"--ServerApp.certfile={signed}"]
