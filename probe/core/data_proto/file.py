"""The file of a DataProto: safetensors for the elements, JSON for the rest, in one file. No pickle.

Reading one can't run code: the JSON knows a fixed list of plain types, and whatever else one tries to store
raises when it is written. Every stretch of bytes has a checksum, so that a damaged file is an error and
never a wrong batch.

The tensors of ``batch`` lie in the file under their own names (``batch/input_ids``), so other tools for
safetensors can read them. The JSON is itself a tensor of bytes, ``__probe_json__``, since the header of a
safetensors file is limited in size.
"""

from __future__ import annotations

import base64
import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_non_tensor

from probe._io import written_aside
from probe.core.columns.jagged import checked_jagged, is_jagged, jagged_bounds
from probe.core.columns.serialization import dtype_of, rows_of, tensor_from_bytes
from probe.errors import InputError, SerializationError
from probe.guard import raised_as

FORMAT: Final = "probe.DataProto"
FORMAT_VERSION: Final = 1
_JSON: Final = "__probe_json__"
_TAG: Final = "$"

#: Stored as they are; any other dtype is stored as its bytes.
_NATIVE: Final = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    }
)
Made = TypeVar("Made")
Sections = tuple[TensorDict | None, dict[str, Any], dict[str, Any]]


def write(
    path: str | os.PathLike[str],
    batch: TensorDictBase | None,
    non_tensor_batch: Mapping[str, np.ndarray[Any, Any]],
    meta_info: Mapping[str, Any],
) -> None:
    """Write the three sections of a DataProto to ``path``, whole or not at all.

    Raises:
        SerializationError: Something can't be stored; the message names its key.
        OSError: The file can't be written.
    """
    encoder = _Encoder()
    document = {
        "batch": None if batch is None else encoder.batch("batch", batch),
        "non_tensor_batch": [
            [
                encoder.value(f"non_tensor_batch[{key!r}]", key),
                encoder.value(f"non_tensor_batch[{key!r}]", column),
            ]
            for key, column in non_tensor_batch.items()
        ],
        "meta_info": encoder.value("meta_info", dict(meta_info)),
        "checksums": {name: _checksum(tensor) for name, tensor in encoder.tensors.items()},
    }
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    tensors = dict(encoder.tensors)
    tensors[_JSON] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "json_crc32": str(zlib.crc32(text))}
    _write_aside(Path(path), lambda aside: save_file(tensors, aside, metadata))


def _write_aside(path: Path, write_to: Callable[[Path], object]) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: got {str(path)!r}, but there is no directory {str(path.parent)!r}")
    with written_aside(path) as aside:
        try:
            write_to(aside)
        except SafetensorError as error:  # how safetensors tells of a full disk
            raise OSError(f"can't write {str(path)!r}: {error}") from error


def read(path: str | os.PathLike[str], make: Callable[..., Made]) -> Made:
    """What ``make`` makes of the sections of a file that :func:`write` made; tensors are on the CPU.

    Args:
        path: The file.
        make: Takes the three sections of a DataProto.

    Raises:
        FileNotFoundError: No such file.
        SerializationError: Not such a file, or a damaged one, or one whose sections don't make a DataProto.
    """
    name = os.fspath(path)
    if not Path(name).is_file():
        raise FileNotFoundError(f"path: there is no file {name!r}")
    # Whatever bytes a stranger's file holds, under whatever checksums, the reader must name the file: torch, numpy,
    # tensordict and safetensors have no common error for what they are asked to make.
    with raised_as(lambda error: SerializationError(f"path: {name!r} isn't a whole DataProto file: {error}"), but=()):
        return make(*_read(name))


def _read(name: str) -> Sections:
    with safe_open(name, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise InputError(f"its format is {metadata.get('format')!r}, expected {FORMAT!r}")
        if int(metadata["version"]) > FORMAT_VERSION:
            raise InputError(f"it has format version {metadata['version']}, this probe reads {FORMAT_VERSION}")
        text = file.get_tensor(_JSON).numpy().tobytes()
        if zlib.crc32(text) != int(metadata["json_crc32"]):
            raise InputError("its JSON is damaged")
        document = json.loads(text)
        checksums = document["checksums"]
        names = file.keys()  # the file itself can't be iterated
        tensors = {key: file.get_tensor(key) for key in names if key != _JSON}
    if tensors.keys() != checksums.keys():
        raise InputError("its tensors aren't those that it lists")
    for key, tensor in tensors.items():
        if _checksum(tensor) != checksums[key]:
            raise InputError(f"the bytes of {key!r} are damaged")
    decoder = _Decoder(tensors)
    batch = None if document["batch"] is None else decoder.batch(document["batch"])
    columns = {decoder.value(key): decoder.value(column) for key, column in document["non_tensor_batch"]}
    return batch, columns, decoder.value(document["meta_info"])


def _checksum(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data)


# ------------------------------------------------------------------------------------------------ writing


class _Encoder:
    """Turns values into JSON, and puts their elements aside in ``tensors``."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._memory: set[int] = set()
        self._offsets: dict[int, Any] = {}
        self._open: set[int] = set()

    def batch(self, where: str, batch: TensorDictBase) -> dict[str, Any]:
        columns = []
        for key, column in batch.items():
            columns.append([key, self._column(f"{where}[{key!r}]", f"{where}/{key}", column)])
        device = None if batch.device is None else "cpu"
        return {"batch_size": list(batch.batch_size), "device": device, "columns": columns}

    def _column(self, where: str, name: str, column: Any) -> dict[str, Any]:
        if isinstance(column, torch.Tensor):
            return self.tensor(where, name, column)
        if is_non_tensor(column):
            if isinstance(column, NonTensorStack):
                return {_TAG: "rows", "v": self.value(where, column.tolist())}
            return {_TAG: "constant", "v": self.value(where, column.data)}
        return {_TAG: "batch", **self.batch(name, column)}

    def tensor(self, where: str, name: str, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.is_nested:
            return self._nested(where, name, tensor)
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise SerializationError(
                f"{where}: got a {'quantised' if tensor.is_quantized else tensor.layout} tensor on {tensor.device}, "
                "expected a dense one that holds its elements"
            )
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        spec = {
            _TAG: "tensor",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        if plain.dtype not in _NATIVE:
            plain = plain.reshape(-1).view(torch.uint8)
        return {**spec, "name": self._keep(name, plain)}

    def _keep(self, name: str, tensor: torch.Tensor) -> str:
        unique, number = name, 1
        while unique in self.tensors or unique == _JSON:
            unique, number = f"{name}#{number}", number + 1
        memory = tensor.untyped_storage().data_ptr()
        if memory in self._memory:  # safetensors refuses two names for one memory
            tensor = tensor.clone()
            memory = tensor.untyped_storage().data_ptr()
        self._memory.add(memory)
        self.tensors[unique] = tensor
        return unique

    def _nested(self, where: str, name: str, column: Any) -> dict[str, Any]:
        if not is_jagged(column):
            raise SerializationError(f"{where}: got a nested tensor of the strided layout, expected a jagged one")
        offsets, lengths = column.offsets(), column.lengths()
        if id(offsets) not in self._offsets:
            self._offsets[id(offsets)] = self.tensor(where, f"{name}.offsets", offsets)
        return {
            _TAG: "jagged",
            "values": self.tensor(where, name, column._values),
            "offsets": self._offsets[id(offsets)],
            "lengths": None if lengths is None else self.tensor(where, f"{name}.lengths", lengths),
            "ragged_dim": column._ragged_idx,
            "bounds": list(jagged_bounds(column)),
        }

    def value(self, where: str, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
        if (isinstance(value, torch.Tensor) and kind in (torch.Tensor, torch.nn.Parameter)) or is_jagged(value):
            return self.tensor(where, where, value)
        if kind in (list, tuple, dict, set, frozenset, np.ndarray) or isinstance(value, np.ndarray):
            return self._container(where, value)
        return self._scalar(where, value)

    def _scalar(self, where: str, value: Any) -> dict[str, Any]:
        kind = type(value)
        if isinstance(value, np.generic):
            return self._array(where, np.asarray(value), tag="scalar")
        if kind is complex:
            return {_TAG: "complex", "v": [self.value(where, value.real), self.value(where, value.imag)]}
        if kind is bytes:
            return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
        if kind in (torch.dtype, torch.device):
            return {_TAG: kind.__name__, "v": str(value).removeprefix("torch.")}
        raise SerializationError(
            f"{where}: got {kind.__module__}.{kind.__qualname__}, which can't be stored without pickle; "
            "expected numbers, strings, bytes, lists, tuples, dicts, sets, numpy arrays or tensors"
        )

    def _container(self, where: str, value: Any) -> Any:
        if id(value) in self._open:
            raise SerializationError(f"{where}: it contains itself, which can't be stored")
        self._open.add(id(value))
        try:
            return self._open_container(where, value)
        except RecursionError:
            raise SerializationError(f"{where}: it is nested too deeply to be stored") from None
        finally:
            self._open.discard(id(value))

    def _open_container(self, where: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._array(where, value)
        if isinstance(value, dict):
            if all(type(key) is str for key in value) and _TAG not in value:
                return {key: self.value(f"{where}[{key!r}]", one) for key, one in value.items()}
            pairs = [
                [self.value(f"{where}[{key!r}]", key), self.value(f"{where}[{key!r}]", one)]
                for key, one in value.items()
            ]
            return {_TAG: "dict", "v": pairs}
        items = [self.value(f"{where}[{number}]", one) for number, one in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: type(value).__name__, "v": items}

    def _array(self, where: str, array: np.ndarray[Any, Any], tag: str = "array") -> dict[str, Any]:
        spec = {_TAG: tag, "dtype": array.dtype.str, "shape": list(array.shape)}
        if type(array) is not np.ndarray:
            raise SerializationError(f"{where}: got a {type(array).__name__}, expected a plain numpy array")
        if array.dtype == object:
            items = [self.value(f"{where}[{number}]", one) for number, one in enumerate(array.ravel())]
            return {**spec, "v": items}
        if array.dtype.hasobject or array.dtype.kind == "V":
            raise SerializationError(f"{where}: got an array of {array.dtype}, which can't be stored")
        if tag == "scalar":
            return {**spec, "v": base64.b64encode(array.tobytes()).decode("ascii")}
        data = np.frombuffer(bytearray(array.tobytes()), dtype=np.uint8)
        return {**spec, "name": self._keep(where, torch.from_numpy(data))}


# ------------------------------------------------------------------------------------------------ reading


class _Decoder:
    """The way back; every form that isn't known is an error."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._offsets: dict[str, torch.Tensor] = {}
        self._kinds: dict[str, Callable[[dict[str, Any]], Any]] = {
            "tensor": self._tensor,
            "jagged": self._jagged,
            "array": self._array,
            "scalar": lambda spec: self._array(spec)[()],
            "dict": lambda spec: {self.value(key): self.value(one) for key, one in spec["v"]},
            "tuple": lambda spec: tuple(self._items(spec)),
            "set": lambda spec: set(self._items(spec)),
            "frozenset": lambda spec: frozenset(self._items(spec)),
            "float": lambda spec: float(spec["v"]),
            "complex": lambda spec: complex(*self._items(spec)),
            "bytes": lambda spec: base64.b64decode(spec["v"], validate=True),
            "dtype": lambda spec: dtype_of(spec["v"]),
            "device": lambda spec: torch.device(spec["v"]),
        }

    def batch(self, spec: dict[str, Any]) -> TensorDict:
        size = torch.Size(spec["batch_size"])
        columns = {key: self._column(column, size) for key, column in spec["columns"]}
        return TensorDict(columns, batch_size=size, device=spec["device"])

    def _column(self, spec: dict[str, Any], size: torch.Size) -> Any:
        if spec[_TAG] == "batch":
            return self.batch(spec)
        if spec[_TAG] == "rows":
            return rows_of(self.value(spec["v"]))
        if spec[_TAG] == "constant":
            return NonTensorData(data=self.value(spec["v"]), batch_size=size)
        return self.value(spec)

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if not isinstance(value, dict):
            return value
        if _TAG not in value:
            return {key: self.value(one) for key, one in value.items()}
        return self._kinds[value[_TAG]](value)

    def _items(self, spec: dict[str, Any]) -> list[Any]:
        return [self.value(one) for one in spec["v"]]

    def _tensor(self, spec: dict[str, Any]) -> torch.Tensor:
        found, dtype = self._tensors[spec["name"]], dtype_of(spec["dtype"])
        if found.dtype == dtype and list(found.shape) == spec["shape"]:
            return found
        return tensor_from_bytes(found.numpy(), dtype, spec["shape"])

    def _jagged(self, spec: dict[str, Any]) -> torch.Tensor:
        name = spec["offsets"]["name"]
        if name not in self._offsets:
            self._offsets[name] = self._tensor(spec["offsets"])
        lengths = None if spec["lengths"] is None else self._tensor(spec["lengths"])
        values, offsets = self._tensor(spec["values"]), self._offsets[name]
        return checked_jagged(values, offsets, spec["bounds"], lengths=lengths, ragged_dim=spec["ragged_dim"])

    def _array(self, spec: dict[str, Any]) -> np.ndarray[Any, Any]:
        if spec["dtype"] == "|O":
            filled = np.empty(len(spec["v"]), dtype=object)
            for number, one in enumerate(spec["v"]):
                filled[number] = self.value(one)
            return filled.reshape(spec["shape"])
        dtype = np.dtype(spec["dtype"])
        if dtype.hasobject:
            raise InputError(f"got an array of {dtype}, expected no Python objects")
        if "v" in spec:
            data: Any = bytearray(base64.b64decode(spec["v"], validate=True))
        else:
            data = self._tensors[spec["name"]].numpy()
        shape = cast("list[int]", spec["shape"])
        if dtype.itemsize == 0:
            return np.empty(shape, dtype=dtype)
        return np.frombuffer(data, dtype=dtype).reshape(shape)
