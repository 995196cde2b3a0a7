"""The rules by which connections get a place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.server.door import SLOW_SECONDS, Door


def make(places: int = 100, logins: int = 4, per_origin: int = 50) -> Door[str]:
    return Door(places=places, logins=logins, per_origin=per_origin)


def come(door: Door[str], *visitors: str, now: float = 0.0) -> list[str]:
    """Visitors named by their origin and a number; returns who may begin to log in."""
    for visitor in visitors:
        assert door.arrive(visitor, visitor[0], now) is None
    return door.advance(now)[0]


def test_few_log_in_at_once_and_an_origin_has_half_of_the_places() -> None:
    door = make(logins=4)
    assert come(door, "a1", "a2", "a3", "a4", "a5") == ["a1", "a2"]
    assert come(door, "b1", "c1", "d1") == ["b1", "c1"]
    door.logged_in("a1")
    assert door.advance(0.0) == (["d1"], []), "origins take turns"
    door.logged_in("b1")
    assert door.advance(0.0) == (["a3"], [])
    assert (len(door), door.inside) == (8, 2)
    assert repr(door) == "<Door 8 of 100: logging in 4, inside 2>"


def test_all_are_counted_from_the_moment_when_they_come() -> None:
    door = make(places=3, logins=2)
    come(door, "a1", "b1", "c1")
    assert door.arrive("d1", "d", 0.0) == "3 connections are here already"
    assert door.left("c1")
    assert door.arrive("d1", "d", 0.0) is None
    assert not door.left("c1"), "it has left already"
    assert not door.left("nobody")


def test_one_origin_cannot_have_all_places_before_login() -> None:
    door = make(places=10, logins=4, per_origin=3)
    come(door, "a1", "a2", "a3")
    assert door.arrive("a4", "a", 0.0) == "3 connections of its address have not logged in"
    assert come(door, "b1", "b2") == ["b1", "b2"]
    door.logged_in("a1")
    assert come(door, "a4") == ["a3"], "who is inside does not count"
    assert door.left("a4")
    assert door.left("a2")
    come(door, "a5", "a6")
    assert door.arrive("a7", "a", 0.0) is not None


def test_a_slow_login_makes_room_for_another_one() -> None:
    door = make(logins=2)
    come(door, "a1", "b1", now=0.0)
    assert door.advance(10.0) == ([], []), "nobody needs their places"
    assert door.arrive("c1", "c", 10.0) is None
    assert door.advance(10.0) == (["c1"], ["a1"])
    assert door.arrive("c2", "c", 0.0) is None
    assert door.advance(10.0) == ([], []), "its own origin is in its way"


def test_a_login_that_is_not_slow_yet_keeps_its_place() -> None:
    door = make(logins=2)
    come(door, "a1", "b1", now=0.0)
    assert come(door, "c1", "d1", now=SLOW_SECONDS - 0.1) == []
    assert door.advance(SLOW_SECONDS) == (["c1", "d1"], ["a1", "b1"])


def test_slow_logins_of_an_origin_make_room_for_others_of_it_only_where_there_is_room_otherwise() -> None:
    door = make(logins=8)
    come(door, *(f"a{number}" for number in range(6)), "b1", now=0.0)
    entering, put_out = door.advance(SLOW_SECONDS)
    assert put_out == ["a0", "a1"]
    assert entering == ["a4", "a5"]


def test_where_all_places_are_taken_a_newcomer_gets_one_of_the_origin_that_has_most() -> None:
    door = make(places=6, logins=2)
    come(door, "a1", "a2", "a3", "a4", "b1", "b2")
    assert door.arrive("c1", "c", 0.0) is None
    assert door.advance(0.0) == ([], ["a4"]), "the newest of those who wait"
    assert door.arrive("b3", "b", 0.0) is not None, "b would have as many as a then"
    assert door.arrive("a5", "a", 0.0) is not None
    door.logged_in("a1")
    door.advance(0.0)
    assert door.arrive("d1", "d", 0.0) is None
    assert door.advance(0.0)[1] in (["a3"], ["b2"])


def test_who_is_inside_or_logs_in_quickly_is_not_put_out_for_a_newcomer() -> None:
    door = make(places=3, logins=6)
    come(door, "a1", "a2", "a3")
    assert door.arrive("b1", "b", 1.0) is not None
    door.logged_in("a1")
    assert door.arrive("b1", "b", SLOW_SECONDS) is None
    assert door.advance(SLOW_SECONDS) == (["b1"], ["a2"])
    for visitor in ("a3", "b1"):
        door.logged_in(visitor)
    assert door.arrive("c1", "c", 1000.0) is not None


def test_with_one_place_for_logins_everybody_has_a_turn() -> None:
    door = make(logins=1)
    assert come(door, "a1", "a2", "b1") == ["a1"]
    door.logged_in("a1")
    assert door.advance(0.0)[0] == ["b1"]
    door.left("b1")
    assert door.advance(0.0)[0] == ["a2"]


@settings(max_examples=400, deadline=None)
@given(
    places=st.integers(1, 8),
    logins=st.integers(1, 5),
    per_origin=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(["arrive", "log in", "leave", "wait"]), st.sampled_from("abc"), st.integers(0, 30)),
        max_size=60,
    ),
)
def test_no_limit_is_passed_and_nobody_is_forgotten(
    places: int, logins: int, per_origin: int, steps: list[tuple[str, str, int]]
) -> None:
    door = make(places, logins, per_origin)
    outside: dict[str, str] = {}  # visitor → waiting or logging in
    inside: set[str] = set()
    now = 0.0
    for number, (what, origin, pick) in enumerate(steps):
        if what == "arrive":
            refused = door.arrive(f"{origin}{number}", origin, now)
            of_origin = {each: sum(visitor[0] == each for visitor in outside) for each in "abc"}
            if of_origin[origin] >= per_origin:
                assert refused is not None
            elif len(outside) + len(inside) < places:
                assert refused is None
            elif refused is None:
                assert max(of_origin.values()) > of_origin[origin] + 1, "it put another one out"
            if refused is None:
                outside[f"{origin}{number}"] = "waiting"
        elif what == "log in":
            able = [visitor for visitor, state in outside.items() if state == "logging in"]
            if able:
                visitor = able[pick % len(able)]
                door.logged_in(visitor)
                del outside[visitor]
                inside.add(visitor)
        elif what == "leave" and (outside or inside):
            visitor = sorted([*outside, *inside])[pick % (len(outside) + len(inside))]
            assert door.left(visitor)
            outside.pop(visitor, None)
            inside.discard(visitor)
        else:
            now += 1.5
        entering, put_out = door.advance(now)
        for visitor in put_out:
            del outside[visitor]
        assert len(outside) + len(inside) <= places
        for visitor in entering:
            assert outside[visitor] == "waiting"
            outside[visitor] = "logging in"
        logging_in = [visitor for visitor, state in outside.items() if state == "logging in"]
        assert len(logging_in) <= logins
        waiting = [visitor for visitor, state in outside.items() if state == "waiting"]
        if waiting and len(logging_in) < logins:
            most = max(1, logins // 2)
            for visitor in waiting:
                assert sum(other[0] == visitor[0] for other in logging_in) >= most, "there was room for it"
        assert (len(door), door.inside) == (len(outside) + len(inside), len(inside))
