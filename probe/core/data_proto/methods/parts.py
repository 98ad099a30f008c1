"""Methods of a DataProto that cut it into parts, and that add the rows with which it divides evenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from probe.core.data_proto import cutting, padding
from probe.core.data_proto.members import Members
from probe.core.data_proto.naming import method_group
from probe.hooks import observed


@method_group
class PartMethods(Members):
    """Parts of the same size, parts of a given size, mini-batches; and padding, with which rows divide evenly."""

    @observed("data_proto.chunk", "a batch is cut into equal parts")
    def chunk(self, chunks: int) -> list[Self]:
        """``chunks`` batches of the same size, as views.

        Where padding is enabled (:meth:`is_padding_enabled`) and the rows don't divide evenly, copies of the
        first rows are added at the end, and ``meta_info["pad_rows"]`` of each part says how many of its last
        rows are such copies. ``concat`` adds these up, so that ``unpad_dataproto(joined,
        joined.meta_info["pad_rows"])`` takes them off again.

        Raises:
            InputError: ``chunks`` is below 1, or the rows don't divide evenly without padding.

        >>> [len(part) for part in DataProto.from_dict({"a": torch.arange(6)}).chunk(3)]
        [2, 2, 2]
        """
        return cutting.chunk(self, chunks)

    @observed("data_proto.split", "a batch is cut into parts of a given size")
    def split(self, split_size: int) -> list[Self]:
        """Batches of ``split_size`` rows, as views; the last may be shorter.

        Raises:
            InputError: ``split_size`` is below 1.

        >>> [len(part) for part in DataProto.from_dict({"a": torch.arange(5)}).split(2)]
        [2, 2, 1]
        """
        return cutting.split(self, split_size)

    @observed("data_proto.make_iterator", "an iterator over mini-batches is made")
    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches of this batch through torch's DataLoader, ``epochs`` times over.

        Args:
            mini_batch_size: Rows in each mini-batch; it must divide the number of rows.
            epochs: How many times all rows are gone through.
            seed: Seed of the one generator that all epochs draw from. Rows are shuffled only on request.
            dataloader_kwargs: Further arguments of the DataLoader, such as ``{"shuffle": True}``.

        Returns:
            An iterator of ``len(self) * epochs // mini_batch_size`` batches, each with meta info of its own.

        Raises:
            InputError: The rows don't divide evenly (raised at once and not at the first step), or an argument of the
                DataLoader is one that is set here.

        >>> data = DataProto.from_dict({"a": torch.arange(4)})
        >>> [part.batch["a"].tolist() for part in data.make_iterator(2, epochs=1)]
        [[0, 1], [2, 3]]
        """
        return cutting.mini_batches(self, mini_batch_size, epochs, seed, dataloader_kwargs)

    @observed("data_proto.padding", "copies of one row are added at the end")
    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Add ``padding_size`` copies of the first (``padding_candidate="first"``) or else the last row, in place.

        Args:
            padding_size: How many rows are added.
            padding_candidate: With ``"first"`` the first row is copied, with anything else the last.

        Raises:
            InputError: The size is negative, or the batch has no rows.

        >>> data = DataProto.from_dict({"a": torch.tensor([1, 2])})
        >>> data.padding(2)
        >>> data.batch["a"].tolist()
        [1, 2, 2, 2]
        """
        padding.padding(self, padding_size, padding_candidate)
