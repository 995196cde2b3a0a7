"""How deliveries end."""

from __future__ import annotations

from itertools import permutations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from tests.broker_adapter.engine.decisions import DURABLE, Q, Rules


def test_settling_twice_and_settling_what_is_unknown_is_ignored() -> None:
    rules = Rules()
    client = rules.connect()
    consumer = rules.attach(client, Q, 10)
    rules.send(client, Q, b"x")
    rules.do(c.Settle(consumer, [1, 1, 7], Outcome.ACCEPTED))
    rules.do(c.Settle(99, [1], Outcome.ACCEPTED))
    assert rules.do(c.Statistics()).settled == 1


def test_a_closed_consumer_whose_last_message_is_damaged_is_forgotten() -> None:
    rules = Rules()
    client = rules.connect("me")
    news = topic("news")
    consumer = rules.attach(client, news, 1, subscription=DURABLE)
    rules.send(client, news, b"x")
    rules.do(c.Detach(consumer))
    rules.do(c.Quarantined(consumer, 1, False))
    rules.do(c.Unsubscribe(client, DURABLE.name))


class Networks:
    """Clients whose networks fail; each takes all that a queue has."""

    def __init__(self, messages: int = 3, **settings: object) -> None:
        self.rules = Rules(**settings)
        self.bodies = [b"%d" % number for number in range(messages)]
        self.rules.send(self.rules.connect(), Q, *self.bodies)
        self.queue = self.rules.state.directory.by_destination[Q]
        self.clients: dict[str, tuple[int, int]] = {}

    def take(self, token: str, credit: int = 10) -> int:
        client: int = self.rules.do(c.Connect(None, token=token))
        consumer = self.rules.attach(client, Q, credit)
        self.clients[token] = client, consumer
        return consumer

    def lose(self, token: str) -> None:
        self.rules.do(c.Disconnect(self.clients.pop(token)[0]))

    def back(self, token: str, seen: tuple[int, ...] = ()) -> int:
        """A client says what it has seen of its lost connection; returns how many deliveries are uncounted."""
        self.rules.do(c.Seen(token, self.queue.id, seen))
        uncounted, _ = self.rules.do(c.UncountRest(token, 100))
        assert isinstance(uncounted, int)
        return uncounted

    def uncount(self, token: str | None, *positions: tuple[int, int | None]) -> int:
        uncounted = self.rules.do(c.Uncount(self.queue.id, positions, token))
        assert isinstance(uncounted, int)
        return uncounted

    def ended_elsewhere(self, token: str, *positions: int) -> list[int]:
        return self.rules.state.deliveries.ended_elsewhere(token, self.queue.id, dict.fromkeys(positions, 0))

    def counts(self) -> list[int]:
        """How often each message has failed, as the next one to get them is told."""
        for token in list(self.clients):
            self.rules.do(c.Disconnect(self.clients.pop(token)[0], failed=False))
        return self.stored_counts()

    def stored_counts(self) -> list[int]:
        consumer = self.take("counting", 100)
        found = [count for _, count in self.rules.delivered.get(consumer, [])]
        self.rules.do(c.Disconnect(self.clients.pop("counting")[0], failed=False))
        return found

    @property
    def dead(self) -> int:
        return self.rules.depth("DLQ")


def test_what_others_have_in_hand_by_now_is_uncounted_there() -> None:
    networks = Networks()
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    assert [count for _, count in networks.rules.delivered[consumer]] == [1, 1, 1]
    assert networks.back("a", seen=(2,)) == 2
    assert networks.counts() == [0, 1, 0]


def test_brief_losses_of_two_clients_in_turn_make_no_dead_letters_of_what_nobody_saw() -> None:
    networks = Networks(max_deliveries=3)
    networks.take("a")
    for loss in range(20):
        lost, other = ("a", "b") if loss % 2 == 0 else ("b", "a")
        networks.lose(lost)
        networks.take(other)
        positions = [(position, None) for position in (1, 2, 3)]
        assert networks.uncount(lost, *positions[:2]) == 2, "those that it had prefetched"
        assert networks.back(lost) == 1, "the one that was on its way"
    assert networks.dead == 0
    assert networks.counts() == [0, 0, 0]


@pytest.mark.parametrize("order", list(permutations(("a", "b", "c"))), ids="".join)
@pytest.mark.parametrize("last", ["in hand", "waits"])
@pytest.mark.parametrize("seen", ["", "a", "b", "c", "ac"])
def test_losses_that_cross_are_taken_back_each_by_itself(order: tuple[str, ...], last: str, seen: str) -> None:
    networks = Networks()
    for token in "abc":
        networks.take(token)
        networks.lose(token)
    if last == "in hand":
        networks.take("d")
    for token in order:
        if token in seen:
            assert networks.back(token, seen=(1, 2, 3)) == 0
        else:
            assert networks.uncount(token, (1, 0)) == 1
            assert networks.uncount(token, (1, 0)) == 0, "it was taken back"
            assert networks.back(token) == 2
        assert networks.back(token) == 0
    assert networks.counts() == [len(seen)] * 3


@pytest.mark.parametrize("how", ["settled", "committed"])
@pytest.mark.parametrize("who", ["a", "b"])
def test_a_client_that_processes_what_it_had_lost_before_is_not_told_that_others_did(who: str, how: str) -> None:
    networks = Networks()
    networks.take("a")
    networks.lose("a")  # what it had seen is never told
    consumer = networks.take(who)
    if how == "settled":
        networks.rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    else:
        networks.rules.do(c.Commit(networks.clients[who][0], None, [], [(consumer, 1, Outcome.ACCEPTED)]))
    networks.lose(who)
    assert networks.ended_elsewhere("a", 1, 2) == ([] if who == "a" else [1])


def test_what_is_seen_as_a_whole_counts_and_is_no_longer_asked_for() -> None:
    networks = Networks()
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    networks.rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    for token in ("a", "unknown"):
        networks.rules.do(c.SeenRest(token))
    assert networks.ended_elsewhere("a", 1) == []
    assert networks.back("a") == 0
    assert networks.counts() == [1, 1]


def test_what_another_loses_or_gives_back_after_it_was_uncounted_has_its_count_from_there() -> None:
    networks = Networks()
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    networks.back("a")
    networks.rules.do(c.Settle(consumer, [1], Outcome.RELEASED))
    networks.rules.do(c.Settle(consumer, [2], Outcome.MODIFIED))
    networks.lose("b")
    assert networks.counts() == [1, 2, 1], "all were lost with the second client, and it had given one back before"
    assert networks.back("b", seen=(3,)) == 2
    assert networks.counts() == [0, 1, 1]


def test_a_failure_in_the_hands_of_another_makes_no_dead_letter_by_a_loss_that_was_taken_back() -> None:
    networks = Networks(1, max_deliveries=2)
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    networks.back("a")
    networks.rules.do(c.Settle(consumer, [1], Outcome.MODIFIED))
    assert networks.dead == 0
    networks.rules.do(c.Settle(consumer, [2], Outcome.MODIFIED))
    assert networks.dead == 1


def test_what_is_delayed_after_its_listener_raised_is_uncounted_and_stays_delayed() -> None:
    networks = Networks(1, redelivery_delay_seconds=60, max_redelivery_delay_seconds=60)
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    for number in (1, 2):
        networks.rules.do(c.Settle(consumer, [number], Outcome.FAILED))
    assert networks.back("a") == 1
    assert networks.stored_counts() == [], "it rests"
    networks.rules.pass_time(60_000)
    assert networks.rules.delivered[consumer][-1] == (3, 2)


def test_a_connection_of_which_nothing_is_known_has_its_last_delivery_taken_back_by_its_count() -> None:
    networks = Networks()
    networks.take("a")
    networks.rules.state.deliveries.losses.note = lambda *_: None  # type: ignore[method-assign]
    networks.lose("a")
    assert networks.uncount("a", (1, 1), (2, 0)) == 1
    networks.take("b")
    assert networks.uncount("a", (3, 0)) == 1, "also from the hands of another"
    assert networks.counts() == [1, 0, 0]


def test_what_was_moved_on_or_deleted_meanwhile_is_uncounted_nowhere() -> None:
    networks = Networks()
    networks.take("a")
    networks.lose("a")
    consumer = networks.take("b")
    networks.rules.do(c.Settle(consumer, [1], Outcome.ACCEPTED))
    networks.rules.do(c.Settle(consumer, [2], Outcome.REJECTED))
    assert networks.back("a") == 1
    networks.rules.do(c.Delete(Q, force=True))
    networks.rules.send(networks.rules.connect(), queue("q"), b"other")
    assert networks.back("b") == 0
