"""Whether a place can be used: asked without leaving anything there."""

from __future__ import annotations

import ssl
import tempfile
import urllib.error
import urllib.request
from pathlib import Path


def unanswered(url: str, timeout_s: float = 5.0) -> str:
    """Why nobody answers at ``url``; empty where somebody does, or where it isn't an http address.

    Any answer below 500 is one: a gateway in front may ask for a login, an old server may not know the path or want
    something posted (some say 501 then). So is a certificate that isn't trusted, as a backend's own client may be told
    of other certificates than the system's.
    """
    if not url.startswith(("http://", "https://")):
        return ""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310  (http, as checked)
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return f"it answers {error.code} {error.reason}" if error.code >= 500 and error.code != 501 else ""
    except urllib.error.URLError as error:
        return "" if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except OSError as error:
        return str(error) or repr(error)


def unwritable(path: Path) -> str:
    """Why nothing can be written under ``path``, which need not exist; empty where it can."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return f"{there}: {error.strerror or error}"
    return ""
