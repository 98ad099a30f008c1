"""A JupyterHub for a test: two people without system accounts, each with a server of their own, on loopback."""

import os
import sys
from pathlib import Path
from typing import Any


def with_port(spawner: Any) -> None:
    spawner.port = int(os.environ[f"HUB_PORT_OF_{spawner.user.name.upper()}"])


def configure(c: Any) -> None:
    port = int(os.environ["HUB_PORT"])
    c.JupyterHub.bind_url = f"http://127.0.0.1:{port}/hubs/x/"
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{os.environ['HUB_PORT_2']}"
    c.JupyterHub.cleanup_servers = True
    c.JupyterHub.authenticator_class = "dummy"
    c.JupyterHub.spawner_class = "simple"
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ['HUB_PORT_3']}"
    c.ConfigurableHTTPProxy.command = [os.environ["HUB_PROXY"]]
    c.DummyAuthenticator.password = "pw"
    c.Authenticator.allowed_users = {"ann", "bob"}
    c.JupyterHub.api_tokens = {os.environ["HUB_TOKEN_OF_ANN"]: "ann"}
    c.SimpleLocalProcessSpawner.home_dir_template = os.environ["HUB_HOMES"] + "/{username}"
    c.Spawner.cmd = [str(Path(sys.executable).parent / "jupyterhub-singleuser")]
    c.Spawner.args = ["--allow-root", "--LabApp.extension_manager=readonly", "--LabApp.expose_app_in_browser=True"]
    c.Spawner.default_url = "/lab"
    # The hub's own choice is a port that another process may get before the server has it: then that never begins.
    c.Spawner.pre_spawn_hook = with_port
    c.Spawner.start_timeout = c.Spawner.http_timeout = 600
    kept = ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH", "PYTHONPATH")
    c.Spawner.environment = {name: os.environ[name] for name in kept if name in os.environ}


if "get_config" in globals():  # JupyterHub reads this file; nobody else has that function
    configure(globals()["get_config"]())
