"""The state of a model and its optimizer by parameter name, whatever wraps them, and back into them.

Observing changes nothing: an optimizer that has never stepped is saved as such (torch's own
``get_optimizer_state_dict`` would make it step first, and its bias correction would be off by one ever after).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.nn.parallel import DistributedDataParallel

from probe.core.checkpoint.plain_state import decode, encode
from probe.errors import InputError, MissingKeyError, SerializationError, ShapeError

_WRAPPERS: Final = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


@dataclass
class State:
    """A state taken apart: what JSON holds, and the tensors by name."""

    tree: Any
    tensors: dict[str, torch.Tensor]


def is_fsdp1(model: nn.Module) -> bool:
    """Whether some part of ``model`` is wrapped by ``FullyShardedDataParallel``."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside FSDP1, DDP and ``torch.compile``."""
    inner = model
    while True:
        modules = inner._modules
        name = next((one for one in (*_WRAPPERS, "module") if one in modules and len(modules) == 1), None)
        if name is None:
            return inner
        inner = cast("nn.Module", modules[name])


def model_state(model: nn.Module) -> State:
    """Parameters and buffers by their plain names, ``model.…``: they share memory with ``model``. Each rank has its
    shards.

    A meeting of all ranks for FSDP1.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return State(*encode(get_model_state_dict(model), "model"))


def load_model(model: nn.Module, state: Any) -> None:
    """Put the state that :func:`saved_model` gave, whose tensors have been filled, into ``model``. A meeting of all
    ranks for FSDP1.
    """
    from torch.distributed.checkpoint.state_dict import set_model_state_dict

    set_model_state_dict(model, state)


def saved_model(state: State, saved_tree: Any, where: str) -> Any:
    """The saved state of a model, whose tensors are those of ``state``.

    Args:
        state: Of the model.
        saved_tree: The tree of the saved state.
        where: The checkpoint, for errors.

    Raises:
        MissingKeyError: It doesn't name the tensors of the model.
        SerializationError: It isn't a tree of probe.
    """
    named: list[str] = []

    def tensor(name: str, _: Mapping[str, Any]) -> torch.Tensor:
        named.append(name)
        return state.tensors[name]

    found = decode(saved_tree, tensor)
    if not isinstance(found, dict) or found.keys() != state.tree.keys() or set(named) != state.tensors.keys():
        raise MissingKeyError(f"{where}: its saved structure has other entries than the model")
    return found


def check_same(state: State, saved: Metadata, kind: str, where: str) -> None:
    """Raise unless the checkpoint holds exactly the tensors of ``state``, with their shapes.

    Args:
        state: Name to tensor, as the model or optimizer has it.
        saved: Sizes and dtypes of the saved tensors.
        kind: ``model`` or ``optimizer``, the first part of the names.
        where: The checkpoint, for errors.

    Raises:
        MissingKeyError: Some names are on one side only.
        ShapeError: The same name has another shape.
    """
    names = {name for name in saved.state_dict_metadata if name.startswith(f"{kind}.")}
    missing, surplus = sorted(set(state.tensors) - names), sorted(names - set(state.tensors))
    if missing or surplus:
        raise MissingKeyError(
            f"{where}: its {kind} doesn't fit the one given. Only in the one given: {_some(missing)}; "
            f"only in the checkpoint: {_some(surplus)}"
        )
    there: dict[str, Any] = dict(saved.state_dict_metadata)
    wrong = [
        f"{name} has shape {tuple(there[name].size)} in the checkpoint, but {tuple(tensor.size())} here"
        for name, tensor in state.tensors.items()
        if there[name].size != tensor.size()
    ]
    if wrong:
        raise ShapeError(f"{where}: {'; '.join(wrong[:10])}")


def _some(names: list[str], most: int = 10) -> str:
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


# ----------------------------------------------------------------------------------------------------------- optimizer


def parameter_names(model: nn.Module) -> dict[torch.Tensor, str]:
    """Each parameter's name in the model without wrappers; a shared one has its first name."""
    drop = {*_WRAPPERS, "module"} if isinstance(model, DistributedDataParallel) else set(_WRAPPERS)
    return {
        parameter: ".".join(
            part for place, part in enumerate(name.split(".")) if part not in drop or _is_own(part, place)
        )
        for name, parameter in model.named_parameters()
    }


def _is_own(part: str, place: int) -> bool:
    """Whether a part called ``module`` belongs to the model: only the outermost one is DDP's."""
    return part == "module" and place > 0


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, *, stepped: bool) -> State:
    """The optimizer's state by parameter name, ``optimizer.state.{name}.{key}``, and its groups.

    Args:
        model: The model whose parameters name the state.
        optimizer: The optimizer of that model.
        stepped: Whether it has state on any rank. Without, only the groups' numbers are taken. With state under FSDP1
            this is a collective.

    Raises:
        InputError: It holds a parameter that isn't the model's.
    """
    if not is_fsdp1(model):
        return State(*encode(_by_name(model, optimizer), "optimizer"))
    if not stepped:
        groups = [{**group, "params": None} for group in optimizer.param_groups]
        return State(*encode({"state": {}, "param_groups": groups}, "optimizer"))
    return fsdp1_optimizer_state(model, optimizer)


def fsdp1_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The same for FSDP1, whose flat parameters only torch can take apart; an optimizer without state is given one."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return State(*encode(dict(get_optimizer_state_dict(model, optimizer)), "optimizer"))


def _by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = parameter_names(model)
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        strangers = [tuple(parameter.shape) for parameter in group["params"] if parameter not in names]
        if strangers:
            raise InputError(
                f"optimizer: group {index} has parameters that aren't the model's, of shapes {strangers[:5]}"
            )
        groups.append({**group, "params": [names[parameter] for parameter in group["params"]]})
    return {
        "state": {names[parameter]: dict(state) for parameter, state in optimizer.state.items()},
        "param_groups": groups,
    }


class OptimizerLoad:
    """An optimizer about to be loaded: :attr:`tensors` are filled in place, then :meth:`apply` puts them into it.

    Args:
        model: The model whose parameters name the state.
        optimizer: The optimizer to load into.
        saved_tree: The tree of the saved state.
        saved: Sizes and dtypes of the saved tensors.
        where: The checkpoint, for errors.

    Raises:
        InputError: Its groups hold other parameters than the saved ones.
        MissingKeyError: It has other state.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, saved_tree: Any, saved: Metadata, where: str
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._saved = saved
        self._where = where
        self.tensors: dict[str, torch.Tensor] = {}
        self._state: dict[torch.Tensor, Any] = {}
        self._fsdp1 = is_fsdp1(model)
        if self._fsdp1:
            self._prepare_fsdp1(saved_tree)
        else:
            self._prepare(saved_tree)

    def apply(self) -> None:
        """Put the filled tensors into the optimizer. A meeting of all ranks for FSDP1."""
        if self._fsdp1 and self._tree["state"]:
            from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

            set_optimizer_state_dict(self._model, self._optimizer, self._tree)
            return
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, loaded in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(loaded)

    # ------------------------------------------------------------------------------------------------------------ plain

    def _prepare(self, saved_tree: Any) -> None:
        parameters = {name: parameter for parameter, name in parameter_names(self._model).items()}
        strangers = sorted(set(saved_tree["state"]) - set(parameters))
        if strangers:
            raise MissingKeyError(
                f"{self._where}: it has optimizer state for {_some(strangers)}, which the model lacks"
            )
        self._state = {
            parameters[name]: decode(kept, partial(self._target, like=parameters[name], of_parameter=True))
            for name, kept in saved_tree["state"].items()
        }
        for name, kept in saved_tree["state"].items():
            if not isinstance(kept, dict) or not isinstance(self._state[parameters[name]], dict):
                kind = type(self._state[parameters[name]]).__name__
                raise SerializationError(f"{self._where}: the optimizer's state of {name} is a {kind}, expected a dict")
        names = parameter_names(self._model)
        given = [[names[one] for one in group["params"]] for group in self._optimizer.param_groups]
        self._match_groups(saved_tree["param_groups"], given)

    def _target(self, path: str, node: Mapping[str, Any], like: torch.Tensor, *, of_parameter: bool) -> torch.Tensor:
        """An empty tensor of the saved dtype, laid out like the parameter where it has its shape."""
        saved: Any = self._saved.state_dict_metadata.get(path)
        if saved is None:
            raise SerializationError(f"{self._where}: the shards don't hold {path}, which the optimizer's state names")
        sharded = "placements" in node
        if of_parameter and like.shape == saved.size and (like.dim() or sharded):
            made = torch.empty_like(like, dtype=saved.properties.dtype, requires_grad=False)
        elif sharded and hasattr(like, "device_mesh"):
            made = _sharded(path, saved, node["placements"], like)
        else:
            device = "cpu" if node["device"] == "cpu" and not sharded else like.device
            made = torch.empty(saved.size, dtype=saved.properties.dtype, device=device)
        self.tensors[path] = made
        return made

    def _match_groups(self, saved: list[Any], given: list[list[str]]) -> None:
        """Hyperparameters of each group; groups are compared by their parameters' names, where they have some."""
        there = [group["params"] for group in saved]
        fits = len(there) == len(given) and all(
            names is None or sorted(names) == sorted(mine) for names, mine in zip(there, given, strict=True)
        )
        if not fits:
            sizes = [None if names is None else len(names) for names in there]
            raise InputError(
                f"{self._where}: the optimizer's groups hold other parameters than the saved ones: "
                f"got groups of {[len(mine) for mine in given]} parameters, expected {sizes}"
            )
        lookups = [
            partial(self._target, like=_first(group), of_parameter=False) for group in self._optimizer.param_groups
        ]
        self._groups = [
            decode({key: value for key, value in group.items() if key != "params"}, lookup)
            for group, lookup in zip(saved, lookups, strict=True)
        ]

    # ------------------------------------------------------------------------------------------------------------ FSDP1

    def _prepare_fsdp1(self, saved_tree: Any) -> None:
        if not saved_tree["state"]:
            self._state = {}
            self._tree: dict[str, Any] = {"state": {}}
            by_place = [{**group, "params": None} for group in saved_tree["param_groups"]]
            self._match_groups(by_place, [[] for _ in self._optimizer.param_groups])
            return
        current = fsdp1_optimizer_state(self._model, self._optimizer)
        check_same(current, self._saved, "optimizer", self._where)
        self.tensors = current.tensors
        self._tree = decode(saved_tree, lambda name, _: current.tensors[name])


def _first(group: Mapping[str, Any]) -> torch.Tensor:
    """A parameter of the group, which says on which device its numbers belong."""
    return next(iter(group["params"]), torch.empty(0))


def _sharded(path: str, saved: Any, placements: list[int | None], like: Any) -> torch.Tensor:
    from torch.distributed.tensor import Replicate, Shard, empty

    mesh = like.device_mesh
    if len(placements) != mesh.ndim:
        raise SerializationError(
            f"{path}: saved over {len(placements)} mesh dimensions, expected the parameter's {mesh.ndim}"
        )
    wanted = [Replicate() if dim is None else Shard(dim) for dim in placements]
    return empty(*saved.size, dtype=saved.properties.dtype, device_mesh=mesh, placements=wanted)
