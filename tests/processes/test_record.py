"""Messages are what frozen dataclasses with keywords alone would be."""

from __future__ import annotations

import pickle

import pytest

from reading_services._transport.messages import EndEpoch, Grant, Layout, Message, Stop
from reading_services._transport.record import Record


class Point(Record):
    x: int
    y: int = 2


class Named(Point):
    name: str = ""


def test_fields_are_given_by_name_or_have_defaults() -> None:
    assert (Point(x=1).x, Point(x=1).y, Point(x=1, y=5).y) == (1, 2, 5)
    assert repr(Named(x=1, name="a")) == "Named(x=1, y=2, name='a')"


@pytest.mark.parametrize("given", [{}, {"y": 1}, {"x": 1, "z": 2}, {"y": 1, "z": 2}])
def test_missing_and_unknown_fields_are_named(given: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"Point has the fields \('x', 'y'\): missing or unknown are \['(x|z)'"):
        Point(**given)


def test_it_does_not_change() -> None:
    point = Point(x=1)
    with pytest.raises(AttributeError, match="Point cannot be changed"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Point cannot be changed"):
        del point.x
    assert (point.replace(x=3), point) == (Point(x=3), Point(x=1))


def test_equal_are_those_of_one_class_with_equal_fields() -> None:
    assert Point(x=1) == Point(x=1, y=2) != Point(x=2)
    assert Point(x=1) != Named(x=1)
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2


@pytest.mark.parametrize("message", [Grant(generation=1, lane=2, chunks=3), EndEpoch(generation=4), Stop()])
def test_messages_travel(message: Message) -> None:
    assert pickle.loads(pickle.dumps(message, protocol=5)) == message


def test_a_layout_in_the_payload_has_no_slot() -> None:
    assert vars(Layout(sizes=(3,))) == {"sizes": (3,), "slot": -1, "offset": 0, "capacity": 0, "placed": ()}
