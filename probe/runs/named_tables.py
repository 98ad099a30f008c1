"""The frames of a run's tables by name: ``run.memory``, ``run.tables["memory"]``, ``run.failures()``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


class NamedTables(ABC):
    """What gives the frame of a table by name, and a property for each table.

    Attributes:
        path: Absolute path or URL of the run directory.
    """

    path: str

    @abstractmethod
    def table(self, name: str) -> pandas.DataFrame:
        """The frame of a table.

        Args:
            name: Of the table.

        Raises:
            UnknownNameError: There is no such table.
        """

    @property
    def memory(self) -> pandas.DataFrame:
        """:class:`~probe.records.Memory`: of one device, at scope ends and in between."""
        return self.table("memory")

    @property
    def micro_batches(self) -> pandas.DataFrame:
        """:class:`~probe.records.MicroBatch`: what each holds."""
        return self.table("micro_batches")

    @property
    def host_memory(self) -> pandas.DataFrame:
        """:class:`~probe.records.HostMemory`: what processes and their containers hold of the machine's memory."""
        return self.table("host_memory")

    @property
    def partitions(self) -> pandas.DataFrame:
        """:class:`~probe.records.Partition`: by whose rule batches were cut, with all that it was given."""
        return self.table("partitions")

    @property
    def padding(self) -> pandas.DataFrame:
        """:class:`~probe.records.Padding`: by batch, field and cause."""
        return self.table("padding")

    @property
    def samples(self) -> pandas.DataFrame:
        """:class:`~probe.records.Sample`: answers that were sampled, of large batches some."""
        return self.table("samples")

    @property
    def token_blocks(self) -> pandas.DataFrame:
        """:class:`~probe.records.TokenBlock`: what is known of each token of a few samples, packed."""
        return self.table("token_blocks")

    @property
    def rollouts(self) -> pandas.DataFrame:
        """:class:`~probe.records.Rollout`: what each replica did of a told batch, of all samples."""
        return self.table("rollouts")

    @property
    def token_fates(self) -> pandas.DataFrame:
        """:class:`~probe.records.TokenFate`: what became of the sampled tokens, of all samples."""
        return self.table("token_fates")

    @property
    def later_passes(self) -> pandas.DataFrame:
        """:class:`~probe.records.LaterPasses`: what later steps than their own trained of sampled answers."""
        return self.table("later_passes")

    @property
    def token_identity(self) -> pandas.DataFrame:
        """:class:`~probe.records.TokenIdentity`: whether the tokens that are trained are those that were sampled."""
        return self.table("token_identity")

    @property
    def group_baselines(self) -> pandas.DataFrame:
        """:class:`~probe.records.GroupBaseline`: whether what isn't trained moves a group's baseline."""
        return self.table("group_baselines")

    @property
    def calls(self) -> pandas.DataFrame:
        """:class:`~probe.records.Call`: observed functions and scopes."""
        return self.table("calls")

    @property
    def reductions(self) -> pandas.DataFrame:
        """:class:`~probe.records.Reduction`: how metrics were reduced."""
        return self.table("reductions")

    @property
    def scalars(self) -> pandas.DataFrame:
        """:class:`~probe.records.Scalar`: metrics as they were logged."""
        return self.table("scalars")

    @property
    def incidents(self) -> pandas.DataFrame:
        """:class:`~probe.records.Incident`: what went wrong with the observing."""
        return self.table("incidents")

    @property
    def stacks(self) -> pandas.DataFrame:
        """:class:`~probe.records.Stack`: where the code was in scopes that were open much longer than ever before."""
        return self.table("stacks")

    @property
    def processes(self) -> pandas.DataFrame:
        """:class:`~probe.records.Process`: who has written, each process once."""
        return self.table("processes")

    def failures(self) -> pandas.DataFrame:
        """:class:`~probe.records.Failure`: exceptions that left a micro-batch, phase or step or ended a process, each
        once with all that is known of it, in the order in which they came by the wall clocks of their machines.

        Returns:
            One row an exception; ``outermost`` is what it has left. ``batch_path`` and ``snapshot_path`` are
            whole paths or URLs, "" where there is none.
        """
        found = self.table("failures")
        newest = found.groupby(["process", "exception_id"])["revision"].transform("max")
        shown = found[found["revision"] == newest].sort_values(["wall_ns", "process"], kind="stable")
        shown = shown.reset_index(drop=True)
        for column in ("batch_path", "snapshot_path"):
            shown[column] = [f"{self.path}/{one}" if one else "" for one in shown[column]]
        return shown


class Frames(Mapping[str, "pandas.DataFrame"]):
    """The tables of a run by name, each read when it is asked for.

    Args:
        run: Which has them.
        names: Of the tables.
    """

    def __init__(self, run: NamedTables, names: list[str]) -> None:
        self._run = run
        self._names = names

    def __getitem__(self, name: str) -> pandas.DataFrame:
        return self._run.table(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
