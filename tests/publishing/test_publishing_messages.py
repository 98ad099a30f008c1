"""The lines between publisher and session: nothing is lost in them."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.publishing import messages
from probe.publishing.messages import Arranged, Described, Done, Numbers, Shown, Steps, Tagged, Trouble
from probe.tracking.media import Figure, Histogram, Table, Text, medium_of


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), st.floats()))
def test_every_float_arrives_as_it_was(values: dict[str, float]) -> None:
    line = messages.encode(Numbers.from_floats(7, values))
    assert line.count(b"\n") == 1
    arrived = messages.decode(line)
    assert isinstance(arrived, Numbers)
    assert arrived.step == 7
    found = arrived.floats()
    assert found.keys() == values.keys()
    for key, value in values.items():
        assert found[key] == value or (math.isnan(found[key]) and math.isnan(value))


@pytest.mark.parametrize(
    "medium",
    [
        Histogram.from_values([1, 2, 2, 5]),
        Table(["a", "b"], [[1, None], ["x\ny", "nan"]]),
        Text("lines\nof text"),
        Figure('{"data": [], "layout": {"title": {"text": "a \\u2028 b"}}}'),
    ],
    ids=lambda medium: medium.kind,
)
def test_media_arrive_as_they_were(medium) -> None:
    line = messages.encode(Shown("name", 3, medium.plain(), newest=False))
    assert line.count(b"\n") == 1
    arrived = messages.decode(line)
    assert (arrived.name, arrived.step, arrived.newest) == ("name", 3, False)
    assert medium_of(arrived.medium) == medium


@pytest.mark.parametrize(
    "message",
    [
        Described("# a\nb"),
        Tagged({"a": "b"}),
        Arranged({"Memory": {"Peak": {"kind": "line", "keys": ["a"]}}}),
        Trouble("a panel", "ValueError()", "Traceback"),
        Done(final=True, steps=[(0, 4), (6, 6)]),
    ],
)
def test_words_arrive_as_they_were(message) -> None:
    assert messages.decode(messages.encode(message)) == message


def test_other_lines_are_refused() -> None:
    for line in (b"\n", b"hello\n", b'{"type": "nonsense"}\n', b'{"type": "numbers"}\n'):
        with pytest.raises(msgspec.MsgspecError):
            messages.decode(line)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 30)))
def test_steps_are_a_set_in_few_words(added: list[int]) -> None:
    steps = Steps()
    for step in added:
        steps.add(step)
    ranges = steps.ranges()
    assert {step for first, last in ranges for step in range(first, last + 1)} == set(added)
    assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(ranges))  # none could be joined
    again = Steps(ranges)
    assert [step in again for step in range(32)] == [step in added for step in range(32)]
