"""The rules of reconnecting: every state times every event, and what each option does."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
import pytest

from broker_adapter.errors import (
    ConnectionLostException,
    InvalidClientIDException,
    InvalidURLException,
    JMSException,
    JMSSecurityException,
    Redirect,
)
from broker_adapter.failover.rules import (
    MAX_REDIRECTS,
    Abandoned,
    Announced,
    AttemptFailed,
    Close,
    Connected,
    Event,
    GiveUp,
    Lost,
    Reconnect,
    State,
    Try,
)
from broker_adapter.urls.url import MAX_ADDRESSES, AmqpURL, FailoverURL, parse_url

LOST = ConnectionLostException("the cable was cut")
REFUSED = JMSSecurityException("wrong password")
LATE = 1000.0  #: long after any connection became stable


def half() -> float:
    return 0.5


def machine(url: str, *, random: Callable[[], float] = half, may_refresh: bool = False) -> Reconnect:
    parsed = parse_url(url)
    assert isinstance(parsed, FailoverURL)
    return Reconnect(parsed.addresses, parsed.failover, random, may_refresh=may_refresh)


def connected(url: str, *, random: Callable[[], float] = half, may_refresh: bool = False) -> Reconnect:
    rules = machine(url, random=random, may_refresh=may_refresh)
    rules.start(0.0)
    rules.process(Connected(), 0.0)
    return rules


def ports_and_instants(rules: Reconnect, first: object, failures: int, now: float = LATE) -> list[tuple[int, float]]:
    """Which ports are tried, and how long after each failure, where all attempts fail at once."""
    found = []
    action = first
    for _ in range(failures):
        assert isinstance(action, Try)
        found.append((action.address.port, round(action.at - now, 3)))
        now = action.at
        action = rules.process(AttemptFailed(LOST), now)
    return found


THREE = "failover:(amqp://h:1,amqp://h:2,amqp://h:3)"
PLAIN = "?reconnect_jitter=0"


def in_state(state: State) -> Reconnect:
    rules = machine(f"amqp://h:1{PLAIN}&max_reconnect_attempts=1&startup_max_reconnect_attempts=1")
    rules.start(0.0)
    if state is State.CONNECTING:
        return rules
    if state is State.CLOSED:
        rules.process(Close(), 0.0)
        return rules
    rules.process(Connected(), 0.0)
    if state is State.RECONNECTING:
        rules.process(Lost(LOST), LATE)
    if state is State.FAILED:
        rules.process(Lost(LOST), LATE)
        assert isinstance(rules.process(AttemptFailed(LOST), LATE), GiveUp)
    return rules


#: (state, event) → (state after it, the kind of action); what is missing changes nothing and asks for nothing.
TABLE: dict[tuple[State, type], tuple[State, type | None]] = {
    (State.CONNECTING, Connected): (State.CONNECTED, None),
    (State.CONNECTING, AttemptFailed): (State.CONNECTING, Try),
    (State.CONNECTING, Abandoned): (State.FAILED, None),
    (State.CONNECTING, Close): (State.CLOSED, None),
    (State.CONNECTED, Lost): (State.RECONNECTING, Try),
    (State.CONNECTED, Close): (State.CLOSED, None),
    (State.RECONNECTING, Connected): (State.CONNECTED, None),
    (State.RECONNECTING, AttemptFailed): (State.FAILED, GiveUp),
    (State.RECONNECTING, Abandoned): (State.FAILED, None),
    (State.RECONNECTING, Close): (State.CLOSED, None),
}
EVENTS: list[Event] = [Connected(), AttemptFailed(LOST), Lost(LOST), Announced(()), Abandoned(), Close()]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_answers_every_event(state: State, event: Event) -> None:
    rules = in_state(state)
    assert rules.state is state
    action = rules.process(event, LATE)
    after, kind = TABLE.get((state, type(event)), (state, None))
    assert rules.state is after
    assert (None if action is None else type(action)) is kind


def test_one_address_is_tried_again_with_pauses_that_grow_to_a_limit() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&reconnect_delay_seconds=1&max_reconnect_delay_seconds=5")
    assert rules.method == "singlebroker"
    first = rules.process(Lost(LOST), LATE)
    assert ports_and_instants(rules, first, 6) == [(1, 0.0), (1, 1.0), (1, 2.0), (1, 4.0), (1, 5.0), (1, 5.0)]


def test_several_addresses_are_tried_in_turn_the_lost_one_first() -> None:
    rules = connected(f"{THREE}{PLAIN}&reconnect_delay_seconds=1")
    assert rules.method == "roundrobin"
    first = rules.process(Lost(LOST), LATE)
    assert ports_and_instants(rules, first, 7) == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 0), (3, 0), (1, 2)]


def test_the_turn_goes_on_from_the_address_that_worked() -> None:
    rules = connected(f"{THREE}{PLAIN}")
    rules.process(Lost(LOST), LATE)
    second = rules.process(AttemptFailed(LOST), LATE)
    assert isinstance(second, Try)
    assert second.address.port == 2
    rules.process(Connected(), LATE)
    again = rules.process(Lost(LOST), 2 * LATE)
    assert [port for port, _ in ports_and_instants(rules, again, 4, 2 * LATE)] == [2, 3, 1, 2]


def test_an_address_is_tried_again_as_often_as_its_retries_say_after_its_pause() -> None:
    rules = connected(f"failover:(amqp://h:1?retries=2&connect_delay_seconds=3,amqp://h:2){PLAIN}")
    first = rules.process(Lost(LOST), LATE)
    assert ports_and_instants(rules, first, 5) == [(1, 0), (1, 3), (1, 3), (2, 0), (1, 0.05)]


def test_a_single_broker_gives_up_after_its_retries() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&retries=2&connect_delay_seconds=3")
    first = rules.process(Lost(LOST), LATE)
    assert ports_and_instants(rules, first, 3) == [(1, 0), (1, 3), (1, 3)]
    assert rules.state is State.FAILED


def test_a_round_robin_gives_up_after_its_cycles() -> None:
    rules = connected(f"{THREE}{PLAIN}&cycle_count=2")
    first = rules.process(Lost(LOST), LATE)
    assert [port for port, _ in ports_and_instants(rules, first, 6)] == [1, 2, 3, 1, 2, 3]
    assert rules.state is State.FAILED


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_attempts_after_a_loss_have_a_limit(limit: int) -> None:
    rules = connected(f"{THREE}?max_reconnect_attempts={limit}")
    action = rules.process(Lost(LOST), LATE)
    attempts = 0
    while isinstance(action, Try):
        attempts += 1
        action = rules.process(AttemptFailed(LOST), LATE)
    assert isinstance(action, GiveUp)
    assert attempts == limit
    assert isinstance(action.error, ConnectionLostException)
    assert "the cable was cut" in action.error.reason
    assert (action.error is LOST) is (limit == 0)


@pytest.mark.parametrize(
    ("url", "attempts"),
    [
        ("amqp://h:1", 1),
        (THREE, 3),
        ("amqp://h:1?startup_max_reconnect_attempts=2", 3),
        (f"{THREE}?startup_max_reconnect_attempts=2", 5),
        ("amqp://h:1?retries=4", 5),
        (f"{THREE}?failover=nofailover", 3),
    ],
)
def test_a_new_connection_tries_each_address_once_and_then_as_often_as_it_is_told(url: str, attempts: int) -> None:
    rules = machine(url)
    action: object = rules.start(0.0)
    count = 0
    while isinstance(action, Try):
        count += 1
        action = rules.process(AttemptFailed(LOST), 0.0)
    assert count == attempts
    assert isinstance(action, GiveUp)
    assert (action.error is LOST) is (attempts == 1), "one attempt says what went wrong, several say how many"


def test_without_failover_a_loss_is_the_end() -> None:
    rules = connected("amqp://h:1?failover=nofailover")
    assert rules.process(Lost(LOST), LATE) == GiveUp(LOST)


def test_the_first_attempt_after_a_loss_waits_where_that_is_wanted() -> None:
    rules = connected("amqp://h:1?initial_reconnect_delay_seconds=0.7")
    action = rules.process(Lost(LOST), LATE)
    assert isinstance(action, Try)
    assert action.at == LATE + 0.7


def test_pauses_differ_by_chance_within_their_jitter() -> None:
    numbers = iter([0.0, 0.998, 0.5, 0.0])
    rules = connected(
        "amqp://h:1?reconnect_delay_seconds=1&reconnect_multiplier=1&reconnect_jitter=0.5", random=lambda: next(numbers)
    )
    first = rules.process(Lost(LOST), LATE)
    assert [pause for _, pause in ports_and_instants(rules, first, 4)] == [0.0, 1.0, 0.501, 0.75]


def test_a_pause_of_the_ten_thousandth_round_has_the_limit() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&reconnect_multiplier=100")
    action = rules.process(Lost(LOST), LATE)
    for _ in range(10_000):
        assert isinstance(action, Try)
        action = rules.process(AttemptFailed(LOST), 0.0)
    assert isinstance(action, Try)
    assert action.at == 10.0


def test_addresses_may_be_tried_in_random_order() -> None:
    numbers = iter([0.9, 0.1, 0.5])
    rules = machine(f"{THREE}?randomize=true", random=lambda: next(numbers))
    assert [each.port for each in rules.addresses] == [2, 3, 1]


# What is lost again soon.


def test_a_connection_that_is_lost_again_soon_counts_as_a_failed_attempt() -> None:
    rules = connected(f"{THREE}{PLAIN}&reconnect_delay_seconds=1&stable_seconds=2")
    rules.process(Lost(LOST), LATE)
    rules.process(Connected(), LATE)
    second = rules.process(Lost(LOST), LATE + 1.9)
    assert isinstance(second, Try)
    assert second.address.port == 2, "the next one, since the first one did not hold"
    rules.process(Connected(), LATE + 1.9)
    third = rules.process(Lost(LOST), LATE + 2)
    rules.process(Connected(), LATE + 2)
    assert isinstance(third, Try)
    fourth = rules.process(Lost(LOST), LATE + 3)
    assert isinstance(fourth, Try)
    assert (fourth.address.port, fourth.at) == (1, LATE + 4), "a round is over, and its pause is kept"


def test_the_rounds_start_again_after_a_connection_that_held() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&reconnect_delay_seconds=1&stable_seconds=2&max_reconnect_attempts=3")
    for loss in (LATE, LATE + 2, LATE + 4):
        action = rules.process(Lost(LOST), loss)
        assert action == Try(rules.address, loss)
        rules.process(Connected(), loss)


def test_restores_that_never_hold_come_to_an_end() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&max_reconnect_attempts=3")
    action = rules.process(Lost(LOST), LATE)
    attempts = 0
    while isinstance(action, Try):
        attempts += 1
        rules.process(Connected(), LATE)
        action = rules.process(Lost(LOST), LATE + 0.1)
    assert attempts == 3
    assert rules.state is State.FAILED


# Refusals.


def test_a_refused_login_asks_for_fresh_credentials_once() -> None:
    rules = connected("amqp://h:1", may_refresh=True)
    first = rules.process(Lost(LOST), LATE)
    assert isinstance(first, Try)
    assert not first.fresh_credentials
    second = rules.process(AttemptFailed(REFUSED), LATE)
    assert second == Try(rules.address, LATE, fresh_credentials=True)
    assert rules.process(AttemptFailed(REFUSED), LATE) == GiveUp(REFUSED)


def test_a_connection_that_is_closed_for_a_missing_permission_asks_for_fresh_credentials() -> None:
    rules = connected("amqp://h:1", may_refresh=True)
    assert rules.process(Lost(REFUSED), LATE) == Try(rules.address, LATE, fresh_credentials=True)
    rules.process(Connected(), LATE)
    assert rules.process(Lost(REFUSED), LATE + 1) == GiveUp(REFUSED), "again at once: the fresh ones are no better"


def test_credentials_may_be_asked_for_again_after_they_held() -> None:
    rules = connected("amqp://h:1", may_refresh=True)
    for loss in (LATE, 2 * LATE, 3 * LATE):
        action = rules.process(Lost(REFUSED), loss)
        assert isinstance(action, Try)
        assert action.fresh_credentials
        rules.process(Connected(), loss)


def test_a_refused_login_is_the_end_where_credentials_cannot_be_refreshed() -> None:
    rules = connected(THREE)
    rules.process(Lost(LOST), LATE)
    assert rules.process(AttemptFailed(REFUSED), LATE) == GiveUp(REFUSED)


@pytest.mark.parametrize("error", [InvalidClientIDException("in use"), InvalidURLException("no such file")])
def test_some_errors_end_the_first_attempts_at_once(error: JMSException) -> None:
    rules = machine(THREE)
    rules.start(0.0)
    assert rules.process(AttemptFailed(error), 0.0) == GiveUp(error)


def test_a_client_id_that_is_in_use_is_tried_again_after_a_loss() -> None:
    rules = connected("amqp://h:1")
    rules.process(Lost(LOST), LATE)
    action = rules.process(AttemptFailed(InvalidClientIDException("in use")), LATE)
    assert isinstance(action, Try), "the broker may still think that the old connection lives"


IN_USE = InvalidClientIDException("in use")


@pytest.mark.parametrize(
    ("idle_seconds", "url", "until"),
    [
        (2.0, "amqp://h:1?idle_timeout_seconds=600", 5.0),
        (0.0, "amqp://h:1?idle_timeout_seconds=4", 10.0),
        (0.0, "amqp://h:1?idle_timeout_seconds=0", 75.0),
    ],
)
def test_a_client_id_that_is_in_use_for_longer_than_a_loss_is_unnoticed_is_somebody_elses(
    idle_seconds: float, url: str, until: float
) -> None:
    rules = machine(f"{url}&reconnect_delay_seconds=1&max_reconnect_delay_seconds=8&reconnect_jitter=0")
    rules.start(0.0)
    rules.process(Connected(idle_seconds), 0.0)
    action, instants = rules.process(Lost(LOST), LATE), []
    while isinstance(action, Try):
        instants.append(action.at - LATE)
        action = rules.process(AttemptFailed(IN_USE), action.at)
    assert action == GiveUp(IN_USE)
    first = instants[0]  # from which on it is refused
    assert instants[-1] == first + until
    assert all(instant < first + until for instant in instants[:-1])
    assert rules.state is State.FAILED


def test_a_client_id_that_is_in_use_again_after_another_failure_may_be_our_own() -> None:
    rules = connected("amqp://h:1?reconnect_delay_seconds=1000")
    rules.process(Lost(LOST), LATE)
    rules.process(AttemptFailed(IN_USE), LATE)
    rules.process(AttemptFailed(LOST), LATE + 1000)  # the broker may have got a connection that is lost since
    assert isinstance(rules.process(AttemptFailed(IN_USE), LATE + 1001), Try)
    rules.process(Connected(), LATE + 1002)
    rules.process(Lost(LOST), LATE + 3000)
    assert isinstance(rules.process(AttemptFailed(IN_USE), LATE + 3001), Try)
    assert rules.process(AttemptFailed(IN_USE), LATE + 4000) == GiveUp(IN_USE)


def test_how_long_a_client_id_is_in_use_is_counted_for_each_address() -> None:
    rules = connected("failover:(amqp://h:1,amqp://h:2)?reconnect_delay_seconds=10&max_reconnect_delay_seconds=10")
    first, now = rules.address, LATE
    rules.process(Lost(LOST), now)
    while rules.address == first:
        assert isinstance(rules.process(AttemptFailed(IN_USE), now), Try)
        now += 1
    assert isinstance(rules.process(AttemptFailed(IN_USE), LATE + 200), Try), "it is refused here for the first time"


def test_a_client_id_that_is_in_use_at_one_of_several_addresses_ends_the_attempts_as_well() -> None:
    rules = connected(f"{THREE}{PLAIN}")
    action, now = rules.process(Lost(LOST), LATE), LATE
    while isinstance(action, Try) and now < LATE + 1000:
        now = max(now + 1, action.at)
        error = IN_USE if action.address.port == 1 else LOST
        action = rules.process(AttemptFailed(error), now)
    assert action == GiveUp(IN_USE)


# Redirects and lists.


def redirect(host: str = "other", port: int = 7, scheme: str | None = None) -> ConnectionLostException:
    return ConnectionLostException("go there", redirect=Redirect(host, port, "vhost", scheme))


def test_a_redirect_is_followed_at_once() -> None:
    rules = machine("amqp://h:1")
    rules.start(0.0)
    action = rules.process(AttemptFailed(redirect()), 5.0)
    assert isinstance(action, Try)
    assert (str(action.address), action.address.amqp.vhost, action.at) == ("amqp://other:7", "vhost", 5.0)
    rules.process(Connected(), 5.0)
    moved = rules.process(Lost(redirect("third", 8)), LATE)
    assert isinstance(moved, Try)
    assert str(moved.address) == "amqp://third:8"


OWN = "failover:(amqp://u1:p1@h:1,amqps://u2:p2@h:2?vhost=v)?failover=failover_exchange"


def test_a_redirect_to_an_address_of_the_url_has_its_own_user_and_options() -> None:
    rules = machine(OWN)
    rules.start(0.0)
    action = rules.process(AttemptFailed(redirect("h", 2, "amqp")), 0.0)
    assert isinstance(action, Try)
    assert (action.address.username, action.address.tls, action.address.amqp.vhost) == ("u2", True, "v")


def test_an_announced_address_of_the_url_has_its_own_user_and_options() -> None:
    rules = connected(OWN)
    here = rules.address
    rules.process(Announced([attrs.evolve(here, port=2), attrs.evolve(here, host="other")]), 0.0)
    assert [(each.host, each.port, each.username) for each in rules.addresses] == [
        ("h", 1, "u1"),
        ("h", 2, "u2"),
        ("other", 1, "u1"),
    ]


def test_after_a_redirect_that_fails_the_other_addresses_have_their_turn() -> None:
    rules = connected(f"failover:(amqp://h:1,amqp://h:2){PLAIN}")
    rules.process(Lost(LOST), LATE)
    rules.process(AttemptFailed(redirect()), LATE)
    assert [port for port, _ in ports_and_instants(rules, rules.process(AttemptFailed(LOST), LATE), 3)] == [2, 1, 2]


def test_redirects_in_a_circle_come_to_an_end() -> None:
    rules = machine("amqp://h:1")
    action: object = rules.start(0.0)
    followed = 0
    while isinstance(action, Try):
        action = rules.process(AttemptFailed(redirect()), 0.0)
        followed += isinstance(action, Try)
    assert followed == MAX_REDIRECTS
    assert isinstance(action, GiveUp)


def rounds_of(rules: Reconnect, losses: int, led_to: list[Event]) -> list[float]:
    """The pauses before the URL's only address where each connection is redirected after 0.4 s, and that fails so."""
    pauses = []
    now = LATE
    rules.process(Connected(), now)
    for _ in range(losses):
        now += 0.4
        action = rules.process(Lost(redirect()), now)
        assert isinstance(action, Try)
        assert (action.address.host, action.at) == ("other", now)
        for event in led_to:
            action = rules.process(event, now)
        assert isinstance(action, Try)
        assert action.address.host == "h"
        pauses.append(round(action.at - now, 3))
        now = action.at
        rules.process(Connected(), now)
    return pauses


@pytest.mark.parametrize(
    "led_to",
    [[AttemptFailed(LOST)], [Connected(), Lost(LOST)], [AttemptFailed(redirect("third", 8)), AttemptFailed(LOST)]],
    ids=["no server", "a broker that ends it at once", "a second redirect to no server"],
)
def test_a_redirect_that_leads_nowhere_counts_as_a_failed_attempt(led_to: list[Event]) -> None:
    rules = machine(f"amqp://h:1{PLAIN}&reconnect_delay_seconds=1&stable_seconds=2")
    rules.start(LATE)
    assert rounds_of(rules, 4, led_to) == [1, 2, 4, 8]


def test_redirects_to_nowhere_while_a_connection_is_made_have_pauses_that_grow() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&reconnect_delay_seconds=1&max_reconnect_delay_seconds=1000000")
    action = rules.process(Lost(LOST), LATE)
    now = LATE
    for number in range(MAX_REDIRECTS + 2):
        assert isinstance(action, Try)
        assert (action.address.host, action.at) == ("h", now)
        followed = rules.process(AttemptFailed(redirect()), now)
        assert isinstance(followed, Try)
        assert followed.address.host == "other", "it may be there by now, however often it was not"
        action = rules.process(AttemptFailed(LOST), now)
        now += 2**number


def test_redirects_from_one_connection_to_the_next_have_a_pause_when_they_are_too_many() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&reconnect_delay_seconds=1")
    pauses = []
    for _ in range(2 * (MAX_REDIRECTS + 1)):
        action = rules.process(Lost(redirect()), 0.1)
        assert isinstance(action, Try)
        pauses.append(round(action.at - 0.1, 3))
        rules.process(Connected(), 0.1)
    assert pauses == [0.0] * MAX_REDIRECTS + [1.0] + [0.0] * MAX_REDIRECTS + [2.0]


@pytest.mark.parametrize("options", ["", "&retries=0"])
def test_an_address_that_held_is_tried_again_at_once_where_its_redirect_leads_nowhere(options: str) -> None:
    rules = connected(f"amqp://h:1{PLAIN}{options}")
    rules.process(Lost(redirect()), LATE)
    assert rules.process(AttemptFailed(LOST), LATE) == Try(rules.address, LATE)
    assert rules.address.host == "h"


def test_a_new_connection_tries_its_other_addresses_where_a_redirect_leads_nowhere() -> None:
    rules = machine(f"failover:(amqp://h:1,amqp://h:2){PLAIN}")
    rules.start(0.0)
    rules.process(AttemptFailed(redirect()), 0.0)
    assert ports_and_instants(rules, rules.process(AttemptFailed(LOST), 0.0), 1, 0.0) == [(2, 0.0)]
    assert rules.state is State.FAILED


def test_what_became_of_a_redirect_is_told() -> None:
    rules = connected(f"amqp://h:1{PLAIN}&max_reconnect_attempts=4")
    first = rules.process(Lost(redirect()), 0.1)
    assert isinstance(first, Try)
    assert str(first.error) == "go there"
    assert rules.redirect_failure is None
    failed = rules.process(AttemptFailed(LOST), 0.1)
    assert isinstance(failed, Try)
    assert str(failed.error) == rules.redirect_failure == "the redirect to amqp://other:7 failed: the cable was cut"
    rules.process(Connected(), 0.1)
    again = rules.process(Lost(redirect()), 0.5)
    assert isinstance(again, Try)
    assert isinstance(again.error, ConnectionLostException)
    assert str(again.error) == "go there; the last redirect to amqp://other:7 failed: the cable was cut"
    assert again.error.redirect is not None
    over = rules.process(AttemptFailed(LOST), 0.5)
    assert isinstance(over, GiveUp)
    assert str(over.error) == "no connection after 4 attempts; the last one, at amqp://other:7: the cable was cut"


def test_a_redirect_that_held_is_no_failure_any_more() -> None:
    rules = connected(f"amqp://h:1{PLAIN}")
    rules.process(Lost(redirect()), LATE)
    rules.process(AttemptFailed(LOST), LATE)
    rules.process(AttemptFailed(redirect()), LATE)
    rules.process(Connected(), LATE)
    assert rules.redirect_failure is not None
    rules.process(Lost(LOST), 2 * LATE)
    assert rules.redirect_failure is None


@pytest.mark.parametrize("first", [True, False], ids=["while it connects", "later"])
def test_why_a_redirect_from_tls_to_plain_is_not_followed_is_told(first: bool) -> None:
    rules = machine("amqps://h:1") if first else connected("amqps://h:1")
    rules.start(0.0)
    event: Event = AttemptFailed(redirect(scheme="amqp")) if first else Lost(redirect(scheme="amqp"))
    action = rules.process(event, LATE)
    assert isinstance(action, GiveUp if first else Try)
    assert re.fullmatch(
        "go there; the redirect to amqp://other:7 is not followed: .* without TLS; .*allow_insecure_redirects=true.*",
        str(action.error),
    )


def test_why_the_last_of_too_many_redirects_is_not_followed_is_told() -> None:
    rules = machine("amqp://h:1")
    action: object = rules.start(0.0)
    while isinstance(action, Try):
        action = rules.process(AttemptFailed(redirect()), 0.0)
    assert isinstance(action, GiveUp)
    assert action.error.reason.endswith(f"is not followed: {MAX_REDIRECTS} redirects in a row are the limit")


def test_the_last_error_names_the_address_where_it_happened() -> None:
    rules = connected(f"failover:(amqp://h:1,amqp://h:2){PLAIN}&cycle_count=1")
    rules.process(Lost(LOST), LATE)
    rules.process(AttemptFailed(LOST), LATE)
    action = rules.process(AttemptFailed(LOST), LATE)
    assert isinstance(action, GiveUp)
    assert "the last one, at amqp://h:2: the cable was cut" in action.error.reason


@pytest.mark.parametrize(
    ("url", "scheme", "followed"),
    [
        ("amqps://h:1", "amqp", False),
        ("amqps://h:1?allow_insecure_redirects=true", "amqp", True),
        ("amqps://h:1", None, True),
        ("amqps://h:1", "amqps", True),
        ("amqp://h:1", "amqps", True),
        ("amqp://h:1", None, True),
    ],
)
def test_a_redirect_from_tls_to_plain_is_not_followed_unless_allowed(
    url: str, scheme: str | None, followed: bool
) -> None:
    rules = machine(url)
    rules.start(0.0)
    action = rules.process(AttemptFailed(redirect(scheme=scheme)), 0.0)
    assert isinstance(action, Try if followed else GiveUp)
    if isinstance(action, Try):
        assert action.address.tls is (scheme == "amqps" or (scheme is None and url.startswith("amqps")))


def test_a_redirect_is_seen_from_the_address_that_redirects() -> None:
    rules = connected("amqp://h:1")
    rules.process(Lost(redirect(scheme="amqps")), LATE)
    rules.process(Connected(), LATE)
    further = rules.process(Lost(redirect("third", 8)), 2 * LATE)
    assert isinstance(further, Try)
    assert str(further.address) == "amqps://third:8"
    rules.process(Connected(), 2 * LATE)
    plain = rules.process(Lost(redirect("third", 8, "amqp")), 3 * LATE)
    assert plain == Try(machine("amqp://h:1").address, 3 * LATE), "not from TLS to plain, but back to its own address"


def addresses(*ports: int) -> tuple[AmqpURL, ...]:
    parsed = parse_url(f"failover:({','.join(f'amqp://h:{port}' for port in ports)})")
    assert isinstance(parsed, FailoverURL)
    return parsed.addresses


@pytest.mark.parametrize(
    ("options", "ports"),
    [
        ("?failover=failover_exchange", [1, 8, 9]),
        ("?failover=failover_exchange&failover_server_list=add", [1, 2, 8, 9]),
        ("?failover=roundrobin", [1, 2]),
    ],
)
def test_the_list_follows_what_the_broker_announces_where_that_is_wanted(options: str, ports: list[int]) -> None:
    rules = connected(f"failover:(amqp://h:1,amqp://h:2){options}")
    rules.process(Announced(addresses(8, 9)), 0.0)
    assert [each.port for each in rules.addresses] == ports
    lost = rules.process(Lost(LOST), LATE)
    assert isinstance(lost, Try)
    assert lost.address.port == 1, "the one in use comes first"


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("amqp://h:1", [1, 8, 9]),
        ("failover:(amqp://h:1,amqp://h:2)", [1, 2, 8, 9]),
        ("amqp://h:1?failover=nofailover", [1]),
    ],
)
def test_the_nodes_of_a_group_are_added_to_the_addresses_of_the_url(url: str, ports: list[int]) -> None:
    rules = connected(url)
    rules.process(Announced(addresses(1, 8, 9), is_group=True), 0.0)
    assert [each.port for each in rules.addresses] == ports


def test_an_announced_list_has_only_so_many_addresses() -> None:
    rules = connected("amqp://h:1?failover=failover_exchange")
    rules.process(Announced(tuple(each for port in range(2, 150) for each in addresses(port))), 0.0)
    assert len(rules.addresses) == MAX_ADDRESSES
