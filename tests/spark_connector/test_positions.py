"""Where reading begins: what users write, and how an instant is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.positions import (
    EARLIEST,
    LATEST,
    Instant,
    Position,
    check_position,
    first_since,
    hint_of_instant,
    is_behind,
    position_of,
    positions_in,
)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (None, EARLIEST),
        ("Latest", LATEST),
        (" earliest ", EARLIEST),
        ("17", 17),
        ("1970-01-01T00:00:01Z", Instant(1000)),
        ("1970-01-01T02:00:00.250+02:00", Instant(250)),
        ('{"q": 5, "r": "latest"}', 5),
        ('{"q": "5"}', 5),
        ('{"r": "latest"}', EARLIEST),
    ],
)
def test_a_position_has_these_forms(text: str | None, position: object) -> None:
    check_position("startingPosition", text, ("q", "r"))
    assert position_of("startingPosition", text, "q", EARLIEST) == position


@pytest.mark.parametrize("text", ["", "first", "-1", "1.5", "\u0661", "9" * 20, '{"q": true}', "{", "26.11.2026"])
def test_anything_else_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"(none of these:|it is) earliest, latest, a position"):
        check_position("startingPosition", text, None)


@pytest.mark.parametrize(
    ("begin", "end", "behind"),
    [(5, 3, True), (3, 3, False), (Instant(5), Instant(3), True), (5, Instant(3), False), (LATEST, 3, False)],
)
def test_a_begin_is_behind_an_end_of_its_own_kind(begin: Position, end: Position, behind: bool) -> None:
    assert is_behind(begin, end) is behind


def test_what_is_wrong_in_json_is_told_with_its_queue() -> None:
    with pytest.raises(ValueError, match="startingPosition of 'orders'='null' is none of these"):
        check_position("startingPosition", '{"returns": 1, "orders": null}', None)
    with pytest.raises(ValueError, match="startingPosition has two positions for 'orders'"):
        check_position("startingPosition", '{"orders": 3, "orders": 5}', None)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40), st.integers(0, 150))
def test_an_instant_is_found_where_positions_and_times_have_gaps(steps: list[tuple[int, int]], wanted: int) -> None:
    sent, position, time = {}, 0, 0
    for step, pause in steps:
        position, time = position + step, time + pause
        sent[position] = time
    looks = 0

    def look(first: int, last: int) -> tuple[int, int] | None:
        nonlocal looks
        looks += 1
        return next(((at, sent[at]) for at in sorted(sent) if first <= at <= last), None)

    found = first_since(Instant(wanted), 1, position + 1, look)
    assert [at for at in sent if at >= found] == [at for at, time in sent.items() if time >= wanted]
    assert looks <= 9


def test_all_positions_of_an_option_are_found() -> None:
    assert positions_in("o", " Latest") == [LATEST]
    assert positions_in("o", '{"latest": 17, "b": "earliest"}') == [17, EARLIEST]


@pytest.mark.parametrize(
    ("position", "hint"),
    [
        (10**9 - 1, ""),
        (10**9, "; if seconds since 1970 are meant, write the instant: 2001-09-09T01:46:40Z"),
        (10**10 - 1, "; if seconds since 1970 are meant, write the instant: 2286-11-20T17:46:39Z"),
        (10**10, ""),
        (10**12 - 1, ""),
        (10**12 + 250, "; if milliseconds since 1970 are meant, write the instant: 2001-09-09T01:46:40.250000Z"),
        (10**13, ""),
        (10**19 - 1, ""),
    ],
)
def test_a_number_that_looks_like_a_time_has_the_instant_as_a_hint(position: int, hint: str) -> None:
    assert hint_of_instant(position) == hint
    if hint:
        instant = position_of("o", hint.rsplit(" ", 1)[1], "q", EARLIEST)
        assert isinstance(instant, Instant)
        assert instant.ms in (position, 1000 * position)
