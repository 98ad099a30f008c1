from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from probe.tracking.names import NameMap, mlflow_name

names_like = st.text(alphabet="ab/.@%_ 奖:\n2", min_size=0, max_size=8) | st.text(max_size=300)


@settings(deadline=None, max_examples=150)
@given(st.lists(names_like, max_size=12))
def test_no_two_names_become_one_and_none_is_a_directory_of_another(names):
    mapped_names = NameMap(mlflow_name)
    mapped = {name: mapped_names(name) for name in names}
    assert len(set(mapped.values())) == len(mapped)
    for one in mapped.values():
        assert not any(other.startswith(f"{one}/") for other in mapped.values())
    again = NameMap(mlflow_name, None, {name: mapped_names.changed.get(name, name) for name in mapped})
    assert {name: again(name) for name in reversed(names)} == mapped


@settings(deadline=None)
@given(names_like)
def test_mlflow_takes_what_the_rule_gives(name):
    from mlflow.utils.validation import _validate_metric_name

    mapped = mlflow_name(name)
    _validate_metric_name(mapped)
    assert len(mapped) <= 250
    assert mlflow_name(mapped) == mapped


def test_a_name_never_leads_out_of_the_directory():
    assert [mlflow_name(name) for name in ("..2", "../a", "./a", ".a", "a/..")] == [
        "__2",
        "__/a",
        "_/a",
        ".a",
        "a/__",
    ]


def test_legal_names_stay():
    for name in ("probe/memory/actor/peak_allocated_gib_max", "a.b-c d:e", "奖励/均值"):
        assert mlflow_name(name) == name


def test_long_names_that_differ_at_the_end_stay_apart():
    one, two = mlflow_name("x" * 300 + "1"), mlflow_name("x" * 300 + "2")
    assert one != two
    assert re.fullmatch(r"x+_[0-9a-f]{8}", one)


def test_a_collision_is_told_once():
    told = []
    names = NameMap(mlflow_name, lambda *collision: told.append(collision))
    assert [names("a!"), names("a#"), names("a#"), names("a_/b"), names("c")] == [
        "a_",
        "a__2",
        "a__2",
        "a__3/b",
        "c",
    ]
    assert told == [("a#", "a_", "a__2"), ("a_/b", "a_/b", "a__3/b")]


def test_a_resumed_run_keeps_its_names():
    names = NameMap(mlflow_name, None, {"a#": "a_", "b": "b_2"}, ["a_", "b_2", "loss"])
    assert (names("a!"), names("a#"), names("b"), names("loss"), names("loss/x")) == (
        "a__2",
        "a_",
        "b_2",
        "loss",
        "loss_2/x",
    )
