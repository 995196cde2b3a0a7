"""The rules by which connections get a place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.server.access.admission import SLOW_SECONDS, LoginAdmission


def make(places: int = 100, logins: int = 4, per_origin: int = 50) -> LoginAdmission[str]:
    return LoginAdmission(places=places, logins=logins, per_origin=per_origin)


def come(admission: LoginAdmission[str], *connections: str, now: float = 0.0) -> list[str]:
    """Connections named by their origin and a number, which speak at once; returns those that may begin to log in."""
    for connection in connections:
        assert admission.accepted(connection, connection[0], now) is None
        admission.spoke(connection)
    return admission.advance(now)[0]


def test_few_connections_log_in_at_once_and_an_origin_has_half_of_the_places() -> None:
    admission = make(logins=4)
    assert come(admission, "a1", "a2", "a3", "a4", "a5") == ["a1", "a2"]
    assert come(admission, "b1", "c1", "d1") == ["b1", "c1"]
    admission.opened("a1")
    assert admission.advance(0.0) == (["d1"], []), "origins take turns"
    admission.opened("b1")
    assert admission.advance(0.0) == (["a3"], [])
    assert (len(admission), admission.open_connections) == (8, 2)
    assert repr(admission) == "<LoginAdmission 8 of 100: logging in 4, open 2>"


def test_connections_are_counted_from_the_moment_when_they_are_accepted() -> None:
    admission = make(places=3, logins=2)
    come(admission, "a1", "b1", "c1")
    assert admission.accepted("d1", "d", 0.0) == "there are 3 connections already"
    assert admission.closed("c1")
    assert admission.accepted("d1", "d", 0.0) is None
    assert not admission.closed("c1"), "it has left already"
    assert not admission.closed("nobody")


def test_one_origin_cannot_have_all_places_before_login() -> None:
    admission = make(places=10, logins=4, per_origin=3)
    come(admission, "a1", "a2", "a3")
    assert admission.accepted("a4", "a", 0.0) == "3 connections of its address have not logged in"
    assert come(admission, "b1", "b2") == ["b1", "b2"]
    admission.opened("a1")
    assert come(admission, "a4") == ["a3"], "an open connection does not count"
    assert admission.closed("a4")
    assert admission.closed("a2")
    come(admission, "a5", "a6")
    assert admission.accepted("a7", "a", 0.0) is not None


def test_a_slow_login_is_evicted_for_a_queued_connection() -> None:
    admission = make(logins=2)
    come(admission, "a1", "b1", now=0.0)
    assert admission.advance(10.0) == ([], []), "no connection needs their places"
    assert admission.accepted("c1", "c", 10.0) is None
    assert admission.advance(10.0) == ([], []), "it has said nothing"
    admission.spoke("c1")
    assert admission.advance(10.0) == (["c1"], ["a1"])
    assert admission.accepted("c2", "c", 0.0) is None
    admission.spoke("c2")
    assert admission.advance(10.0) == ([], []), "its own origin is in its way"


def test_a_login_that_is_not_slow_yet_keeps_its_place() -> None:
    admission = make(logins=2)
    come(admission, "a1", "b1", now=0.0)
    assert come(admission, "c1", "d1", now=SLOW_SECONDS - 0.1) == []
    assert admission.advance(SLOW_SECONDS) == (["c1", "d1"], ["a1", "b1"])


def test_slow_logins_of_an_origin_that_has_used_up_its_half_are_evicted_for_others_of_it() -> None:
    admission = make(logins=8)
    come(admission, *(f"a{number}" for number in range(6)), "b1", now=0.0)
    starting, evicted = admission.advance(SLOW_SECONDS)
    assert evicted == ["a0", "a1"]
    assert starting == ["a4", "a5"]


def test_where_all_places_are_taken_the_origin_with_the_most_pending_connections_loses_one() -> None:
    admission = make(places=6, logins=2)
    come(admission, "a1", "a2", "a3", "a4", "b1", "b2")
    assert admission.accepted("c1", "c", 0.0) is None
    assert admission.advance(0.0) == ([], ["a4"]), "the newest of those that wait"
    assert admission.accepted("b3", "b", 0.0) is not None, "b would have as many as a then"
    assert admission.accepted("a5", "a", 0.0) is not None
    admission.opened("a1")
    admission.advance(0.0)
    assert admission.accepted("d1", "d", 0.0) is None
    assert admission.advance(0.0)[1] in (["a3"], ["b2"])


def test_open_connections_and_quick_logins_are_not_evicted() -> None:
    admission = make(places=3, logins=6)
    come(admission, "a1", "a2", "a3")
    assert admission.accepted("b1", "b", 1.0) is not None
    admission.opened("a1")
    assert admission.accepted("b1", "b", SLOW_SECONDS) is None
    admission.spoke("b1")
    assert admission.advance(SLOW_SECONDS) == (["b1"], ["a2"])
    for connection in ("a3", "b1"):
        admission.opened(connection)
    assert admission.accepted("c1", "c", 1000.0) is not None


def test_with_one_place_for_logins_origins_take_turns() -> None:
    admission = make(logins=1)
    assert come(admission, "a1", "a2", "b1") == ["a1"]
    admission.opened("a1")
    assert admission.advance(0.0)[0] == ["b1"]
    admission.closed("b1")
    assert admission.advance(0.0)[0] == ["a2"]


def test_a_silent_connection_has_no_turn_and_one_that_speaks_has_one_however_many_are_silent() -> None:
    admission = make(logins=4)
    for number in range(40):
        assert admission.accepted(f"a{number}", "a", 0.0) is None
    assert admission.advance(1000.0) == ([], [])
    assert come(admission, "a40", now=1000.0) == ["a40"]
    admission.spoke("a7")
    admission.spoke("a7")
    admission.spoke("nobody")
    assert admission.advance(1000.0) == (["a7"], [])


def test_a_newcomer_has_the_place_of_the_silent_connection_of_its_origin_that_came_first() -> None:
    admission = make(places=5, logins=2, per_origin=3)
    assert come(admission, "a1") == ["a1"]
    for silent in ("a2", "a3"):
        assert admission.accepted(silent, "a", 0.0) is None
    assert admission.accepted("a4", "a", 0.0) is None
    assert admission.advance(0.0) == ([], ["a2"])
    admission.spoke("a3")
    assert admission.accepted("a5", "a", 0.0) is None, "in the place of a4"
    admission.spoke("a5")
    assert admission.accepted("a6", "a", 0.0) == "3 connections of its address have not logged in", "all have spoken"
    assert admission.advance(0.0) == ([], ["a4"])
    admission.opened("a1")
    assert admission.advance(0.0) == (["a3"], [])


def test_where_all_places_are_taken_a_silent_connection_of_the_own_origin_makes_room() -> None:
    admission = make(places=3, logins=2)
    for silent in ("a1", "a2", "b1"):
        assert admission.accepted(silent, silent[0], 0.0) is None
    assert come(admission, "a3", now=0.0) == ["a3"]
    assert admission.accepted("b2", "b", 0.0) is None
    assert admission.advance(0.0)[1] == ["b1"]
    assert admission.accepted("c1", "c", 0.0) is None
    assert admission.advance(0.0)[1] == ["a2"], "the silent one before the one that has spoken"


def test_where_none_of_an_origin_is_silent_its_oldest_login_makes_room_if_it_is_slow() -> None:
    for places, per_origin in ((10, 3), (3, 10)):
        admission = make(places=places, logins=10, per_origin=per_origin)
        assert come(admission, "a1", "a2", now=0.0) == ["a1", "a2"]
        assert come(admission, "a3", now=1.0) == ["a3"]
        assert admission.accepted("a4", "a", SLOW_SECONDS - 0.1) is not None
        assert admission.accepted("a4", "a", SLOW_SECONDS) is None
        assert admission.advance(SLOW_SECONDS) == ([], ["a1"])


@settings(max_examples=400, deadline=None)
@given(
    places=st.integers(1, 8),
    logins=st.integers(1, 5),
    per_origin=st.integers(1, 5),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["arrive", "speak", "log in", "leave", "wait"]), st.sampled_from("abc"), st.integers(0, 30)
        ),
        max_size=60,
    ),
)
def test_no_limit_is_exceeded_and_no_connection_is_forgotten(
    places: int, logins: int, per_origin: int, steps: list[tuple[str, str, int]]
) -> None:
    admission = make(places, logins, per_origin)
    outside: dict[str, str] = {}  # connection → silent, waiting or logging in
    since: dict[str, float] = {}  # when a login began
    opened: set[str] = set()
    now = 0.0
    for number, (what, origin, pick) in enumerate(steps):
        if what == "arrive":
            refused = admission.accepted(f"{origin}{number}", origin, now)
            of_origin = {each: sum(connection[0] == each for connection in outside) for each in "abc"}
            own_makes_room = any(
                each[0] == origin
                and (state == "silent" or (state == "logging in" and now - since[each] >= SLOW_SECONDS))
                for each, state in outside.items()
            )
            if of_origin[origin] >= per_origin:
                assert (refused is None) is own_makes_room
            elif len(outside) + len(opened) < places or own_makes_room:
                assert refused is None
            elif refused is None:
                assert max(of_origin.values()) > of_origin[origin] + 1, "it has evicted another one"
            if refused is None:
                outside[f"{origin}{number}"] = "silent"
        elif what == "speak":
            silent = [connection for connection, state in outside.items() if state == "silent"]
            if silent:
                admission.spoke(silent[pick % len(silent)])
                outside[silent[pick % len(silent)]] = "waiting"
        elif what == "log in":
            able = [connection for connection, state in outside.items() if state == "logging in"]
            if able:
                connection = able[pick % len(able)]
                admission.opened(connection)
                del outside[connection]
                opened.add(connection)
        elif what == "leave" and (outside or opened):
            connection = sorted([*outside, *opened])[pick % (len(outside) + len(opened))]
            assert admission.closed(connection)
            outside.pop(connection, None)
            opened.discard(connection)
        else:
            now += 1.5
        starting, evicted = admission.advance(now)
        for connection in evicted:
            del outside[connection]
        assert len(outside) + len(opened) <= places
        for connection in starting:
            assert outside[connection] == "waiting"
            outside[connection] = "logging in"
            since[connection] = now
        logging_in = [connection for connection, state in outside.items() if state == "logging in"]
        assert len(logging_in) <= logins
        waiting = [connection for connection, state in outside.items() if state == "waiting"]
        if waiting and len(logging_in) < logins:
            most = max(1, logins // 2)
            for connection in waiting:
                assert sum(other[0] == connection[0] for other in logging_in) >= most, "there was room for it"
        assert (len(admission), admission.open_connections) == (len(outside) + len(opened), len(opened))
