from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.core.metric import Metric
from probe.tracking.numbers import Snapshot, to_float


def no_device(tensors):
    raise AssertionError("nothing here is on a device")


def taken(value):
    good, bad = Snapshot({"x": value}, no_device).floats()
    assert bad == {}
    assert type(good["x"]) is float
    return good["x"]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (0.25, 0.25),
        (np.float16(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.int8(-3), -3.0),
        (np.uint64(2**63), 2.0**63),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (np.array([[7]], dtype=np.int64), 7.0),
        (np.array(Decimal("0.5"), dtype=object), 0.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(1.5, dtype=torch.float16), 1.5),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor([[4]]), 4.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.nn.Parameter(torch.tensor(2.0)), 2.0),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 4), 0.25),
        (Metric("mean", [1.0, 2.0]), 1.5),
        (Metric("sum", torch.tensor([1, 2])), 3.0),
    ],
)
def test_every_kind_of_number_is_taken(value, number):
    assert taken(value) == number
    assert to_float(value) == number


@pytest.mark.parametrize("make", [float, np.float32, np.float64, torch.tensor, Decimal, np.array])
def test_nan_and_infinities_survive(make):
    assert math.isnan(taken(make(float("nan"))))
    assert taken(make(float("inf"))) == math.inf
    assert taken(make(float("-inf"))) == -math.inf


@settings(deadline=None)
@given(st.floats(width=32), st.sampled_from([np.float32, np.float64, torch.tensor, np.asarray, float]))
def test_values_are_exact(number, make):
    result = taken(make(number))
    assert result == number or (math.isnan(result) and math.isnan(number))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "got NoneType"),
        ({"a": 1}, "got dict"),
        ([1.0], "got list"),
        (1j, "got complex"),
        (torch.tensor([1.0, 2.0]), r"shape \(2,\)"),
        (torch.tensor(1j), "complex"),
        (torch.empty(0), r"shape \(0,\)"),
        (np.zeros((2, 1)), r"shape \(2, 1\)"),
        (np.array("1.0"), "str"),
        (np.complex64(1), "complex64"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (np.ma.masked, "masked"),
        (np.ma.array(1.0, mask=True), "masked"),
        (10**400, "too large"),
        (Decimal("1e400"), "no float can hold"),
        (Fraction(10**400), "too large"),
    ],
)
def test_what_is_no_number_is_named_and_the_rest_goes_on(value, why):
    good, bad = Snapshot({"bad": value, "good": 1.0}, no_device).floats()
    assert good == {"good": 1.0}
    assert list(bad) == ["bad"]
    with pytest.raises((TypeError, ValueError, OverflowError), match=why):
        to_float(value)


def test_a_name_that_is_no_string_is_named():
    good, bad = Snapshot({3: 1.0, "x": 2.0}, no_device).floats()
    assert good == {"x": 2.0}
    assert "expected a str" in bad["3"]


def test_a_value_and_a_name_of_others_that_raise_leave_out_themselves_alone():
    class Odd:
        def __float__(self):
            raise RuntimeError("lost")

        def __repr__(self):
            raise RuntimeError("no name")

    good, bad = Snapshot({"odd": Odd(), Odd(): 1.0, "x": 2.0}, no_device).floats()
    assert good == {"x": 2.0}
    assert bad == {
        "odd": "it can't be read: RuntimeError('lost')",
        "a name whose repr raised RuntimeError": "its name is a Odd, expected a str",
    }


def test_later_changes_do_not_show():
    tensor, array, metric = torch.tensor(1.0), np.array(1.0), Metric("sum", [1.0])
    data = {"tensor": tensor, "array": array, "metric": metric, "plain": 1.0}
    snapshot = Snapshot(data, no_device)
    tensor.add_(5.0)
    array += 5.0
    metric.append(5.0)
    data["plain"] = 6.0
    data["more"] = 7.0
    assert snapshot.floats() == ({"tensor": 1.0, "array": 1.0, "metric": 1.0, "plain": 1.0}, {})


class Arriving:
    """A fake transfer whose arrival the test decides."""

    def __init__(self, values, error=None):
        self.values = values
        self.error = error
        self.arrived = False

    def ready(self):
        if self.error:
            raise self.error
        return self.arrived

    def read(self):
        if self.error:
            raise self.error
        assert self.arrived, "read before it was ready"
        return self.values


def test_device_tensors_travel_together_and_are_read_when_there():
    asked = []
    transfer = Arriving([1.0, math.nan])

    def start(tensors):
        asked.extend(tensors)
        return transfer

    first, second = torch.empty((), device="meta"), torch.empty((1,), device="meta")
    snapshot = Snapshot({"a": first, "b": 2.0, "c": second}, start)
    assert [tensor is given for tensor, given in zip(asked, [first, second], strict=True)] == [True, True]
    assert all(value is not first and value is not second for value in snapshot.values.values())
    assert not snapshot.ready()
    transfer.arrived = True
    assert snapshot.ready()
    good, bad = snapshot.floats()
    assert (good["a"], good["b"], bad) == (1.0, 2.0, {})
    assert math.isnan(good["c"])


def test_a_device_that_fails_costs_only_its_values():
    device = torch.empty((), device="meta")
    lost = Arriving([], RuntimeError("device lost"))
    snapshot = Snapshot({"a": device, "b": 2.0}, lambda tensors: lost)
    assert snapshot.ready()
    good, bad = snapshot.floats()
    assert good == {"b": 2.0}
    assert "device lost" in bad["a"]

    def refuse(tensors):
        raise RuntimeError("captured")

    good, bad = Snapshot({"a": device, "b": 2.0}, refuse).floats()
    assert good == {"b": 2.0}
    assert "captured" in bad["a"]


def test_a_value_inside_of_vmap_costs_only_itself():
    found = []

    def f(x):
        found.append(Snapshot({"x": x, "y": 1.0}, no_device).floats())
        return x

    torch.vmap(f)(torch.zeros(2))
    ((good, bad),) = found
    assert good == {"y": 1.0}
    assert "vmap" in bad["x"]


def test_a_distributed_tensor_is_never_read():
    class Distributed(torch.Tensor):
        placements = ()

    tensor = torch.tensor(1.0).as_subclass(Distributed)
    _, bad = Snapshot({"a": tensor}, no_device).floats()
    assert "collective" in bad["a"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_values_arrive_without_a_synchronisation():
    import time

    from probe.tracking.transfer import start_transfer
    from tests.gpu.waiting_is_an_error import nobody_waits

    values = {
        f"{dtype}/{index}": torch.tensor(index, device="cuda", dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)
        for index in (0, 1)
    }
    start_transfer(list(values.values()))  # pinned memory is there
    torch.cuda.synchronize()
    with nobody_waits():
        torch.cuda._sleep(200_000_000)
        snapshot = Snapshot(values, start_transfer)
        assert not snapshot.ready()
    for tensor in values.values():
        tensor.zero_()
    deadline = time.monotonic() + 300
    while not snapshot.ready() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert snapshot.floats() == ({name: float(name.rsplit("/", 1)[1]) for name in values}, {})


def test_text_is_no_number_but_shown_as_text():
    from probe.tracking.media import Text

    snapshot = Snapshot({"note": "1.0", "x": 1.0}, no_device)
    assert snapshot.floats() == ({"x": 1.0}, {})
    assert snapshot.media == {"note": Text("1.0")}
    with pytest.raises(TypeError, match="got str"):
        to_float("1.0")
