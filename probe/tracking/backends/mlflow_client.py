"""MLflow's client: where it connects to, how it is imported, and which of its errors last."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from probe.errors import BackendError, MissingDependencyError

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

#: What a server says that will say the same the next time.
LASTING: Final = {
    "INVALID_PARAMETER_VALUE",
    "RESOURCE_DOES_NOT_EXIST",
    "RESOURCE_ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "INVALID_STATE",
    "MALFORMED_REQUEST",
    "NOT_IMPLEMENTED",
    "ENDPOINT_NOT_FOUND",
}


def stores(directory: Path | None, *, private: bool = False) -> tuple[str, str | None]:
    """Where the runs are kept, and where artifacts are: None leaves that to the server.

    Args:
        directory: Of the run; None is the working directory.
        private: Whether what is made here is for its owner alone.

    Returns:
        Both as URIs.

    Raises:
        BackendError: The directory can't be written to.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return uri, None
    base = directory or Path.cwd()
    try:
        base.mkdir(parents=True, exist_ok=True)
        if private:  # SQLite keeps to the mode of the file that it finds
            (base / "mlflow.db").touch(0o600)
            (base / "mlflow.db").chmod(0o600)
            with suppress(FileExistsError):  # also a file: what can't be put there is told when it is put
                (base / "mlflow-artifacts").mkdir(0o700)
    except OSError as error:
        raise BackendError(f"backend 'mlflow' can't write to {base}: {error}") from error
    return f"sqlite:///{(base / 'mlflow.db').as_posix()}", (base / "mlflow-artifacts").as_uri()


def import_client() -> type[MlflowClient]:
    """MLflow's client, imported with usage telemetry off where nobody has imported mlflow before.

    Raises:
        MissingDependencyError: Without the package mlflow.
    """
    # Telemetry is read while mlflow is imported; if it is already, whoever imported it has chosen.
    off = "MLFLOW_DISABLE_TELEMETRY" if "mlflow" not in sys.modules else None
    try:
        with switched_on(off), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations among its own dependencies
            from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingDependencyError.of("backend 'mlflow'", "mlflow", "mlflow") from error
    return MlflowClient


@contextmanager
def switched_on(variable: str | None) -> Iterator[None]:
    """An environment variable that MLflow offers no other way for; what the user has set stays."""
    if variable is None or variable in os.environ:
        yield
        return
    os.environ[variable] = "true"
    try:
        yield
    finally:
        os.environ.pop(variable, None)


@contextmanager
def quiet() -> Iterator[None]:
    """Set up without MLflow's and SQLAlchemy's own chatter about making tables and deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from mlflow.utils.logging_utils import suppress_logs_in_thread
        except ImportError:  # a version without that helper; chatter is no reason to fail
            yield
            return
        with suppress_logs_in_thread():
            yield


@contextmanager
def translated() -> Iterator[None]:
    """Turn all but refusals into ConnectionError, after which the stream goes on trying."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code in LASTING:
            raise
        raise ConnectionError(str(error)) from error
