"""Which parts of a model are sharded on their own, and how a model is made without filling every rank's memory.

A wrap policy is configured by three keys, in a mapping (a ``DictConfig`` too) or as attributes, on their own or
under ``wrap_policy``:

* ``disable``: no policy at all;
* ``min_num_params``: above 0, every part with at least so many parameters; it wins over the next;
* ``transformer_layer_cls_to_wrap``: class names, one string or several; None means the model's
  ``_no_split_modules``, and none at all means no such policy.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.nn.modules.module import register_module_parameter_registration_hook

from probe._check import also_named, whole_number
from probe.core.fsdp.offload import compute_device
from probe.errors import InputError, InputTypeError, UnknownNameError

_KEYS: Final = ("disable", "min_num_params", "transformer_layer_cls_to_wrap")

#: Holders of parts; they have no forward pass of their own, which is where sharding happens.
_CONTAINERS: Final = (nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class _Choice:
    """A wrap policy's configuration, checked. ``names`` is empty where no classes were asked for."""

    disable: bool
    min_num_params: int
    names: tuple[str, ...]
    origin: str  #: where the names are from, for messages


def get_fsdp_wrap_policy(module: nn.Module, config: Any = None, is_lora: bool = False) -> Callable[..., bool] | None:
    """The ``auto_wrap_policy`` of FSDP1 for ``module``.

    Args:
        module: The model, not wrapped yet.
        config: See the top of this file; None is all defaults.
        is_lora: Whether to wrap each trainable leaf on its own too, as FSDP1 wants parameters that train kept apart
            from those that don't. As in verl it has no effect beside ``min_num_params``: units by size around units of
            single leaves would be gathered in another order on another rank, and the ranks wait for each other.

    Returns:
        A policy that wraps what any of its parts would, or None: disabled, or nothing to wrap by.

    Raises:
        UnknownNameError: The configuration has another key, or not one of the classes is in ``module``. A class that is
            missing while others are there is a warning that names it.
        InputTypeError: A value has the wrong type.
        InputError: ``min_num_params`` is negative.

    >>> policy = get_fsdp_wrap_policy(nn.Sequential(nn.Linear(2, 2)), {"transformer_layer_cls_to_wrap": "Linear"})
    >>> policy(module=nn.Linear(2, 2), recurse=False, nonwrapped_numel=6)
    True
    """
    choice = _choice_of(module, config, strict=True)
    if choice.disable:
        return None
    policies: list[Callable[..., bool]] = []
    if is_lora and not choice.min_num_params:
        policies.append(functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_trainable_leaf))
    if choice.min_num_params > 0:
        policies.append(functools.partial(size_based_auto_wrap_policy, min_num_params=choice.min_num_params))
    elif choice.names:
        classes = _classes_named(module, choice)
        policies.append(functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes))
    return functools.partial(_or_policy, policies=policies) if policies else None


def _is_trainable_leaf(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.requires_grad and not any(True for _ in module.children())


def apply_fsdp2(model: nn.Module, fsdp_kwargs: Mapping[str, Any], config: Any = None) -> list[str]:
    """Shard ``model`` in place with ``fully_shard``: its layers on their own, from the inside out, then the rest.

    Args:
        model: The model, not sharded yet; it may be on the meta device.
        fsdp_kwargs: Arguments of ``fully_shard``: ``mesh``, ``mp_policy``, ``offload_policy``,
            ``reshard_after_forward`` …
        config: How layers are chosen, see the top of this file; other keys are ignored, so that a whole FSDP
            configuration may be given. With ``min_num_params`` parts are taken from the inside out, each without what
            has been taken inside it. By class, embeddings are taken too. What shares a weight with something outside it
            is left to what is around both.

    Returns:
        Names of what was sharded on its own, in the order of the model; the model itself is not among them.

    Raises:
        InputError: There is no class to choose layers by (``disable`` says that this is meant).
        UnknownNameError: None of the classes is in ``model``.
        InputTypeError: A value has the wrong type.
    """
    if not isinstance(fsdp_kwargs, Mapping):
        raise InputTypeError(f"fsdp_kwargs: got {type(fsdp_kwargs).__name__}, expected a mapping")
    chosen = _chosen(model, _choice_of(model, config, strict=False))
    names = [name for name, part in model.named_modules() if part in chosen]
    for name in reversed(names):  # inside first: what is sharded already is left out of what is around it
        fully_shard(model.get_submodule(name), **fsdp_kwargs)
    fully_shard(model, **fsdp_kwargs)
    return names


def _chosen(model: nn.Module, choice: _Choice) -> set[nn.Module]:
    if choice.disable:
        return set()
    if choice.min_num_params > 0:
        chosen: set[nn.Module] = set()
        _take_by_size(model, choice.min_num_params, chosen, set())
        return _apart(chosen, model)
    if not choice.names:
        raise InputError(
            "config: got no transformer_layer_cls_to_wrap, and the model has no _no_split_modules; give the layers' "
            "class names, min_num_params, or disable=True to shard the model as a whole"
        )
    classes = _classes_named(model, choice)
    parts = {part for part in model.modules() if type(part) in classes}
    return _apart(parts | _embeddings(model), model)


def _take_by_size(part: nn.Module, least: int, chosen: set[nn.Module], seen: set[int]) -> int:
    """Parameters in ``part`` that nothing inside it has taken; adds to ``chosen`` what has at least ``least``."""
    # nn.MultiheadAttention reads its children's weights without calling them, so they can't be sharded apart.
    whole = isinstance(part, nn.MultiheadAttention)
    count = 0 if whole else sum(_take_by_size(child, least, chosen, seen) for child in part.children())
    for parameter in part.parameters(recurse=whole):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            count += parameter.numel()
    if count < least or isinstance(part, _CONTAINERS):
        return count
    chosen.add(part)
    return 0


def _apart(chosen: set[nn.Module], model: nn.Module) -> set[nn.Module]:
    """Those of ``chosen`` that share no weight with what is around them: a weight is sharded in one place."""
    uses = _uses(model)
    return {part for part in chosen if part is not model and _uses(part).items() <= uses.items()}


def _uses(model: nn.Module) -> Counter[int]:
    return Counter(id(parameter) for part in model.modules() for parameter in part.parameters(recurse=False))


def _embeddings(model: nn.Module) -> set[nn.Module]:
    """Embeddings of a model that doesn't tie them, now or later."""
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return set()
    return {part for part in model.modules() if isinstance(part, nn.Embedding)}


# ------------------------------------------------------------------------------------------------------ configuration


def _choice_of(module: nn.Module, config: Any, *, strict: bool) -> _Choice:
    nested = _read(config, "wrap_policy")
    if nested is not None:
        config, strict = nested, True
    if isinstance(config, str | bytes | int | float | list | tuple):
        raise InputTypeError(f"config: got {type(config).__name__}, expected a mapping, an object or None")
    if strict and isinstance(config, Mapping):
        for key in config:
            if key not in _KEYS and not str(key).startswith("_"):  # `_target_` and its like belong to Hydra
                raise UnknownNameError.of("config", key, _KEYS)
    disable = _read(config, "disable") or False
    if not isinstance(disable, bool):
        raise InputTypeError(f"disable: got {disable!r}, expected True or False")
    least = _read(config, "min_num_params") or 0
    whole_number("min_num_params", least, 0, expected="an integer")
    names, origin = _read(config, _KEYS[2]), _KEYS[2]
    if names is None:
        names, origin = getattr(module, "_no_split_modules", None), "_no_split_modules"
    return _Choice(disable, least, _names(names, origin), origin)


def _read(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def _names(value: Any, origin: str) -> tuple[str, ...]:
    """One string is one name, and not a name for each of its letters."""
    given = [] if value is None else [value] if isinstance(value, str | type) else value
    if not isinstance(given, Iterable):
        raise InputTypeError(f"{origin}: got {value!r}, expected class names")
    names = [one.__name__ if isinstance(one, type) else one for one in given if one is not None]
    for name in names:
        if not isinstance(name, str):
            raise InputTypeError(f"{origin}: got {name!r}, expected class names")
    return tuple(dict.fromkeys(names))


def _classes_named(module: nn.Module, choice: _Choice) -> set[type[nn.Module]]:
    """All classes within ``module`` that have one of the names."""
    present = {type(part) for part in module.modules()}
    missing = sorted(set(choice.names) - {one.__name__ for one in present})
    if len(missing) == len(choice.names):
        raise UnknownNameError.of(choice.origin, ", ".join(missing), {one.__name__ for one in present})
    if missing:
        warnings.warn(
            f"{choice.origin}: no module of class {', '.join(missing)} in {type(module).__name__}; "
            "only the other classes are wrapped",
            stacklevel=3,
        )
    return {one for one in present if one.__name__ in choice.names}


# ------------------------------------------------------------------------------------------------------------- making


def get_init_weight_context_manager(
    use_meta_tensor: bool = True, mesh: DeviceMesh | None = None
) -> Callable[[], AbstractContextManager[Any]]:
    """What to build a model in: real weights on one rank, weights without memory on the others.

    Args:
        use_meta_tensor: False gives every rank real weights; right for tied weights under FSDP1, which :func:`init_fn`
            would untie.
        mesh: The first rank of its last dimension has real weights; None: rank 0 of all.

    Returns:
        Called, a context manager. In it the default device is the CPU; on the other ranks every parameter that a
        module registers goes to the meta device, layer by layer, while buffers keep their values. Other threads
        are left alone. Fill the model with :func:`~probe.core.fsdp.fsdp2_load_full_state_dict`, or under FSDP1
        with ``sync_module_states=True, param_init_fn=init_fn``.

    >>> with get_init_weight_context_manager()(): nn.Linear(2, 1).weight.device
    device(type='cpu')
    """
    if not use_meta_tensor:
        return _on_cpu
    if mesh is not None:
        coordinate = mesh.get_coordinate()
        real = coordinate is not None and coordinate[-1] == 0
    else:
        real = not dist.is_initialized() or dist.get_rank() == 0
    return _on_cpu if real else _parameters_on_meta


def _on_cpu() -> AbstractContextManager[Any]:
    return torch.device("cpu")


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    thread = threading.get_ident()

    def emptied(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta or threading.get_ident() != thread:
            return None  # as it is; a tied weight stays the one that it was tied to
        empty = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        empty.__dict__.update(parameter.__dict__)
        return empty

    # torch's type leaves out that a hook may return a parameter.
    handle = register_module_parameter_registration_hook(cast("Callable[..., None]", emptied))
    try:
        with _on_cpu():
            yield
    finally:
        handle.remove()


@also_named(module="x")
def init_fn(x: nn.Module) -> nn.Module:
    """FSDP1's ``param_init_fn``: memory, not yet values, for what a module itself has on the meta device.

    Real weights and buffers stay as they are, so that it does nothing on the rank that has them. The values come with
    ``sync_module_states=True``.

    Args:
        x: The module, changed in place; ``module`` is another name for it.

    >>> init_fn(nn.Linear(2, 1, device="meta")).weight.device.type == "meta"
    False
    """
    device = compute_device()
    for name, parameter in x.named_parameters(recurse=False):
        if parameter.is_meta:
            real = torch.empty_like(parameter, device=device)
            x.register_parameter(name, nn.Parameter(real, requires_grad=parameter.requires_grad))
    for name, buffer in x.named_buffers(recurse=False):
        if buffer.is_meta:
            kept = name not in x._non_persistent_buffers_set
            x.register_buffer(name, torch.empty_like(buffer, device=device), persistent=kept)
    return x
