"""The names that destinations can have."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.destination import (
    MAX_NAME_BYTES,
    Destination,
    DestinationKind,
    checked_destination,
    checked_name,
    is_destination,
    queue,
    topic,
)
from broker_adapter.errors import InvalidDestinationException


@pytest.mark.parametrize("name", ["q", "a b", "\N{SNOWMAN}", "x" * MAX_NAME_BYTES])
def test_names_are_of_any_characters_up_to_a_length(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "destination name '' is not a string of at least one character"),
        (None, "destination name None is not a string"),
        ("a\0b", r"destination name 'a\\x00b' has the character NUL, which no name may have"),
        ("\ud800", "is not valid Unicode"),
        ("x" * 401, "destination name of 401 bytes is longer than the limit of 400 bytes: xxx"),
        ("\N{SNOWMAN}" * 134, "destination name of 402 bytes"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused_with_the_reason(name: object, error: str) -> None:
    with pytest.raises(InvalidDestinationException, match=error):
        checked_name(name)


def test_the_reason_says_whose_name_it_is() -> None:
    with pytest.raises(InvalidDestinationException, match="transaction name of 401 bytes"):
        checked_name("x" * 401, "transaction")


@pytest.mark.parametrize(
    ("kind", "is_topic", "is_temporary"),
    [
        (DestinationKind.QUEUE, False, False),
        (DestinationKind.TOPIC, True, False),
        (DestinationKind.TEMPORARY_QUEUE, False, True),
        (DestinationKind.TEMPORARY_TOPIC, True, True),
    ],
)
def test_a_kind_tells_which_consumers_get_a_message_and_how_long_the_destination_lives(
    kind: DestinationKind, is_topic: bool, is_temporary: bool
) -> None:
    destination = Destination("news", kind)
    assert (destination.is_topic, destination.is_temporary, str(destination)) == (is_topic, is_temporary, "news")


def test_a_queue_and_a_topic_of_one_name_are_not_the_same() -> None:
    assert queue("news") == Destination("news") != topic("news")
    for make in (queue, topic):
        with pytest.raises(InvalidDestinationException):
            make("")


@pytest.mark.parametrize("wrong", ["q", None, Destination(None), Destination(b"q"), Destination("q", "queue")])  # type: ignore[arg-type]
def test_what_is_no_destination_is_refused(wrong: Any) -> None:
    """A program may make one by itself, and leave the type of a name or kind unchecked."""
    assert not is_destination(wrong)
    with pytest.raises(InvalidDestinationException, match="is not a destination such as"):
        checked_destination(wrong)


def test_a_destination_whose_name_none_can_have_is_refused() -> None:
    assert checked_destination(queue("q")) == Destination("q")
    assert is_destination(Destination("x" * 401))
    with pytest.raises(InvalidDestinationException, match="of 401 bytes"):
        checked_destination(Destination("x" * 401))
