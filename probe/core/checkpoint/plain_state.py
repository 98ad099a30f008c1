"""Nested state (an optimizer's, a scheduler's, a generator's) as JSON and tensors, so that reading it runs no code.

A tree of plain Python values stays readable JSON; tensors and arrays are taken out of it and leave their name behind.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from probe.errors import SerializationError

#: Makes the tensor of a name; also given the node that stands for it: ``$tensor``, ``device``, ``placements``.
Lookup = Callable[[str, Mapping[str, Any]], Any]

_PLAIN: Final = (type(None), bool, int, float, str)
_TREE_KEY: Final = "tree"


def encode(value: Any, path: str = "") -> tuple[Any, dict[str, torch.Tensor]]:
    """``value`` as a tree that JSON can hold, and its tensors by name; a name is the path to the tensor.

    Args:
        value: Nested dicts, lists and tuples of numbers, strings, None, bytes, dtypes, tensors and NumPy values.
        path: Stands before every name, and is where errors say that the value stands.

    Raises:
        SerializationError: Something else is in it (named with its path), or two tensors have the same path.

    >>> encode({"lr": 0.1, "m": torch.zeros(2)}, "optimizer")[0]
    {'lr': 0.1, 'm': {'$tensor': 'optimizer.m', 'device': 'cpu'}}
    """
    tensors: dict[str, torch.Tensor] = {}
    return _encode(value, path, tensors), tensors


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _taken_out("$tensor", path, value.detach(), tensors)
    if isinstance(value, np.ndarray):
        return _taken_out("$array", path, _from_array(value, path), tensors)
    if kind in (list, tuple):
        made = [_encode(one, _join(path, index), tensors) for index, one in enumerate(value)]
        return made if kind is list else {"$tuple": made}
    if kind in (dict, OrderedDict, Counter):
        return _encode_dict(value, path, tensors)
    return _encode_scalar(value, path)


def _encode_dict(value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> Any:
    if type(value) is not Counter and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(one, _join(path, key), tensors) for key, one in value.items()}
    pairs = [[_encode(key, path, tensors), _encode(one, _join(path, key), tensors)] for key, one in value.items()]
    return {"$counter" if type(value) is Counter else "$dict": pairs}


def _encode_scalar(value: Any, path: str) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"$numpy": [value.dtype.str, value.item()]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    raise SerializationError(
        f"{path or 'the state'}: got {type(value).__name__}, expected numbers, strings, None, bytes, tensors, arrays, "
        "or lists, tuples and dicts of them"
    )


def _taken_out(tag: str, path: str, tensor: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    name = path or "value"
    if name in tensors:
        raise SerializationError(f"{name}: two tensors of the state have this path")
    tensors[name] = tensor
    node: dict[str, Any] = {tag: name, "device": tensor.device.type}
    if hasattr(tensor, "placements"):  # a DTensor
        node["placements"] = [one.dim if one.is_shard() else None for one in tensor.placements]
    return node


def _from_array(array: np.ndarray[Any, Any], path: str) -> torch.Tensor:
    if array.dtype.kind not in "biuf" or not array.dtype.isnative:
        raise SerializationError(
            f"{path}: got an array of {array.dtype}, expected numbers in native byte order, or booleans"
        )
    return torch.from_numpy(np.array(array))  # a copy: what is written doesn't change with the array


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def decode(tree: Any, lookup: Lookup) -> Any:
    """The value that :func:`encode` was given.

    Args:
        tree: What the JSON file held.
        lookup: Called with the name and the node of each tensor; gives the tensor.

    Raises:
        SerializationError: A tag that :func:`encode` doesn't write.

    >>> tree, tensors = encode({"lr": 0.1, "betas": (0.9, 0.999)})
    >>> decode(tree, lambda name, node: tensors[name])
    {'lr': 0.1, 'betas': (0.9, 0.999)}
    """
    if isinstance(tree, list):
        return [decode(one, lookup) for one in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next((key for key in tree if key.startswith("$")), None)
    if tag is None:
        return {key: decode(one, lookup) for key, one in tree.items()}
    try:
        return _decode_tagged(tag, tree, lookup)
    except SerializationError:
        raise
    except (ValueError, AttributeError, TypeError, LookupError, OverflowError) as error:
        raise SerializationError(f"{tag}: can't read {tree[tag]!r:.80} back: {error}") from error


def _decode_tagged(tag: str, tree: dict[str, Any], lookup: Lookup) -> Any:
    content = tree[tag]
    if tag == "$tensor":
        return lookup(content, tree)
    if tag == "$array":
        return lookup(content, tree).numpy()
    if tag == "$tuple":
        return tuple(decode(one, lookup) for one in content)
    if tag in ("$dict", "$counter"):
        made = {decode(key, lookup): decode(one, lookup) for key, one in content}
        return Counter(made) if tag == "$counter" else made
    return _decode_scalar(tag, content)


def _decode_scalar(tag: str, content: Any) -> Any:
    if tag == "$numpy":
        return np.dtype(content[0]).type(content[1])
    if tag == "$bytes":
        return base64.b64decode(content)
    if tag == "$dtype":
        return as_dtype(content)
    raise SerializationError(f"{tag}: not a tag of a state that probe wrote")


def as_dtype(name: str) -> torch.dtype:
    """The dtype called ``name``, such as ``"bfloat16"``.

    >>> as_dtype("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise SerializationError(f"dtype: got {name!r}, expected the name of a torch dtype")
    return found


def write_plain(path: Path, value: Any) -> None:
    """Write ``value`` to one safetensors file: tensors as such, all else as JSON in its header.

    Raises:
        SerializationError: As :func:`encode`.
        OSError: It can't be written.
    """
    from safetensors.torch import save

    tree, tensors = encode(value)
    held = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    path.write_bytes(save(held, metadata={_TREE_KEY: json.dumps(tree)}))


def read_plain(path: Path) -> Any:
    """What :func:`write_plain` wrote; tensors come back on the CPU.

    Raises:
        SerializationError: The file isn't one of these.
        OSError: It can't be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            names = file.keys()  # the file itself can't be iterated
            tensors = {name: file.get_tensor(name) for name in names}
        tree = json.loads(header[_TREE_KEY])
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise SerializationError(f"{path}: not a state that probe wrote: {error!r}") from error
    return decode(tree, lambda name, _: _tensor_of(path, tensors, name))


def _tensor_of(path: Path, tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in tensors:
        raise SerializationError(
            f"{path}: the tensor {name!r} is missing, found {', '.join(sorted(tensors)) or 'none'}"
        )
    return tensors[name]
