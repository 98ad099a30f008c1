"""Methods of DataProto, which are written in several classes: their names, points and subclasses."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import pickle
import types
import typing

import pytest
import torch

from probe import hooks
from probe.core import protocol
from probe.core.protocol import (
    DataProto,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from tests.core.numbered_batches import Special, make

# -------------------------------------------------------------------------------- all methods


def test_subclasses_come_back_from_every_method():
    data = make(4, cls=Special)
    data.extra = "kept"
    made = [
        data[1:],
        data[[0]],
        data.select(),
        data.select_idxs([0]),
        data.slice(0, 1),
        *data.chunk(2),
        *data.split(3),
        data.repeat(),
        data.sample_level_repeat([1] * 4),
        data.unfold_column_chunks(1),
        DataProto.concat([data, data]),
        data.select(non_tensor_batch_keys=[]).fold_batch_dim(2),
        copy.copy(data),
        copy.deepcopy(data),
    ]
    assert {type(one) for one in made} == {Special}
    assert {one.extra for one in made} == {"kept"}


def test_each_operation_is_one_point():
    heard = []

    class Hear(hooks.Listener):
        def leave(self, event, state):
            heard.append(event.point.name.removeprefix("data_proto."))

    data = make(4)
    with hooks.subscribe(Hear(), "data_proto.*"):
        (
            data.select(["a"]),
            data.select_idxs([0]),
            data.slice(0, 1),
            data.chunk(2),
            data.split(2),
            data.repeat(),
        )
        data.sample_level_repeat([1] * 4), data.reorder([3, 2, 1, 0]), data.unfold_column_chunks(1)
        list(data.make_iterator(2, 1)), DataProto.concat([data, data]), data.padding(1), data.union(data)
        (
            unpad_dataproto(*pad_dataproto_to_divisor(data, 2)),
            data.to("cpu"),
            DataProto.from_tensordict(data.to_tensordict()),
        )
        DataProto.from_single_dict({"a": torch.zeros(2)}), data.rename("a", "z"), data.pop("z")
        DataProto.from_dict({"a": torch.zeros(2)}).fold_batch_dim(1).unfold_batch_dim()
    assert heard == [
        "select", "select_idxs", "slice", "chunk", "split", "repeat", "sample_level_repeat",
        "reorder", "unfold_column_chunks", "make_iterator", "concat", "padding", "union", "pad_to_divisor",
        "unpad", "to", "to_tensordict", "from_tensordict", "from_single_dict", "rename", "pop", "from_dict",
        "fold_batch_dim", "unfold_batch_dim",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- methods in several classes

METHODS = (types.FunctionType, classmethod, staticmethod)


def inherited() -> list[str]:
    groups = [vars(group) for group in DataProto.__mro__[1:-1]]
    return [name for group in groups for name, one in group.items() if isinstance(one, METHODS) and name != "__init__"]


@pytest.mark.parametrize("name", inherited())
def test_an_inherited_method_has_the_name_under_which_users_know_it(name):
    method = getattr(DataProto, name)
    function = getattr(method, "__func__", method)
    for one in (method, function, inspect.unwrap(function)):
        assert (one.__module__, one.__qualname__) == ("probe.core.protocol", f"DataProto.{name}")
    assert pickle.loads(pickle.dumps(method)) == method
    assert typing.get_type_hints(function)


def test_listeners_are_told_that_name():
    heard = []

    class Names(hooks.Listener):
        def leave(self, event, state):
            heard.append(f"{event.function.__module__}.{event.function.__qualname__}")

    with hooks.subscribe(Names(), "data_proto.select"):
        DataProto.from_dict({"a": torch.zeros(2)}).select("a")
    assert heard == ["probe.core.protocol.DataProto.select"]


def test_its_fields_are_the_three_members_and_its_bases_add_none():
    assert [one.name for one in dataclasses.fields(DataProto)] == ["batch", "non_tensor_batch", "meta_info"]
    assert list(DataProto.__annotations__) == ["batch", "non_tensor_batch", "meta_info"]
    assert type(DataProto) is type
    assert DataProto.__hash__ is None


def test_a_patched_method_is_the_base_classes_again_afterwards(monkeypatch):
    data = DataProto.from_dict({"a": torch.zeros(2)})
    before = DataProto.select
    with monkeypatch.context() as patched:
        patched.setattr(DataProto, "select", lambda self, *names: names)
        assert data.select("a") == ("a",)
    assert DataProto.select is before
    assert "select" not in vars(DataProto)


def test_a_subclass_reaches_an_inherited_method():
    class Counting(DataProto):
        def chunk(self, chunks):
            return super().chunk(chunks)[:1]

    (part,) = Counting.from_dict({"a": torch.arange(4)}).chunk(2)
    assert type(part) is Counting


def test_doctest_finds_the_examples_of_inherited_methods():
    found = {one.name.partition("__test__.")[2]: len(one.examples) for one in doctest.DocTestFinder().find(protocol)}
    shown = [name for name in inherited() if ">>>" in (getattr(DataProto, name).__doc__ or "")]
    assert len(shown) > 15
    assert all(found[f"DataProto.{name}"] for name in shown)
