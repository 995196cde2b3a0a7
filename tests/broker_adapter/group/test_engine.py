"""What a node's listener has in place of an engine: who asks to be admitted waits for a primary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.errors import ConnectionLostException, IllegalStateException, JMSException, Redirect
from broker_adapter.group import engine as group_engine
from broker_adapter.group.engine import HELD_SECONDS, GroupEngine
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, eventually
from tests.broker_adapter.group.nodes import Answered, asks_to_be_admitted

PRIMARY = ("n2", Redirect("host2", 5672))


class Clock:
    """A steady clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(group_engine.time, "monotonic", clock)
    return clock


@pytest.fixture
def engine() -> GroupEngine:
    settings = EngineSettings()
    return GroupEngine(settings, Policies(settings, ()))


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(EngineSettings(), None)
    yield broker
    broker.close()


def test_a_client_is_held_while_it_is_not_known_who_leads(engine: GroupEngine, clock: Clock) -> None:
    client = asks_to_be_admitted(engine)
    clock.now += HELD_SECONDS - 0.001
    engine.tell_held()
    assert not client.has_come


def test_a_client_that_was_held_for_the_longest_time_is_told_that_there_is_no_primary(
    engine: GroupEngine, clock: Clock
) -> None:
    first = asks_to_be_admitted(engine)
    clock.now += 1
    second = asks_to_be_admitted(engine)
    clock.now += HELD_SECONDS - 1
    engine.tell_held()
    with pytest.raises(ConnectionLostException, match="no primary now") as caught:
        first.value()
    assert caught.value.redirect is None
    assert not second.has_come


def test_clients_that_were_held_go_on_in_their_order_when_this_node_leads(engine: GroupEngine, broker: Broker) -> None:
    held = [asks_to_be_admitted(engine) for _ in range(3)]
    engine.lead(broker)
    numbers = [each.value() for each in held]
    assert numbers == sorted(set(numbers))
    assert asks_to_be_admitted(engine).value() not in numbers


def test_clients_are_redirected_once_another_node_leads_and_works(engine: GroupEngine) -> None:
    early = asks_to_be_admitted(engine)
    engine.follow(PRIMARY)
    late = asks_to_be_admitted(engine)
    engine.tell_held()
    for each in (early, late):
        with pytest.raises(ConnectionLostException, match="n2, host2:5672") as caught:
            each.value()
        assert caught.value.redirect == PRIMARY[1]


def test_clients_are_held_again_when_the_primary_is_not_heard_of(engine: GroupEngine) -> None:
    engine.follow(PRIMARY)
    engine.follow(None)
    client = asks_to_be_admitted(engine)
    engine.tell_held()
    assert not client.has_come


def test_one_client_more_than_can_be_held_is_told_at_once(
    engine: GroupEngine, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_engine, "MOST_HELD", 2)
    held = [asks_to_be_admitted(engine) for _ in range(2)]
    with pytest.raises(ConnectionLostException, match="no primary now"):
        asks_to_be_admitted(engine).value()
    engine.lead(broker)
    assert all(isinstance(each.value(), int) for each in held)


def test_what_nobody_can_carry_out_is_refused_and_what_wants_no_answer_is_dropped(engine: GroupEngine) -> None:
    answered = Answered()
    engine.submit_all([c.Disconnect(1), c.Statistics(reply=answered)])
    with pytest.raises(ConnectionLostException, match="no primary now"):
        answered.value()


def test_requests_are_refused_by_a_node_that_is_not_the_primary(engine: GroupEngine, broker: Broker) -> None:
    with pytest.raises(IllegalStateException, match="not the primary"):
        engine.request("regions", {}, WAIT)
    engine.lead(broker)
    assert engine.request("regions", {}, WAIT)["regions"] == []


def test_a_node_has_the_name_of_a_store_only_while_it_leads(engine: GroupEngine, broker: Broker) -> None:
    assert (engine.unique, engine.run) == ("", "")
    engine.lead(broker)
    assert (engine.unique, engine.run) == (broker.unique, broker.run)


def test_settings_of_queues_reach_the_engine_whenever_they_are_given(engine: GroupEngine, broker: Broker) -> None:
    before, after = Policies(engine.settings, ()), Policies(engine.settings, ())
    engine.use_policies(before)
    assert engine.policies is before
    engine.lead(broker)
    engine.use_policies(after)
    eventually(lambda: engine.policies is broker.policies is after)


def test_the_failure_of_the_engine_is_told_to_those_who_asked_before_there_was_one(
    engine: GroupEngine, broker: Broker
) -> None:
    told: list[JMSException] = []
    left: list[JMSException] = []
    engine.on_failure(told.append)
    engine.on_failure(left.append)()
    engine.lead(broker)
    broker.failed = JMSException("the disk")
    broker.tell_failure()
    broker.failed = None
    assert [str(each) for each in told] == ["the disk"]
    assert left == []
