"""Whether there is room: in queues, on the disk, in memory."""

from __future__ import annotations

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.store.room import Room
from broker_adapter.errors import ResourceAllocationException, TransactionRolledBackException
from tests.broker_adapter.engine.decisions import FULL, FULL_QUEUE, LARGE, Q, Rules, Scarce, commit


def test_bytes_of_a_queue_have_a_limit_too() -> None:
    rules = Rules(max_queue_bytes=100)
    client = rules.connect()
    rules.send(client, Q, b"x" * 100)
    assert rules.send(client, Q, b"x") == "held"


def test_bytes_of_a_queue_limit_transactions_as_well() -> None:
    rules = Rules(max_queue_bytes=1000)
    client = rules.connect()
    assert [rules.do(commit(client, number, [(Q, b"x" * 500)], [])) for number in (1, 2)] == [None, None]
    with pytest.raises(TransactionRolledBackException, match="max_queue_bytes"):
        rules.do(commit(client, 3, [(Q, b"x" * 500)], []))


def test_a_broker_that_takes_nothing_holds_everything_persistent() -> None:
    rules = Rules()
    client, other = rules.connect(), rules.connect()
    rules.state.admission.blocked_because = "the disk is full"
    assert rules.send(client, Q, b"x") == "held"
    assert rules.send(other, Q, b"y", persistent=False) is None
    rules.state.admission.blocked_because = None
    rules.pass_time(1)
    assert rules.depth("q") == 2


def test_what_is_staged_again_needs_no_room() -> None:
    scarce = Scarce()
    stage = c.Stage("t", Q, 0, [c.NewMessage(0, LARGE)])
    assert scarce.rules.do(stage) is True
    scarce.rules.state.admission.blocked_because = FULL
    assert scarce.rules.do(stage) is True


@pytest.mark.parametrize("what", ["send", "commit"])
def test_what_finds_no_room_in_a_queue_reserves_no_disk_space(what: str) -> None:
    scarce = Scarce()
    sends = [(Q, c.NewMessage(0, LARGE)), (FULL_QUEUE, c.NewMessage(0, LARGE))]
    if what == "send":
        command: c.Command = c.Enqueue(scarce.client, FULL_QUEUE, [c.NewMessage(0, LARGE)])
    else:
        command = c.Commit(scarce.client, c.CommitId("s", 1), sends, [])
    if what == "send":
        assert scarce.rules.do(command) == "held"
        scarce.retry()
    else:
        with pytest.raises(TransactionRolledBackException, match="is full"):
            scarce.rules.do(command)
    assert scarce.pages == 100
    assert scarce.rules.send(scarce.other, queue("another"), LARGE) is None
    assert scarce.pages < 80


def test_a_send_that_is_refused_reserves_no_room() -> None:
    scarce = Scarce()
    with pytest.raises(ResourceAllocationException, match="the store is full"):
        scarce.rules.do(c.Stage("t", Q, 0, [c.NewMessage(0, LARGE * 5)]))
    with pytest.raises(ResourceAllocationException, match="for one queue, limit 1"):
        scarce.rules.do(c.Stage("t", Q, 0, [c.NewMessage(0, b"x")] * 2))
    assert scarce.pages == 100


def test_what_is_staged_again_takes_no_more_room() -> None:
    scarce = Scarce()
    scarce.rules.do(c.Stage("t", Q, 0, [c.NewMessage(0, LARGE)]))
    pages = scarce.pages
    assert pages < 80
    scarce.rules.do(c.Stage("t", Q, 0, [c.NewMessage(0, LARGE)]))
    assert scarce.pages == pages


def test_a_send_that_waits_for_memory_reserves_no_disk_space() -> None:
    scarce = Scarce()
    news = topic("news")
    scarce.rules.attach(scarce.other, news)  # not durable, so that its message is in memory
    scarce.rules.state.admission.volatile_room = 10
    for _ in range(3):
        assert scarce.rules.send(scarce.client, news, LARGE) == "held"
    assert (scarce.pages, scarce.rules.state.admission.volatile_room) == (100, 10)


def test_a_transaction_that_takes_as_much_as_it_puts_needs_no_more_room() -> None:
    rules = Rules()
    client = rules.connect()
    for _ in range(3):
        rules.send(client, Q, LARGE)
    consumer = rules.attach(client, Q, credit=3)
    rules.state.admission.room = Room(0.5, 0, 4096, "the store is full", spare_single_pages=60.0, spare_run_pages=60.0)
    rules.state.admission.blocked_because = FULL

    sends = [(queue("other"), c.NewMessage(0, LARGE))]
    with pytest.raises(TransactionRolledBackException, match="is full"):
        rules.do(c.Commit(rules.connect(), c.CommitId("only sends", 1), sends, []))
    first, *others = [
        (consumer, number, Outcome.ACCEPTED) for number in rules.state.directory.consumers[consumer].unsettled
    ]
    assert rules.do(c.Commit(client, c.CommitId("s", 1), sends, [first])) is None
    assert rules.state.admission.room is not None
    assert rules.state.admission.room.single_pages == 0.5
    assert 30 < rules.state.admission.room.spare_single_pages < 36
    with pytest.raises(TransactionRolledBackException, match="the store is full"):  # it sends more than it takes
        rules.do(c.Commit(client, c.CommitId("s", 2), sends * 3, others))


@pytest.mark.parametrize(
    ("sizes", "is_taken"), [((410,), True), ((10,), True), ((500,), True), ((1, 1), False), ((500, 1), False)]
)
def test_a_transaction_that_makes_a_queue_no_longer_goes_on_though_it_is_full_of_bytes(
    sizes: tuple[int, ...], is_taken: bool
) -> None:
    rules = Rules(max_queue_bytes=1000)
    client = rules.connect()
    for size in (400, 100, 900):
        assert rules.send(client, Q, b"x" * size) is None
    consumer = rules.attach(client, Q, credit=1)
    settled = [(consumer, number, Outcome.ACCEPTED) for number in rules.state.directory.consumers[consumer].unsettled]
    sends = [(Q, c.NewMessage(0, b"x" * size)) for size in sizes]
    command = c.Commit(client, c.CommitId("s", 1), sends, settled)
    if is_taken:
        assert rules.do(command) is None
        return
    with pytest.raises(TransactionRolledBackException, match="max_queue_bytes"):
        rules.do(command)


@pytest.mark.parametrize("durable", [True, False])
def test_volatile_messages_that_a_transaction_takes_make_room_for_those_that_it_sends(durable: bool) -> None:
    rules = Rules(durable=durable)
    client = rules.connect()
    rules.send(client, Q, *[b"x" * 1000] * 3, persistent=False)
    consumer = rules.attach(client, Q, credit=3)
    rules.state.admission.volatile_room = 0
    settled = [(consumer, number, Outcome.ACCEPTED) for number in (1, 2)]
    sends = [(queue("other"), c.NewMessage(0, b"y" * 1000, persistent=False))]
    with pytest.raises(TransactionRolledBackException, match="max_volatile_bytes"):
        rules.do(c.Commit(rules.connect(), c.CommitId("only sends", 1), sends, []))
    assert rules.do(c.Commit(client, c.CommitId("s", 1), sends * 2, settled)) is None
    assert rules.state.admission.volatile_room == 0
    with pytest.raises(TransactionRolledBackException, match="max_volatile_bytes"):
        rules.do(c.Commit(client, c.CommitId("s", 2), sends * 2, [(consumer, 3, Outcome.ACCEPTED)]))
