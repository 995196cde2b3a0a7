"""Changes of regions in commits: all or nothing with sends and settlements, within limits, and once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from ack_modes import Outcome
from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.store.room import Room
from broker_adapter.envelope import ENVELOPE_FORMAT, BodyKind, Envelope, Identity, pack
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    MessageFormatException,
    ResourceAllocationException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, make, put
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    connect,
    depth,
    drained,
    eventually,
    message,
    payloads,
    send,
    subscribe,
)
from tests.broker_adapter.engine.regions.values import values_of


def puts(region: str, *keys: str, body: object = b"x", **fields: Any) -> e.ChangeKeys:
    return e.ChangeKeys(region, [e.KeyChange(key, Wanted.PUT, message(body, **fields)) for key in keys])


def destroys(region: str, *keys: str) -> e.ChangeKeys:
    return e.ChangeKeys(region, [e.KeyChange(key, Wanted.DESTROY, message()) for key in keys])


def commit(
    client: int, number: int, *changes: e.ChangeKeys, sends: Sequence[Any] = (), settlements: Sequence[Any] = ()
) -> c.Commit:
    return c.Commit(client, c.CommitId("session", number), sends, settlements, changes=changes)


def test_a_commit_has_sends_settlements_and_changes_of_several_regions(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes", "orders")
    client = connect(broker)
    put(broker, "quotes", "old")
    send(broker, client, "in", b"order")
    consumer, inbox = attach(broker, client, "in", 1)
    inbox.wait_for(1)
    desk = Desk(broker)
    desk.want("quotes")
    desk.want("orders")
    desk.ready()
    broker.call(
        commit(
            *(client, 1, puts("quotes", "a", body=b"1"), puts("orders", "a", body=b"2")),
            *(destroys("quotes", "old", "none"), puts("quotes", "a", "b", body=b"3")),
            sends=[(queue("out"), message(b"done"))],
            settlements=[(consumer, 1, Outcome.ACCEPTED)],
        ),
        WAIT,
    )
    assert desk.events() == ["marker", "a=1", "a=2", "old=", "a=3", "b=3"]
    if engines.path is not None:
        broker = engines.start()
        client = connect(broker)
    assert values_of(broker) == {("quotes", "a"): b"3", ("quotes", "b"): b"3", ("orders", "a"): b"2"}
    assert payloads(drained(broker, client, "out")) == (
        [b"done"] if engines.path is not None or depth(broker, "out") else []
    )
    assert depth(broker, "in") == 0


def test_a_commit_that_is_repeated_changes_nothing(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    first = commit(connect(broker), 1, puts("quotes", "a", body=b"1"))
    broker.call(first, WAIT)
    put(broker, "quotes", "a", b"2")
    if engines.path is not None:
        broker = engines.start()
        first = first._replace(client=connect(broker))
    broker.call(first, WAIT)
    assert values_of(broker) == {("quotes", "a"): b"2"}
    assert broker.call(c.ResolveCommit(c.CommitId("session", 1)), WAIT) is True
    assert broker.call(c.ResolveCommit(c.CommitId("session", 2)), WAIT) is False


@pytest.mark.parametrize(
    ("wrong", "cause", "text"),
    [
        (puts("none", "a"), InvalidDestinationException, "there is no region 'none'"),
        (puts("quotes", "x" * 401), InvalidDestinationException, "1 to 400 bytes"),
        (puts("quotes", "large", body=b"x" * 101), MessageFormatException, "key 'large' of region 'quotes'"),
    ],
)
def test_a_commit_with_one_wrong_change_does_nothing_and_says_which(
    engines: Engines, wrong: e.ChangeKeys, cause: type[Exception], text: str
) -> None:
    broker = engines.start(max_message_bytes=100)
    make(broker, "quotes")
    client = connect(broker)
    send(broker, client, "in", b"order")
    consumer, inbox = attach(broker, client, "in", 10)
    inbox.wait_for(1)
    sends = [(queue("out"), message(b"x"))]
    with pytest.raises(TransactionRolledBackException, match=text) as raised:
        broker.call(
            commit(client, 1, puts("quotes", "a"), wrong, sends=sends, settlements=[(consumer, 1, Outcome.ACCEPTED)]),
            WAIT,
        )
    assert type(raised.value.__cause__) is cause
    assert values_of(broker) == {}
    assert depth(broker, "out") == 0
    assert inbox.wait_for(2)[1].delivery_count == 1
    assert broker.call(c.ResolveCommit(c.CommitId("session", 1)), WAIT) is False


@pytest.mark.parametrize(
    "limit", [{"max_transaction_messages": 3}, {"max_transaction_bytes": 33}, {"max_transaction_entries": 6}]
)
def test_a_transaction_has_limits_of_its_changes_and_sends_together(limit: dict[str, int]) -> None:
    with closing(Broker(EngineSettings(**limit))) as broker:
        make(broker, "quotes")
        client = connect(broker)
        name = next(iter(limit))
        if name == "max_transaction_entries":
            subscribe(broker, connect(broker, "me"), "quotes", "plain")
        sends = [(queue("q"), message(b"x" * 10))]
        with pytest.raises(TransactionRolledBackException, match=name):
            broker.call(commit(client, 1, puts("quotes", "a", "b", "c", body=b"x" * 10), sends=sends), WAIT)
        assert (values_of(broker), depth(broker, "q")) == ({}, 0)
        keys = "ab" if name != "max_transaction_entries" else "a"
        broker.call(commit(client, 2, puts("quotes", *keys, body=b"x" * 10), sends=sends), WAIT)
        assert (len(values_of(broker)), depth(broker, "q")) == (len(keys), 1)


def test_a_memory_that_is_full_refuses_the_commit_as_a_whole() -> None:
    with closing(Broker(EngineSettings(max_volatile_bytes=20_000))) as broker:
        make(broker, "quotes")
        client = connect(broker)
        many = [f"k{number}" for number in range(30)]
        with pytest.raises(TransactionRolledBackException, match=r"max_volatile_bytes.*do the transaction again later"):
            broker.call(commit(client, 1, puts("quotes", *many, body=b"x" * 1000)), WAIT)
        assert values_of(broker) == {}
        few = many[:5]
        for number in range(2, 10):  # what a commit has taken is free again
            broker.call(commit(client, 2 * number, puts("quotes", *few, body=b"x" * 1000)), WAIT)
            broker.call(commit(client, 2 * number + 1, destroys("quotes", *few)), WAIT)
        assert values_of(broker) == {}


def test_a_disk_that_is_full_refuses_puts_and_takes_destroys(disk: Engines) -> None:
    broker = disk.start()
    make(broker, "quotes")
    client = connect(broker)
    put(broker, "quotes", "old")

    def fill() -> None:
        broker._state.admission.room = Room(0.0, 0, 4096, "the store is full")

    broker._room_checks.measure = lambda *_: fill()  # type: ignore[method-assign]
    broker._measure_room = lambda *_: fill()
    with pytest.raises(TransactionRolledBackException, match="the store is full") as raised:
        broker.call(commit(client, 1, puts("quotes", "a"), destroys("quotes", "old")), WAIT)
    assert isinstance(raised.value.__cause__, ResourceAllocationException)
    broker.call(commit(client, 2, destroys("quotes", "old")), WAIT)
    assert values_of(broker) == {}


def test_a_subscription_that_is_full_refuses_the_commit_and_its_room_is_shared_with_the_sends() -> None:
    with closing(Broker(EngineSettings(max_queue_messages=3))) as broker:
        make(broker, "quotes")
        client = connect(broker)
        subscribe(broker, connect(broker, "me"), "quotes", "plain")
        sends = [(topic("quotes"), message(b"x"))]
        with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
            broker.call(commit(client, 1, puts("quotes", "a", "b"), destroys("quotes", "a"), sends=sends), WAIT)
        assert values_of(broker) == {}
        broker.call(commit(client, 2, puts("quotes", "a"), destroys("quotes", "a"), sends=sends), WAIT)
        with pytest.raises(TransactionRolledBackException, match="max_queue_messages"):
            broker.call(commit(client, 3, puts("quotes", "a")), WAIT)


def test_changes_of_a_fault_in_the_engine_leave_the_commit_in_doubt(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(broker, "quotes")

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(broker._state._event_changes, "carry_out", fail)
    with pytest.raises(TransactionInDoubtException, match="could not carry out Commit"):
        broker.call(commit(connect(broker), 1, puts("quotes", "a")), WAIT)
    monkeypatch.undo()
    put(broker, "quotes", "a", b"1")
    assert values_of(broker) == {("quotes", "a"): b"1"}


def test_a_change_whose_identity_was_taken_is_left_out(broker: Broker) -> None:
    make(broker, "quotes")
    taken = Identity("p", 1, 7)
    put(broker, "quotes", "a", b"1", identity=taken)
    client = connect(broker)
    broker.call(commit(client, 1, puts("quotes", "a", body=b"2", identity=taken), puts("quotes", "b", body=b"2")), WAIT)
    assert values_of(broker) == {("quotes", "a"): b"1", ("quotes", "b"): b"2"}


# Selectors that take long.


def priced(region: str, **prices: int) -> e.ChangeKeys:
    def change(key: str, price: int) -> e.KeyChange:
        payload = pack(Envelope(topic(region), BodyKind.MAP, {"price": price}))
        return e.KeyChange(key, Wanted.PUT, c.NewMessage(ENVELOPE_FORMAT, payload))

    return e.ChangeKeys(region, [change(*each) for each in prices.items()])


class Slow:
    """An engine whose slices of time are over after the first question, until they are not."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        make(broker, "quotes", "orders")
        self.desk = Desk(broker, window=10_000)
        for region in ("quotes", "orders"):
            names = [Interest(InterestKind.QUERY, f"price > {number}", f"{region}{number}") for number in range(20)]
            self.desk.want(region, *names)
        self.desk.ready()
        self.client = connect(broker)
        self.slices = 0
        self.asks: int | None = 0

    def new_slice(self) -> Any:
        self.slices += 1
        left = [10**9 if self.asks is None else self.asks]

        def is_late() -> bool:
            left[0] -= 1
            return left[0] < 0

        return is_late

    def begin(self, *changes: e.ChangeKeys, number: int = 1, sends: Sequence[Any] = ()) -> list[Any]:
        """Commit, and return where the answer will be."""
        answers: list[Any] = []
        with self.broker.reading():
            self.broker._state.matching.new_slice = self.new_slice  # type: ignore[method-assign]
        self.broker.submit(commit(self.client, number, *changes, sends=sends)._replace(reply=answers.append))
        return answers

    def wait(self) -> None:
        """Wait until a commit waits."""
        eventually(lambda: bool(self.broker._state.blocked_sends.changing))


def test_a_commit_waits_for_selectors_and_changes_what_is_there_by_then(broker: Broker) -> None:
    slow = Slow(broker)
    answers = slow.begin(
        priced("quotes", a=5), priced("orders", a=5), priced("quotes", **{f"k{n}": n for n in range(60)})
    )
    slow.wait()
    assert (answers, values_of(broker)) == ([], {})
    slow.asks = 1  # enough for a single change, which does not wait for the commit
    ((operation, version),) = broker.call(priced("quotes", a=10), WAIT)
    assert (operation, answers, len(values_of(broker))) == (Operation.CREATE, [], 1)
    eventually(lambda: bool(answers))
    assert answers == [None]
    of_a = [each for each in slow.desk.handouts() if (each.region, each.key) == ("quotes", "a")]
    assert [each.operation for each in of_a] == [Operation.CREATE, Operation.UPDATE]
    assert of_a[0].position == version
    # By a query that has asked the old value as it was when the commit was carried out.
    assert dict(of_a[1].queries)["quotes7"] is Operation.DESTROY
    assert len(values_of(broker)) == 62


@pytest.mark.parametrize("end", ["session", "connection", "another commit", "engine"])
def test_a_commit_that_waits_is_rolled_back_with_the_end_of_its_session(disk: Engines, end: str) -> None:
    broker = disk.start()
    slow = Slow(broker)
    answers = slow.begin(priced("quotes", a=5))
    slow.wait()
    if end == "session":
        broker.call(c.EndSession("session"), WAIT)
    elif end == "connection":
        broker.call(c.Disconnect(slow.client), WAIT)
    elif end == "another commit":
        slow.asks = None
        broker.call(commit(slow.client, 2, puts("orders", "b")), WAIT)
    else:
        broker.close()
    eventually(lambda: bool(answers))
    (error,) = answers
    assert isinstance(
        error,
        TransactionRolledBackException if end != "engine" else (TransactionRolledBackException, IllegalStateException),
    )
    if end == "engine":
        broker = disk.start()
    assert broker.call(c.ResolveCommit(c.CommitId("session", 1)), WAIT) is (end == "another commit")
    assert ("quotes", "a") not in values_of(broker)
    assert not broker._state.blocked_sends.changing


def test_the_keys_of_a_commit_that_waits_are_read_once_more_and_not_in_each_cycle(broker: Broker) -> None:
    """Many keys take longer to read than a slice."""
    slow = Slow(broker)
    supply, supplied = broker._supply, list[int]()

    def note(command: c.Command) -> c.Command:
        if isinstance(command, c.Commit):
            supplied.append(slow.slices)
        return supply(command)

    broker._supply = note
    slow.asks = 1
    answers = slow.begin(priced("quotes", **{f"k{number}": number for number in range(60)}))
    eventually(lambda: bool(answers))
    assert answers == [None]
    assert slow.slices > 30
    assert len(supplied) == 2


def test_a_commit_asks_no_more_than_what_its_answers_have_room_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(e, "QUESTIONS_IN_COMMIT", 60)
    Slow(broker)  # 20 queries of each region
    client = connect(broker)
    with pytest.raises(TransactionRolledBackException, match=r"make 80 questions.*commit more often") as raised:
        broker.call(commit(client, 1, puts("quotes", "a", "b", "c"), puts("orders", "a")), WAIT)
    assert isinstance(raised.value.__cause__, ResourceAllocationException)
    broker.call(commit(client, 2, puts("quotes", "a", "b"), puts("orders", "a")), WAIT)
    assert len(values_of(broker)) == 3


def test_a_commit_asks_in_slices_however_its_changes_alternate(broker: Broker) -> None:
    """So nobody waits for more than a slice."""
    slow = Slow(broker)
    asked = []
    matching = broker._state.matching
    is_selected = matching.is_selected
    matching.is_selected = lambda *arguments: asked.append(slow.slices) or is_selected(*arguments)  # type: ignore[method-assign,func-returns-value]
    slow.asks = 2
    parts = [priced(("quotes", "orders")[number % 2], a=number) for number in range(30)]
    answers = slow.begin(*parts)
    eventually(lambda: bool(answers))
    assert answers == [None]
    most = max(asked.count(each) for each in set(asked))
    assert most <= 100, "in one slice: two groups, and what a group has"
    assert len(slow.desk.handouts()) > 20
