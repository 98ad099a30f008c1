"""Files: written whole or not at all, read without running anything."""

from __future__ import annotations

import contextlib
import datetime
import enum
import json
import os
import pickle
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tensordict import NonTensorData, NonTensorStack, TensorDict

from probe.core.protocol import DataProto
from probe.errors import SerializationError


class Colour(enum.IntEnum):
    RED = 1


class Touch:
    """What a pickle would run."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def everything():
    offsets = torch.tensor([0, 2, 3])
    column = torch.nested.nested_tensor_from_jagged(torch.randn(3, 2), offsets, min_seqlen=1, max_seqlen=2)
    twin = torch.nested.nested_tensor_from_jagged(torch.arange(3), offsets, min_seqlen=1, max_seqlen=2)
    whole = torch.arange(8).reshape(2, 4)
    batch = TensorDict(
        {
            "bf16": torch.randn(2, 3).bfloat16(),
            "fp8": torch.randn(2).to(torch.float8_e4m3fn),
            "u16": torch.tensor([1, 65535], dtype=torch.uint16),
            "c64": torch.tensor([1 + 2j, 3.0]),
            "view": whole[:, 1:],
            "alias": whole[:, :2],
            "again": whole,
            "j": column,
            "k": twin,
            "inner": TensorDict({"x": torch.zeros(2, 0)}, [2]),
            "rows": NonTensorStack(NonTensorData("a"), NonTensorData([1])),
            "constant": NonTensorData("same", batch_size=[2]),
        },
        batch_size=[2],
    )
    arrays = {
        "objects": np.array([{"role": "user", "content": "hé\ud800"}, None], dtype=object),
        "two_dims": np.array([[1, "a"], [None, (2,)]], dtype=object),
        "arrays": np.array([None, None], dtype=object),
        "strings": np.array(["x", "long"]),
        "bytes": np.array([b"x", b"yz"]),
        "dates": np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
        "big_endian": np.array([1.5, 2.5], dtype=">f4"),
        "wide": np.arange(6, dtype=np.uint16).reshape(2, 3),
    }
    arrays["arrays"][0], arrays["arrays"][1] = np.arange(3), torch.ones(2, dtype=torch.bfloat16)
    meta = {
        "tuple": (1, (2.5, None)),
        "nan": float("nan"),
        "inf": [float("inf"), -0.0],
        "scalar": np.float32(0.1),
        "flag": np.bool_(True),
        "name": np.str_("n"),
        "tensor": torch.ones(2, dtype=torch.int8),
        "array": np.zeros((2, 0)),
        "ints": {1: "a", "1": "b", (1, 2): "c"},
        "$": {"$": "tuple", "v": [1]},
        "set": {1, 2},
        "frozen": frozenset({"a"}),
        "bytes": b"\x00\xff",
        "complex": complex(1, float("nan")),
        "big": 2**200,
        "dtype": torch.bfloat16,
        "device": torch.device("cuda:1"),
        "metrics": {"loss": [0.1, 0.2]},
    }
    return DataProto(batch, arrays, meta)


def test_everything_that_can_be_stored_comes_back(tmp_path):
    path = tmp_path / "data"
    data = everything()
    data.save_to_disk(path)
    back = DataProto.load_from_disk(str(path))
    assert back == data
    assert os.listdir(tmp_path) == ["data"]
    assert back.batch["j"].offsets() is back.batch["k"].offsets()
    assert back.batch["j"]._maybe_max_seqlen == 2
    for key, value in data.meta_info.items():
        assert type(back.meta_info[key]) is type(value), key
    assert back.meta_info["scalar"].dtype == np.float32
    assert str(back.meta_info["inf"][1]) == "-0.0"
    assert {key: column.dtype for key, column in back.non_tensor_batch.items()} == {
        key: column.dtype for key, column in data.non_tensor_batch.items()
    }
    back.batch["again"] += 1
    back.non_tensor_batch["wide"] += 1


def test_the_tensors_can_be_read_by_others(tmp_path):
    everything().save_to_disk(tmp_path / "data")
    with safe_open(tmp_path / "data", framework="pt") as file:
        assert file.get_tensor("batch/bf16").dtype == torch.bfloat16
        assert file.get_tensor("batch/view").tolist() == [[1, 2, 3], [5, 6, 7]]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (
            lambda: DataProto(meta_info={"fn": {"deep": [1, print]}}),
            r"meta_info\['fn'\]\['deep'\]\[1\]: got builtins\.",
        ),
        (
            lambda: DataProto(meta_info={"when": datetime.date(2026, 1, 1)}),
            r"meta_info\['when'\].*datetime",
        ),
        (lambda: DataProto(meta_info={"colour": Colour.RED}), r"meta_info\['colour'\].*Colour"),
        (
            lambda: DataProto.from_dict(non_tensors={"o": [1, object()]}),
            r"non_tensor_batch\['o'\]\[1\].*object",
        ),
        (lambda: DataProto(None, {"r": np.zeros(2, dtype=[("x", int)])}), r"non_tensor_batch\['r'\]"),
        (lambda: DataProto.from_dict({"s": torch.ones(2).to_sparse()}), r"batch\['s'\].*sparse"),
        (lambda: DataProto.from_dict({"m": torch.ones(2, device="meta")}), r"batch\['m'\].*meta"),
    ],
)
def test_what_cant_be_stored_is_named_and_nothing_is_left(tmp_path, data, where):
    path = tmp_path / "data"
    path.write_bytes(b"before")
    with pytest.raises(SerializationError, match=where):
        data().save_to_disk(path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["data"]


def test_what_contains_itself_is_refused(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="contains itself"):
        DataProto(meta_info={"loop": loop}).save_to_disk(tmp_path / "data")
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(SerializationError, match="too deeply"):
        DataProto(meta_info={"deep": deep}).save_to_disk(tmp_path / "data")
    while deep:
        deep = deep[0]
    assert os.listdir(tmp_path) == []


def test_a_missing_file_or_folder_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        DataProto.load_from_disk(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DataProto().save_to_disk(tmp_path / "nowhere" / "data")


@pytest.mark.slow
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "data"
    DataProto(meta_info={"a": 1}).save_to_disk(path)
    code = (
        "import resource, signal, sys, torch; from probe.core.protocol import DataProto\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: DataProto.from_dict({'a': torch.zeros(100_000)}).save_to_disk(sys.argv[1])\n"
        "except OSError as error: sys.exit(17)\n"
    )
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], capture_output=True, text=True)
    assert found.returncode == 17, found.stderr
    assert os.listdir(tmp_path) == ["data"]
    assert DataProto.load_from_disk(path).meta_info == {"a": 1}


def test_a_pickle_is_refused_and_not_run(tmp_path):
    path, trap = tmp_path / "data", tmp_path / "trap"
    path.write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(SerializationError, match="data"):
        DataProto.load_from_disk(path)
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(SerializationError):
        DataProto.load_from_disk(path)
    assert not trap.exists()


def test_every_damage_is_an_error(tmp_path):
    """Cut or with any byte changed, a file is refused, or (where the byte has no meaning) the same."""
    path = tmp_path / "data"
    data = DataProto.from_dict({"a": torch.arange(3)}, {"u": ["x", "y", "z"]}, {"t": (1.5,)})
    data.save_to_disk(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(SerializationError):
            DataProto.load_from_disk(path)
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            assert DataProto.load_from_disk(path) == data
        except SerializationError:
            refused += 1
    assert refused > 0.9 * len(whole) / 3


def test_safetensors_files_of_others_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "data")
    with pytest.raises(SerializationError, match="format is None"):
        DataProto.load_from_disk(tmp_path / "data")


# ---------------------------------------------------------------------------------------- crafted, with right checksums


def crafted(source, target, change, change_tensors=lambda tensors: None):
    """``source`` with its JSON changed, and checksums that fit."""
    with safe_open(source, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    document = json.loads(tensors.pop("__probe_json__").numpy().tobytes())
    change_tensors(tensors)
    document["checksums"] = {
        name: zlib.crc32(one.reshape(-1).view(torch.uint8).numpy()) if one.numel() else 0
        for name, one in tensors.items()
    }
    text = json.dumps(change(document) or document).encode()
    tensors["__probe_json__"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    save_file(tensors, target, {**metadata, "json_crc32": str(zlib.crc32(text))})
    return target


def jagged(tmp_path):
    rows = torch.nested.nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    DataProto.from_dict({"ids": rows, "score": torch.ones(2)}).save_to_disk(tmp_path / "data")
    return tmp_path / "data"


def column(document, name):
    return next(column for key, column in document["batch"]["columns"] if key == name)


@pytest.mark.parametrize(
    "offsets", [[0, 3, 6], [0, 9, 8], [0, 3, 1 << 40], [1, 3, 8], [-4, 3, 8], [0, 8], [0, 3, 8, 8], [], [[0, 3, 8]]]
)
def test_a_jagged_column_s_offsets_are_checked(tmp_path, offsets):
    told = torch.tensor(offsets, dtype=torch.int64)

    def set_offsets(tensors):
        tensors["batch/ids.offsets"] = told

    def set_shape(document):
        column(document, "ids")["offsets"]["shape"] = list(told.shape)

    path = crafted(jagged(tmp_path), tmp_path / "crafted", set_shape, set_offsets)
    with pytest.raises(SerializationError, match="isn't a whole DataProto file"):
        DataProto.load_from_disk(path)


@pytest.mark.parametrize("bounds", [[4, 5], [3, 4], [-1, 5], [3], [3, 5, 7], "35", None, [3.0, 5.0], {"3": 5}])
def test_a_jagged_column_s_bounds_are_checked(tmp_path, bounds):
    def change(document):
        column(document, "ids")["bounds"] = bounds

    if bounds is None:  # the rows themselves tell them
        assert (
            DataProto.load_from_disk(crafted(jagged(tmp_path), tmp_path / "crafted", change)).batch["ids"].shape[0] == 2
        )
        return
    with pytest.raises(SerializationError, match="bounds"):
        DataProto.load_from_disk(crafted(jagged(tmp_path), tmp_path / "crafted", change))


def test_a_bound_of_any_size_makes_no_dimension_of_that_size(tmp_path):
    def change(document):
        column(document, "ids")["bounds"] = [0, 10**9]

    loaded = DataProto.load_from_disk(crafted(jagged(tmp_path), tmp_path / "crafted", change))
    assert loaded.batch["ids"]._max_seqlen == 5
    assert loaded.batch["ids"].to_padded_tensor(0).shape == (2, 5)


def nodes(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from nodes(one, (*path, key))


WRONG = (None, -1, 10**30, 1.5, "words", [], [[]], {}, {"$": "array"}, {"$": "nothing"}, True, "float99", [10**12])


def test_a_crafted_file_of_any_kind_raises_an_error_of_ours(tmp_path):
    rows = torch.nested.nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    DataProto.from_dict(
        {"ids": rows, "score": torch.ones(2)},
        {"names": np.array(["a", {"b": (1, 2)}], dtype=object), "numbers": np.arange(2)},
        {"dtype": torch.bfloat16, "when": {3: complex(1, 2), "s": {1, 2}}, "x": np.float32(2), "b": b"xy"},
    ).save_to_disk(tmp_path / "data")
    seen = []

    def collect(document):
        seen.extend(path for path in nodes(document) if path and path[0] != "checksums")

    crafted(tmp_path / "data", tmp_path / "crafted", collect)
    for path in seen:
        for wrong in WRONG:

            def change(document, path=path, wrong=wrong):
                inner = document
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = wrong

            crafted(tmp_path / "data", tmp_path / "crafted", change)
            with contextlib.suppress(SerializationError):  # some are another whole file
                DataProto.load_from_disk(tmp_path / "crafted")


@pytest.mark.parametrize("text", [b"[" * 100_000, b'"\xff\xfe"', b"", b"null", b"[]", b'{"batch": 1}'])
def test_a_file_with_another_json_is_an_error_of_ours(tmp_path, text):
    data = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)
    metadata = {"format": "probe.DataProto", "version": "1", "json_crc32": str(zlib.crc32(text or b"\0"))}
    save_file({"__probe_json__": data}, tmp_path / "crafted", metadata)
    with pytest.raises(SerializationError):
        DataProto.load_from_disk(tmp_path / "crafted")
