"""Parts of a DataProto: chunks, padding, iterators and joining items again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe import hooks
from probe.core.protocol import (
    DataProto,
    DataProtoConfig,
    collate_fn,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from probe.errors import (
    InputError,
    InputTypeError,
    MissingKeyError,
)
from tests.core.numbered_batches import Special, ids, make, rows_of

# -------------------------------------------------------------------------------- cutting, padding


def test_chunk_and_split():
    data = make(6, with_jagged=True)
    parts = data.chunk(3)
    assert [ids(part) for part in parts] == [[0, 1], [2, 3], [4, 5]]
    assert parts[0].batch["a"].data_ptr() == data.batch["a"].data_ptr()
    assert all(part.batch["j"].offsets() is part.batch["k"].offsets() for part in parts)
    parts[0].meta_info["new"] = 1
    assert "new" not in parts[1].meta_info
    assert [len(part) for part in data.split(4)] == [4, 2]
    assert make(0).split(4) == []
    assert [len(part) for part in make(0).chunk(2)] == [0, 0]
    for bad in (0, -1):
        with pytest.raises(InputError, match="chunks"):
            data.chunk(bad)
        with pytest.raises(InputError, match="split_size"):
            data.split(bad)
    with pytest.raises(InputError, match="4 for 6 rows"):
        data.chunk(4)
    with pytest.raises(InputTypeError):
        data.chunk(2.0)


@pytest.mark.parametrize(
    ("rows", "chunks", "pads"),
    [(6, 4, [0, 0, 0, 2]), (5, 4, [0, 0, 1, 2]), (7, 3, [0, 0, 2]), (1, 4, [0, 1, 1, 1]), (8, 4, None)],
)
def test_chunk_pads_and_says_how_many_rows(rows, chunks, pads):
    data = DataProto.from_dict({"a": torch.arange(rows)}, {"u": list(range(rows))}, auto_padding=True)
    data.meta_info["metrics"] = {"loss": 1.0}
    heard = []

    class Hear(hooks.Listener):
        def fire(self, event):
            heard.append((event.values["rows"], event.values["pad_rows"], event.values["source"]))

    with hooks.subscribe(Hear(), "data_proto.padded"):
        parts = data.chunk(chunks)
    assert {len(part) for part in parts} == {-(-rows // chunks)}
    if pads is None:
        assert not heard
        assert all("pad_rows" not in part.meta_info for part in parts)
        return
    assert [part.meta_info["pad_rows"] for part in parts] == pads
    assert heard == [(rows, sum(pads), "data_proto.chunk")]
    assert all(part.meta_info["metrics"] == {"loss": 1.0} for part in parts)
    joined = DataProto.concat(parts)
    assert joined.meta_info["pad_rows"] == sum(pads)
    assert ids(joined)[rows:] == [row % rows for row in range(sum(pads))]
    back = unpad_dataproto(joined, joined.meta_info["pad_rows"])
    assert ids(back) == list(range(rows))
    assert "pad_rows" not in back.meta_info
    assert "pad_rows" not in joined[:2].meta_info


@pytest.mark.parametrize("name", ["PROBE_AUTO_PADDING", "VERL_AUTO_PADDING"])
def test_auto_padding_by_environment_and_by_config(monkeypatch, name):
    assert not DataProtoConfig.auto_padding
    monkeypatch.setenv(name, "TRUE")
    assert DataProtoConfig.auto_padding
    assert [len(part) for part in make(3).chunk(2)] == [2, 2]
    monkeypatch.delenv(name)
    DataProtoConfig.auto_padding = True
    try:
        assert make(3).is_padding_enabled()
    finally:
        DataProtoConfig.auto_padding = False
    assert not make(3).is_padding_enabled()
    with pytest.raises(InputTypeError):
        DataProtoConfig.auto_padding = "yes"


def test_padding_copies_first_or_last():
    data = make(2, with_jagged=True)
    data.padding(2, "first")
    assert ids(data) == [0, 1, 0, 0]
    data.padding(1)
    assert ids(data) == [0, 1, 0, 0, 0]
    data.padding(0)
    assert data.non_tensor_batch["uid"].tolist() == ["u0", "u1", "u0", "u0", "u0"]
    with pytest.raises(InputError, match="padding_size"):
        data.padding(-1)
    with pytest.raises(InputError, match="without rows"):
        make(0).padding(1)


def test_pad_to_divisor_and_back(caplog):
    data = make(2, cls=Special, with_jagged=True, meta={"metrics": {"l": 1.0}})
    padded, added = pad_dataproto_to_divisor(data, 7)
    assert (type(padded), len(padded), added) == (Special, 7, 5)
    assert ids(padded) == [0, 1, 0, 1, 0, 1, 0]
    assert padded.meta_info == {"metrics": {"l": 1.0}}
    assert unpad_dataproto(padded, added) == data
    assert pad_dataproto_to_divisor(data, 2) == (data, 0)
    assert pad_dataproto_to_divisor(data, 2)[0] is data
    assert unpad_dataproto(data, 0) is data
    empty = make(0)
    assert pad_dataproto_to_divisor(empty, 4) == (empty, 0)
    assert "can't be padded" in caplog.text
    for bad in (3, -1):
        with pytest.raises(InputError, match="pad_size"):
            unpad_dataproto(data, bad)
    with pytest.raises(InputError, match="size_divisor"):
        pad_dataproto_to_divisor(data, 0)
    with pytest.raises(InputTypeError, match="data"):
        pad_dataproto_to_divisor({"a": 1}, 2)


# -------------------------------------------------------------------------------- iterators


def test_make_iterator_in_order_and_with_its_own_meta():
    data = make(6, cls=Special, with_jagged=True)
    parts = list(data.make_iterator(2, epochs=2))
    assert [ids(part) for part in parts] == [[0, 1], [2, 3], [4, 5]] * 2
    assert {type(part) for part in parts} == {Special}
    assert parts[0].non_tensor_batch["n"].dtype == np.float64
    assert parts[0].batch["j"].is_nested
    parts[0].meta_info["new"] = 1
    assert "new" not in data.meta_info
    assert "new" not in parts[1].meta_info


def test_make_iterator_shuffles_reproducibly():
    def order(seed):
        parts = make(8).make_iterator(2, epochs=2, seed=seed, dataloader_kwargs={"shuffle": True})
        return [row for part in parts for row in ids(part)]

    first = order(1)
    assert first == order(1)
    assert first != order(2)
    assert sorted(first[:8]) == sorted(first[8:]) == list(range(8))
    assert first[:8] != first[8:]


def test_make_iterator_raises_at_once():
    with pytest.raises(InputError, match=r"mini_batch_size: got 4.*6 rows"):
        make(6).make_iterator(4, 1)
    with pytest.raises(InputError, match="collate_fn"):
        make(6).make_iterator(2, 1, dataloader_kwargs={"collate_fn": list})
    with pytest.raises(InputError, match="mini_batch_size"):
        make(6).make_iterator(0, 1)
    assert list(make(0).make_iterator(2, 1)) == []
    only_objects = DataProto(None, {"n": np.arange(4)})
    assert [p.non_tensor_batch["n"].tolist() for p in only_objects.make_iterator(2, 1)] == [[0, 1], [2, 3]]


def test_collate_stacks_items():
    data = make(3, with_jagged=True)
    data.non_tensor_batch["wide"] = np.arange(6).reshape(3, 2)
    got = collate_fn([data[2], data[0]])
    assert got.select(["a", "b"]) == data[[2, 0]].select(["a", "b"])
    assert rows_of(got) == rows_of(data[[2, 0]])
    assert got.batch["j"].offsets() is got.batch["k"].offsets()
    assert got.non_tensor_batch["wide"].dtype == np.int64
    with pytest.raises(InputError):
        collate_fn([])
    with pytest.raises(MissingKeyError, match="'uid'"):
        collate_fn([data[0], data.select(non_tensor_batch_keys=["n", "wide"])[1]])
    lists = DataProto.from_dict(non_tensors={"l": [[1], [2]]})
    assert collate_fn(list(lists)) == lists
