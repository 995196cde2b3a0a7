"""Staged transactions of one batch, by the rules and over a real store: kept together, superseded together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.broker_state import BrokerState
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.effects import Effects
from broker_adapter.engine.records.layout import CatalogRecord, decode_catalog, encode_catalog, queue_key
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.envelope import Envelope, pack
from broker_adapter.errors import (
    LIMIT_REACHED,
    IllegalStateException,
    JMSException,
    MessageFormatException,
    ResourceAllocationException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, depth, message

HOUR = 3_600_000
START = 1_000_000_000


class Rules:
    """The state of an engine with a durable store, and what the catalog has on disk."""

    def __init__(self, **settings: Any) -> None:
        self.settings = EngineSettings(**settings)
        self.state = BrokerState(self.settings, durable=True, secret=b"s")
        self.catalog: dict[bytes, CatalogRecord] = {}
        self.catalog_writes = 0

    def do(self, command: Any, now_ms: int = START) -> Any:
        replies: list[Any] = []
        effects = self.state.decide([command._replace(reply=replies.append)], now_ms)
        for key, value in effects.durable.tables.get("catalog", {}).items():
            self.catalog_writes += 1
            if value is None:
                del self.catalog[key]
            else:
                self.catalog[key] = decode_catalog(key, value)
        for reply, result in effects.replies:
            reply(result)
        if isinstance(replies[0], JMSException):
            raise replies[0]
        return replies[0]

    def stage(self, name: str, first: int, count: int = 1, now_ms: int = START) -> Any:
        return self.do(c.Stage(name, queue("target"), first, [message("x")] * count), now_ms)

    def restart(self) -> None:
        """As a start does it: from the catalog alone, without counters."""
        age_ms = self.state.time.age_ms
        self.state = BrokerState(self.settings, durable=True, secret=b"s")
        queues = [(int.from_bytes(key, "big"), record, None, []) for key, record in self.catalog.items()]
        self.state.time.begin(age_ms, age_ms)
        self.state.restore(queues, [], 1)


def test_a_transaction_that_is_added_to_does_not_time_out_from_its_first_row() -> None:
    rules = Rules()
    for minute in range(0, 300, 5):
        rules.stage("g/1/t", minute // 5, now_ms=START + minute * 60_000)
        assert rules.state.staged_batches.staging.overdue(START + minute * 60_000) == []
    assert rules.state.staged_batches.staging.overdue(START + 294 * 60_000 + HOUR) == []
    assert rules.state.staged_batches.staging.overdue(START + 295 * 60_000 + HOUR) == ["g/1/t"]


def test_the_first_task_of_a_long_job_waits_for_the_last_one() -> None:
    rules = Rules()
    rules.stage("g/1/first", 0)
    for hour in range(5):
        rules.stage("g/1/last", hour, now_ms=START + hour * HOUR)
    assert rules.state.staged_batches.staging.overdue(START + 4 * HOUR) == []
    assert rules.do(c.Publish("g", 1, ["g/1/first", "g/1/last"], [1, 5]), START + 4 * HOUR) is True


def test_the_first_task_waits_for_one_that_computes_for_hours_before_its_first_row() -> None:
    rules = Rules(staged_timeout_seconds=3600)
    rules.stage("g/1/first", 0)
    for minute in range(300):
        now_ms = START + minute * 60_000
        assert rules.do(c.Renew("g", 1), now_ms) == 3600
        assert rules.state.staged_batches.overdue(now_ms) == []
        if minute == 150:
            assert rules.catalog_writes < 40
            rules.restart()
    assert rules.state.staged_batches.overdue(START + 298 * 60_000 + HOUR) == []
    assert rules.state.staged_batches.overdue(START + 299 * 60_000 + HOUR) == ["g/1/first"]


def test_a_renewal_makes_nothing_and_brings_nothing_back() -> None:
    rules = Rules()
    assert rules.do(c.Renew("g", 1)) == 3600
    rules.stage("g/1/t", 0)
    rules.do(c.Discard(["g/1/t"]))
    assert rules.do(c.Renew("g", 1), START + HOUR) == 3600
    rules.stage("g/2/t", 0)
    rules.do(c.Publish("g", 2, ["g/2/t"]))
    assert rules.do(c.Renew("g", 2), START + HOUR) == 3600
    staging = rules.state.staged_batches.staging
    assert (staging.overdue(START + 5 * HOUR), len(staging)) == ([], 0)


def test_a_publication_that_finds_no_room_is_refused_and_may_be_made_again() -> None:
    rules = Rules(staged_timeout_seconds=1, max_queue_messages=2)
    rules.stage("g/1/t", 0, 2)
    rules.do(c.Publish("g", 1, ["g/1/t"]))
    rules.stage("g/2/t", 0, 2)
    publication = c.Publish("g", 2, ["g/2/t"], [2])
    with pytest.raises(ResourceAllocationException, match="a publication does not wait for room") as raised:
        rules.do(publication, START + 900)
    assert raised.value.error_code == LIMIT_REACHED
    assert "max_queue_messages" in str(raised.value)
    assert rules.state.staged_batches.overdue(START + 1500) == [], "it is kept for its time-out after the last try"
    assert rules.state.staged_batches.overdue(START + 1900) == ["g/2/t"]
    assert (rules.state.waiting(), rules.state.totals.refused) == ([], 1)


def test_the_last_use_survives_a_restart_and_is_written_seldom() -> None:
    rules = Rules()
    for second in range(2 * 3600):
        rules.stage("g/1/t", second, now_ms=START + second * 1000)
    assert rules.catalog_writes <= 1 + 20
    rules.restart()
    assert rules.state.staged_batches.staging.overdue(START + 2 * HOUR + HOUR * 9 // 10 - 7 * 60_000) == []
    assert rules.state.staged_batches.staging.overdue(START + 3 * HOUR) == ["g/1/t"]


def test_a_published_transaction_is_not_dropped_for_its_age_after_a_restart() -> None:
    rules = Rules()
    rules.stage("g/1/t", 0)
    assert rules.do(c.Publish("g", 1, ["g/1/t"]))
    rules.restart()
    assert rules.state.staged_batches.staging.overdue(START + 9 * HOUR) == []


def test_what_failed_attempts_staged_goes_when_their_batch_is_published() -> None:
    rules = Rules()
    for name in ("g/1/0.0.a", "g/1/0.1.b", "g/1/1.0.c", "h/1/0.0.d"):
        rules.stage(name, 0)
    assert rules.do(c.Publish("g", 1, ["g/1/0.1.b", "g/1/1.0.c"])) is True
    assert [name for name, each in rules.state.directory.staged.items() if not each.record.publishing] == ["h/1/0.0.d"]


@pytest.mark.parametrize("number", [0, 1])
def test_nothing_is_staged_for_a_number_that_was_published(number: int) -> None:
    rules = Rules()
    for name in ("a", "slow"):
        assert rules.stage(f"g/{number}/{name}", 0) is True
    assert rules.do(c.Publish("g", number, [f"g/{number}/a"])) is True
    assert rules.stage(f"g/{number}/slow", 1) is False
    assert rules.stage(f"g/{number}/late", 0, 3) is False
    assert rules.stage("g/late", 0) is True  # its owner is unknown
    assert [name for name, each in rules.state.directory.staged.items() if not each.record.publishing] == ["g/late"]
    assert rules.do(c.Statistics()).duplicates_rejected == 4


def test_a_number_is_closed_by_publishing_nothing() -> None:
    rules = Rules()
    rules.stage("g/0/a", 0)
    assert rules.do(c.Publish("g", 0, [])) is True
    assert rules.stage("g/0/b", 0) is False
    assert not rules.state.directory.staged


def test_what_was_staged_without_a_number_in_its_name_is_dropped_when_that_was_published() -> None:
    rules = Rules()
    assert rules.do(c.Publish("g", 1, [])) is True
    rules.stage("t", 0, 3)
    assert rules.do(c.Publish("g", 1, ["t"])) is False
    assert rules.do(c.Statistics()).duplicates_rejected == 3
    assert not rules.state.directory.staged


def test_a_newer_batch_drops_what_an_older_one_of_its_group_left() -> None:
    rules = Rules()
    for name in ("g/1/a", "g/2/a", "h/1/a"):
        rules.stage(name, 0)
    assert list(rules.state.directory.staged) == ["g/2/a", "h/1/a"]
    with pytest.raises(IllegalStateException, match=r"'g/1/a' has 0 messages .*superseded"):
        rules.stage("g/1/a", 1)


def test_a_publication_that_misses_messages_publishes_nothing() -> None:
    rules = Rules()
    rules.stage("g/1/a", 0, 2)
    with pytest.raises(IllegalStateException, match=r"'g/1/a' has 2 messages, not 3: .*restored"):
        rules.do(c.Publish("g", 1, ["g/1/a"], [3]))
    assert rules.do(c.Publish("g", 1, ["g/1/a"], [2])) is True


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    broker = Broker(EngineSettings(expiry_queue="expired"), str(tmp_path))
    yield broker
    broker.close()


def ask(broker: Broker, operation: str, **arguments: Any) -> Any:
    return broker.request(operation, arguments, WAIT)


def stage(broker: Broker, name: str, **fields: Any) -> None:
    payload = pack(Envelope(queue("target"), body="x", **fields))
    ask(broker, "stage", transaction=name, queue="target", first=0, messages=[payload])


def test_the_last_published_number_of_a_group_can_be_asked_for(broker: Broker) -> None:
    assert ask(broker, "published", group="g") is None
    for number in (0, 7):
        stage(broker, f"g/{number}/a")
        ask(broker, "publish", group="g", number=number, transactions=[f"g/{number}/a"], counts=[1])
        assert ask(broker, "published", group="g") == number
    assert ask(broker, "published", group="other") is None


def test_transactions_are_discarded_by_the_beginning_of_their_names(broker: Broker) -> None:
    for name in ("g/1/0.0.a", "g/1/0.1.b", "g/1/10.0.c", "h"):
        stage(broker, name)
    assert ask(broker, "discard", prefixes=["g/1/0.0.", "unknown"]) == 1
    assert list(broker._state.directory.staged) == ["g/1/0.1.b", "g/1/10.0.c", "h"]
    assert ask(broker, "discard", transactions=["h"], prefixes=["g/1/"]) == 3
    assert ask(broker, "discard", prefixes=[]) == 0
    assert not broker._state.directory.staged


def test_counts_that_fit_no_transactions_are_refused(broker: Broker) -> None:
    for counts in ([1], ["1", 2], [True, 1]):
        with pytest.raises(MessageFormatException, match="'counts'"):
            ask(broker, "publish", group="g", number=1, transactions=["a", "b"], counts=counts)


def test_what_is_staged_expires_where_it_is_published_and_only_there(broker: Broker) -> None:
    for name in ("g/1/failed", "g/1/counts"):
        stage(broker, name, expires_at_ms=1)
    broker.call(c.Statistics(), WAIT)
    assert depth(broker, "expired") == 0
    assert ask(broker, "publish", group="g", number=1, transactions=["g/1/counts"], counts=[1]) is True
    while depth(broker, "target"):
        broker.call(c.Statistics(), WAIT)
    assert depth(broker, "expired") == 1


def test_a_restart_gives_clients_that_stage_time_to_reconnect(tmp_path: Path) -> None:
    settings = EngineSettings(staged_timeout_seconds=40)
    broker = Broker(settings, str(tmp_path))
    stage(broker, "g/1/a")
    broker.close()
    store = LmdbStore(tmp_path, settings)
    ((number, record, _, _),) = [each for each in store.queues() if each.record.kind == "staged"]
    batch = Effects().durable
    batch.put("catalog", queue_key(number), encode_catalog(queue_key(number), record._replace(created_ms=1)))
    store.commit(batch)
    store.close()
    broker = Broker(settings, str(tmp_path))
    try:
        for _ in range(3):
            broker.call(c.Statistics(), WAIT)
        assert ask(broker, "publish", group="g", number=1, transactions=["g/1/a"], counts=[1]) is True
    finally:
        broker.close()
