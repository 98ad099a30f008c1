"""Ports for the servers that tests start, stop and start again."""

from __future__ import annotations

import os
import random
import socket

#: Below the range from which the system serves those who ask for any port: a server that is stopped keeps its own.
FIRST, EACH, WORKERS = 12_000, 1_000, 20


def free_port() -> int:
    """A port that nobody has, out of those of this worker of pytest.

    Returns:
        The port, on loopback.

    Raises:
        OSError: When all of them are in use.
    """
    first = FIRST + EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS)
    for port in random.SystemRandom().sample(range(first, first + EACH), EACH):
        if _can_be_had(port):
            return port
    raise OSError(f"ports {first} to {first + EACH}: all are in use")


def free_ports(count: int) -> list[int]:
    """So many of them, each another one."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def _can_be_had(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
