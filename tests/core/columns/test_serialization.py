"""Payloads and pickles: any tensor goes out and comes back, small and self-describing."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from probe.core.columns.equality import same
from probe.core.protocol import (
    DataProto,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from probe.errors import InputTypeError, SerializationError

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint64, torch.bool,
    torch.complex64,
]  # fmt: skip


def jagged(lengths, offsets=None, dtype=torch.float32):
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()]) if offsets is None else offsets
    values = torch.arange(int(offsets[-1])).to(dtype)
    return torch.nested.nested_tensor_from_jagged(
        values, offsets, min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_a_tensor_comes_back_equal(dtype, shape):
    tensor = torch.randn(shape).mul(4).to(dtype)
    for payload in (serialize_single_tensor(tensor), through_pickle(serialize_single_tensor(tensor))):
        back = deserialize_single_tensor(payload)
        assert (back.dtype, back.shape) == (dtype, tensor.shape)
        assert same(back, tensor)
    back.copy_(torch.zeros_like(back))  # what comes back from a pickle can be written to


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).T,
        torch.arange(12)[3:9:2],
        torch.ones(1).expand(4, 3),
        torch.randn(3, requires_grad=True),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor([float("nan"), float("inf")]),
    ],
    ids=["transposed", "strided", "expanded", "grad", "conj", "nan"],
)
def test_any_view_comes_back_equal(tensor):
    back = deserialize_single_tensor(serialize_single_tensor(tensor))
    assert same(back, tensor.detach().resolve_conj())


def test_a_view_is_as_small_as_what_it_shows():
    data = DataProto.from_dict({"a": torch.zeros(1_000_000)}, {"o": np.zeros(1_000_000)}, {"m": torch.zeros(10**6)[:2]})
    few = data[:10]
    assert len(pickle.dumps(few)) < 3000
    joined = DataProto.from_dict({"j": jagged([400, 600] * 500)})[:2]
    assert len(pickle.dumps(joined)) < 10_000
    assert through_pickle(few) == few


def test_jagged_columns_keep_their_bounds_and_share_offsets():
    first = jagged([2, 0, 5])
    batch = TensorDict(
        {"x": first, "y": jagged([2, 0, 5], first.offsets(), torch.bfloat16), "z": jagged([1, 1, 1])}, [3]
    )
    back = deserialize_tensordict(through_pickle(serialize_tensordict(batch)))
    assert same(back, batch)
    assert back["x"].offsets() is back["y"].offsets()
    assert back["x"].offsets() is not back["z"].offsets()
    assert (back["y"]._maybe_min_seqlen, back["y"]._maybe_max_seqlen) == (0, 5)
    assert torch.nested.to_padded_tensor(back["x"], 0.0).shape == (3, 5)
    assert same(deserialize_single_tensor(serialize_single_tensor(first)), first)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_with_holes_turned_and_without_rows():
    holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(9),
        torch.tensor([0, 3, 6, 9]),
        lengths=torch.tensor([1, 3, 2]),
        min_seqlen=1,
        max_seqlen=3,
    )
    turned = torch.nested.nested_tensor_from_jagged(torch.randn(5, 2), torch.tensor([0, 2, 5])).transpose(1, 2)
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for column in (holes, turned, strided, jagged([])):
        assert same(deserialize_single_tensor(serialize_single_tensor(column)), column)


def test_a_tensordict_with_everything_comes_back():
    batch = TensorDict(
        {
            "inner": TensorDict({"x": torch.ones(2, 3), "j": jagged([1, 2])}, [2]),
            "rows": NonTensorStack(NonTensorData("a"), NonTensorData({"b": 1})),
            "constant": NonTensorData([1, 2], batch_size=[2]),
        },
        batch_size=[2],
        device="cpu",
    )
    back = deserialize_tensordict(through_pickle(serialize_tensordict(batch)))
    assert same(back, batch)
    assert back.device == torch.device("cpu")
    assert back.get("rows").tolist() == ["a", {"b": 1}]
    assert same(deserialize_tensordict(serialize_tensordict(TensorDict({}, [0]))), TensorDict({}, [0]))


def test_memory_that_cant_be_written_is_copied():
    dtype, shape, data = serialize_single_tensor(torch.arange(4))
    for given_data in (data.tobytes(), memoryview(data.tobytes())):
        back = deserialize_single_tensor((dtype, shape, given_data))
        back += 1
        assert back.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, device="meta"), torch.ones(2).to_sparse()],
    ids=["meta", "sparse"],
)
def test_what_has_no_bytes_is_refused_by_name(tensor):
    with pytest.raises(SerializationError, match="obj"):
        serialize_single_tensor(tensor)
    with pytest.raises(SerializationError, match=r"batch\['bad'\]"):
        serialize_tensordict(TensorDict({"bad": tensor}, batch_size=[2]))


def test_what_isnt_a_payload_is_refused():
    good = serialize_single_tensor(torch.arange(4))
    for bad in (
        (),
        "text",
        ("float99", (4,), good[2]),
        ("load", (4,), good[2]),
        ("int64", (5,), good[2]),
        ("int64", (-4,), good[2]),
        ("int64", (4,), None),
        ("int64", (4,), good[2][:-1]),
        ("jagged", good),
        ("jagged", good, "elsewhere", None, 1, 1, 4),
    ):
        with pytest.raises(SerializationError):
            deserialize_single_tensor(bad)
    for bad in (None, (1, 2), ((2,), None, [])):
        with pytest.raises(SerializationError):
            deserialize_tensordict(bad)
    with pytest.raises(SerializationError, match="'a'"):
        deserialize_tensordict(((4,), None, {"a": ("int64", (9,), good[2])}))
    with pytest.raises(SerializationError, match="batch size"):
        deserialize_tensordict(((3,), None, {"a": good}))
    with pytest.raises(InputTypeError):
        serialize_single_tensor([1])
    with pytest.raises(InputTypeError):
        serialize_tensordict({"a": torch.ones(2)})


def test_a_device_that_isnt_here_becomes_the_cpu():
    payload = (*serialize_single_tensor(torch.arange(4)), "cuda:99")
    assert deserialize_single_tensor(payload).device.type == "cpu"
    assert deserialize_tensordict(((4,), "cuda:99", {"a": payload[:3]})).device.type == "cpu"


# -------------------------------------------------------------------------------- pickles


class Marked(DataProto):
    pass


def test_pickles_keep_class_attributes_and_dtypes():
    data = Marked.from_dict(
        {"a": torch.zeros(2, dtype=torch.bfloat16)}, {"s": np.array(["x", "y"])}, {"m": {"k": (1,)}}
    )
    data.mark = "kept"
    back = through_pickle(data)
    assert type(back) is Marked
    assert back == data
    assert back.mark == "kept"
    assert back.non_tensor_batch["s"].dtype == np.dtype("<U1")
    for empty in (DataProto(), DataProto(TensorDict({}, [0])), DataProto(meta_info={"a": 1})):
        assert through_pickle(empty) == empty
    with pytest.raises(SerializationError):
        DataProto.__new__(DataProto).__setstate__({"batch": None})
    assert through_pickle(data[0]) == data[0]


def test_one_row_is_pickled_without_the_others():
    item = DataProto.from_dict({"a": torch.zeros(100_000)}, {"o": list(range(100_000))})[3]
    assert len(pickle.dumps(item)) < 2000
    assert through_pickle(item) == item


@pytest.mark.slow
def test_a_pickle_needs_no_setting_on_the_other_side(tmp_path):
    path = tmp_path / "data.pkl"
    path.write_bytes(pickle.dumps(DataProto.from_dict({"j": jagged([1, 3])}, {"u": ["x", "y"]})))
    code = (
        "import pickle, sys; d = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(d.batch['j']._max_seqlen, d.non_tensor_batch['u'])"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], capture_output=True, text=True)
    assert found.stdout == "3 ['x' 'y']\n", found.stderr


# -------------------------------------------------------------------------------- any batch at all

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9), st.just("$")), inner, max_size=3),
    ),
    max_leaves=6,
)


@st.composite
def protos(draw, min_rows=0):
    rows = draw(st.integers(min_rows, 5))
    tensors = {}
    for number, dtype in enumerate(draw(st.lists(st.sampled_from(DTYPES), max_size=3))):
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
        tensors[f"t{number}"] = torch.randint(-9, 9, shape).to(dtype)
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows))
        tensors["j"] = jagged(lengths)
        tensors["k"] = jagged(lengths, tensors["j"].offsets(), torch.bfloat16)
    objects = {}
    if draw(st.booleans()):
        objects["o"] = draw(st.lists(values, min_size=rows, max_size=rows))
        kind = draw(st.sampled_from(["<i2", "<f4", ">f8", "<M8[s]"]))
        objects["i"] = np.arange(rows * 2).astype(kind).reshape(rows, 2)
    batch = TensorDict(tensors, batch_size=[rows]) if tensors or not objects else None
    arrays = DataProto.from_dict(non_tensors=objects).non_tensor_batch
    # What `to_tensordict` refuses: one key for a column and for something else.
    names = st.text(max_size=4).filter(lambda name: name not in tensors and name not in objects)
    return DataProto(batch, arrays, draw(st.dictionaries(names, values, max_size=3)))


@settings(deadline=None, max_examples=30)
@given(protos())
def test_any_batch_survives_a_pickle(data):
    back = through_pickle(data)
    assert back == data
    for key, column in data.non_tensor_batch.items():  # NumPy's own pickle forgets the byte order
        assert back.non_tensor_batch[key].dtype == column.dtype.newbyteorder("=")
    assert copy.deepcopy(data) == data
    if "j" in data:
        assert back.batch["j"].offsets() is back.batch["k"].offsets()


@settings(deadline=None, max_examples=30)
@given(protos())
def test_any_batch_survives_the_disk(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("disk") / "data.probe"
    data.save_to_disk(path)
    back = DataProto.load_from_disk(path)
    assert back == data
    assert {k: v.dtype for k, v in back.non_tensor_batch.items()} == {
        k: v.dtype for k, v in data.non_tensor_batch.items()
    }


@settings(deadline=None, max_examples=30)
@given(protos(min_rows=1), st.data())
def test_cutting_and_joining_undo_each_other(data, draw):
    rows = len(data)
    assert DataProto.concat(data.chunk(draw.draw(st.sampled_from([n for n in range(1, 6) if rows % n == 0])))) == data
    assert DataProto.concat(data.split(draw.draw(st.integers(1, 6)))) == data
    times = draw.draw(st.integers(1, 3))
    assert data.repeat(times)[list(range(0, rows * times, times))] == data
    assert data.repeat(times, interleave=False)[:rows] == data
    assert data.repeat(times) == data.sample_level_repeat([times] * rows)
    order = draw.draw(st.permutations(range(rows)))
    back = sorted(range(rows), key=order.__getitem__)
    shuffled = data.select_idxs(order)
    shuffled.reorder(back)
    assert shuffled == data
    assert data.to_tensordict().batch_size == (rows,)
    assert [data[row] for row in order] == list(data.select_idxs(order))
