"""Whatever a client asks for or sends, the worst is that its own command fails: the engine serves all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ack_modes import Outcome
from broker_adapter.amqp.messages.payloads import as_amqp, decode_payload, decode_received, read_head, with_place
from broker_adapter.amqp.messages.stored_message import with_delivery
from broker_adapter.destination import Destination, DestinationKind, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.envelope import ENVELOPE_FORMAT, Identity
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.desks import make, put
from tests.broker_adapter.engine.driving import WAIT, Inbox, connect, drained, message
from tests.broker_adapter.engine.strange_values import FOREIGN, NUMBERS, PACKED, PAYLOADS, VALUES, msgpack_of

_POSITIONS = st.integers(0, 20) | NUMBERS
_KEYS = st.sampled_from(["a", "b", "", "x" * 600])
#: What is right, so that operations get beyond their first check.
_LIKELY: dict[str, st.SearchStrategy[Any]] = {
    "destination": st.sampled_from(["q", "DLQ", "t", "target"]),
    "kind": st.just("queue"),
    "subscription": st.none(),
    "client_id": st.none(),
    "durable": st.none(),
    "incarnation": st.none(),
    "run": st.none(),
    "to": st.none() | st.just("q"),
    "limit": st.none() | st.integers(0, 5) | NUMBERS,
    "force": st.booleans(),
    "make": st.booleans(),
    "first": st.integers(0, 3) | NUMBERS,
    "last": st.integers(0, 20) | NUMBERS,
    "max_bytes": st.integers(1, 1000) | NUMBERS,
    "skip_damaged": st.booleans(),
    "columns": st.booleans(),
    "position": st.integers(0, 3) | NUMBERS,
    "transaction": st.sampled_from(["one", "two", "g/1/a", "g/2/b", "x" * 600]),
    "queue": st.sampled_from(["q", "target"]),
    "messages": st.lists(PACKED, max_size=3),
    "group": st.sampled_from(["g", "x" * 600]),
    "number": st.integers(0, 5) | NUMBERS,
    "transactions": st.lists(st.sampled_from(["one", "two", "g/1/a", "g/2/b"]), max_size=3),
    "counts": st.none(),
    "prefixes": st.lists(st.sampled_from(["g/", "o"]), max_size=2),
    "keep": st.lists(st.sampled_from(["g/1"]), max_size=1),
    "given": st.lists(st.tuples(_POSITIONS, VALUES) | st.tuples(_POSITIONS, VALUES, NUMBERS), max_size=3),
    "session": st.sampled_from(["s", "x" * 600]),
    "age_ms": NUMBERS,
    "token": st.sampled_from(["token", "x" * 600]),
    "positions": st.lists(_POSITIONS, max_size=3),
    "region": st.sampled_from(["r", "r", "new", "x" * 600]),
    "conflates": st.none() | st.booleans(),
    "changes": st.lists(st.tuples(_KEYS, st.integers(0, 3) | NUMBERS, PACKED), max_size=3),
    "keys": st.none() | st.lists(_KEYS, max_size=3),
    "after": st.none() | _KEYS,
    "values": st.booleans(),
    "selector": st.none() | st.sampled_from(["key = 'a'", "n > 5", "n >"]),
    "expression": st.none() | st.sampled_from(["a|b", "(", "x" * 2000, ".*"]),
    "interests": st.lists(
        st.tuples(st.integers(0, 5), _KEYS | st.sampled_from(["n > 5", "n >", "a|b"]), st.sampled_from(["", "q"])),
        max_size=3,
    ),
    "through": _POSITIONS,
    "drop_queued": st.booleans(),
    "claim": st.sampled_from(["one", "two", "", "x" * 600, "\ud800"]),
    "holder": st.sampled_from(["somebody", "", "x" * 600, "\ud800"]),
    "take_over": st.booleans(),
    "snapshot": st.none() | st.sampled_from(["1", "x" * 600]),
    "keys_per_part": st.integers(0, 3) | NUMBERS,
    "name": st.sampled_from(["q", "", "x" * 600]),
    "destinations": st.lists(st.sampled_from(["q", "target", "new", "", "x" * 600]), max_size=4),
    "runs": st.lists(st.sampled_from(["", "run", "x" * 600]), max_size=4),
    "url": st.sampled_from(["amqp://far", "embedded:", "", "x" * 600]),
    "state": st.sampled_from(["created", "running", "paused", "stopped", ""]),
    "sender": st.none() | st.sampled_from(["g/1", "x" * 600]),
    "site": st.integers(1, 2) | NUMBERS,
    "remote_site": st.integers(0, 2) | NUMBERS,
    "expired": st.lists(_POSITIONS, max_size=3),
    "filtered": st.lists(_POSITIONS, max_size=3),
    "conflated": st.lists(_POSITIONS, max_size=3),
    "refused": st.lists(st.tuples(_POSITIONS, st.just("why") | VALUES), max_size=3),
    "applied": _POSITIONS,
    "behind": st.just(0) | _POSITIONS,
    "node": st.sampled_from(["n", "", "x" * 600]),
    "spans": st.lists(st.tuples(st.just(b"writer w") | VALUES, NUMBERS, NUMBERS), max_size=2),
    "writer": st.just(b"writer w") | VALUES,
    "commit": NUMBERS,
    "wait_ms": st.just(0),
    "image": st.none() | NUMBERS,
    "term": st.none() | NUMBERS,
    "address": st.sampled_from([None, "", "x" * 600]),
    "table": st.sampled_from(["messages", "meta", "tail", "", "x" * 600]),
    "key": st.just(b"key") | VALUES,
    "offset": NUMBERS,
    "until": st.none() | st.just(b"key"),
    **dict.fromkeys(
        ["clean", "forget", "each", "group_transaction_events", "batch_conflation", "fetches"], st.booleans()
    ),
    **dict.fromkeys(["batch_messages", "batch_bytes", "batch_ms", "alert_ms", "max_messages", "most_bytes"], NUMBERS),
}
_GATEWAYS = st.sampled_from(["g", "g", "other", "x" * 600])
_GATEWAY_REQUESTS = (
    *("create_gateway", "change_gateway", "destroy_gateway", "gateways", "read_gateway", "end_gateway_batch"),
    "copy_to_gateway",
)


def _two(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """A column of a batch: all have two values, or are refused at once."""
    return st.lists(values, min_size=2, max_size=2)


_CLIENTS = st.sampled_from(["desk", "desk", "nobody", "x" * 600, "\ud800"])
_LIKELY_OF = {
    ("leave", "keep"): st.booleans(),
    **dict.fromkeys([("clients", "client_id"), ("queries", "client_id")], st.none() | _CLIENTS),
    **dict.fromkeys([(name, "client_id") for name in ("queue_size", "close_client", "close_query")], _CLIENTS),
    ("queries", "after"): st.none() | st.lists(_CLIENTS, max_size=2),
    **dict.fromkeys([(name, "name") for name in _GATEWAY_REQUESTS], _GATEWAYS),
    **dict.fromkeys([(name, "after") for name in ("read_gateway", "apply_batch")], _POSITIONS),
    ("read_commits", "after"): _POSITIONS,
    **dict.fromkeys([(name, "after") for name in ("read_image", "read_digest")], st.just(b"") | st.just(b"key")),
    ("read_records", "keys"): st.lists(st.sampled_from([b"key", b"", b"x" * 600]), max_size=3),
    ("copy_to_gateway", "region"): st.sampled_from([None, None, "r", "other"]),
    ("copy_to_gateway", "queue"): st.sampled_from([None, None, "target", "other"]),
    ("copy_to_gateway", "again"): st.booleans(),
    ("copy_to_gateway", "after"): st.none() | _KEYS | st.sampled_from(["d0", "1", "0", "d", "9" * 19]),
    ("create_gateway", "destinations"): st.lists(
        st.sampled_from(["queue:target", "region:r", "topic:t", "q"]), max_size=3
    ),
    ("apply_batch", "positions"): _two(_POSITIONS),
    ("apply_batch", "messages"): _two(PACKED | FOREIGN),
    ("apply_batch", "kind_of"): _two(st.integers(0, 2)),
    **{("apply_batch", name): _two(_POSITIONS) for name in ("numbers", "previous", "joined")},
    ("apply_batch", "kinds"): st.lists(
        st.fixed_dictionaries(
            {
                "to": st.sampled_from(["queue:q", "topic:t", "region:r", "region:none", "q"]),
                "format": st.sampled_from([ENVELOPE_FORMAT, 0]) | NUMBERS,
                "sites": st.lists(st.integers(0, 3), max_size=2) | VALUES,
                "origin": st.integers(0, 3) | VALUES,
            },
            optional={
                "key": _KEYS | VALUES,
                "operation": st.sampled_from(["create", "update", "destroy", "invalidate"]),
                "stamp": st.tuples(NUMBERS, NUMBERS) | VALUES,
                "head": VALUES,
            },
        ).map(msgpack_of),
        max_size=3,
    ),
}


@st.composite
def arguments_of(draw: st.DrawFn, operation: str) -> dict[str, Any]:
    """Arguments most of which are right."""
    arguments = {}
    for name in REQUESTS[operation].arguments:
        how = draw(st.integers(0, 19))
        if how < 17:
            arguments[name] = draw(_LIKELY_OF.get((operation, name), _LIKELY.get(name)))
        elif how < 19:
            arguments[name] = draw(VALUES)
    return arguments


class Served:
    """An engine with another client, which must never be affected."""

    def __init__(self, path: str | None) -> None:
        self.broker = Broker(EngineSettings(site=2), path)
        self.client = connect(self.broker, "me")
        self.selective = Inbox()
        consumer = self.broker.call(
            c.Attach(self.client, queue("q"), self.selective, selector="colour = 'red' AND n > 5"), WAIT
        )
        self.broker.call(c.Credit(consumer, 1_000_000), WAIT)
        self.desk = connect(self.broker, "desk")
        make(self.broker, "r")
        put(self.broker, "r", "a", "1")
        gateway = {"name": "g", "url": "amqp://far", "destinations": ["queue:target", "region:r"], "state": "running"}
        self.broker.request("create_gateway", gateway, WAIT)
        self.fill()

    def fill(self) -> None:
        """A queue without consumers that has messages, and a durable client of a region."""
        self.broker.call(c.Enqueue(self.client, queue("target"), [message("x"), message("y")]), WAIT)
        with suppress(IllegalStateException):  # it has left, or is there still
            self.broker.call(e.ConnectDurable(self.desk, "desk", None, 100, lambda _events: None), WAIT)

    def is_well(self) -> None:
        assert self.broker.failed is None, self.broker.failed
        before = drained(self.broker, self.client, "others", presettled=True)
        assert before == []
        assert self.broker.call(c.Enqueue(self.client, queue("others"), [message("x")]), WAIT) is None
        assert len(drained(self.broker, self.client, "others", presettled=True)) == 1


@pytest.fixture(params=["disk", "memory"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    made = Served(str(tmp_path) if request.param == "disk" else None)
    yield made
    made.broker.close()


SELECTORS = (
    "colour > 5",
    "colour LIKE 'r%' OR n IN ('a')",
    "n BETWEEN 1 AND 5 OR JMSCorrelationID = 'x'",
    "NOT (n = 7) AND colour IS NULL AND JMSTimestamp > 5",
)

FEW = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


def is_expected(error: JMSException) -> bool:
    """Whether an error names what was wrong, and is not that of a fault in the program."""
    return "unexpectedly" not in str(error) and "could not carry out" not in str(error)


@pytest.mark.parametrize("operation", sorted(REQUESTS.keys() - {"check"}))
@settings(FEW, max_examples=8)
@given(data=st.data())
def test_any_request_is_answered_or_refused(served: Served, operation: str, data: st.DataObject) -> None:
    arguments = data.draw(arguments_of(operation))
    error: JMSException | None = None
    served.fill()
    try:
        served.broker.request(operation, arguments, WAIT, client=served.desk)
    except JMSException as raised:
        error = raised
    assert error is None or is_expected(error), f"{operation} {arguments}: {error}"
    served.is_well()


@pytest.mark.parametrize("position", [-1, -(1 << 70), (1 << 64) - 1, 1 << 64, 1 << 70, True])
def test_positions_beyond_all_that_there_are_end_nothing(served: Served, position: int) -> None:
    for operation, arguments in (
        ("settle_through", {"position": position}),
        ("settle_through", {"position": 1, "first": position}),
        ("read_range", {"first": position, "last": 5}),
        ("read_range", {"first": 0, "last": position}),
        ("settle_positions", {"given": [[position, "x"]]}),
        ("uncount", {"given": [[position, "x", position]]}),
        ("seen", {"token": "token", "positions": [position]}),
    ):
        with suppress(MessageFormatException, InvalidDestinationException):
            served.broker.request(operation, {"destination": "target", **arguments}, WAIT)
        served.is_well()


@FEW
@given(payload=PAYLOADS, to=st.sampled_from(["q", "DLQ", "grouped"]))
def test_any_message_is_stored_or_refused(served: Served, payload: bytes, to: str) -> None:
    try:
        new = c.from_head(payload, read_head(payload, 1_700_000_000_000))
    except MessageFormatException:
        return
    error = served.broker.call(c.Enqueue(served.client, queue(to), [new]), WAIT)
    assert error is None
    served.is_well()


@FEW
@given(payload=PAYLOADS | st.binary(max_size=40), form=st.sampled_from([0, ENVELOPE_FORMAT]))
def test_any_stored_message_is_read_by_all_kinds_of_consumers_or_refused_by_them(
    served: Served, payload: bytes, form: int
) -> None:
    """What is stored and would not come in disturbs neither the engine nor the others."""
    served.broker.call(c.Enqueue(served.client, queue("q"), [c.NewMessage(form, payload)]), WAIT)
    served.is_well()
    for added in (None, {"JMS_HOLDFAST_DEAD_LETTER_REASON": "x"}):
        with suppress(MessageFormatException):
            decode_received(with_place(1, 0, added, payload))
        with suppress(MessageFormatException):
            with_delivery(as_amqp(form, payload), 3, added)
    for selector in SELECTORS:
        drained(served.broker, served.client, "q", selector=selector)
    bounds = served.broker.request("bounds", {"destination": "q"}, WAIT)
    read_range = {"destination": "q", "first": bounds["first"], "last": bounds["next"]}
    for _, _, message_format, body, _ in served.broker.request("read_range", read_range, WAIT)["messages"]:
        with suppress(MessageFormatException):
            decode_payload(body)
        assert message_format in (0, ENVELOPE_FORMAT)
    served.broker.request("purge", {"destination": "q"}, WAIT)


#: Names are strings when they come to the engine: the callers check that.
_NAME = (
    st.text(max_size=20)
    | st.text(st.characters(), max_size=3)
    | st.sampled_from(["q", "me", "s", "other", "x" * 600, "\0", "", "\ud800", "temporary-queue/x"])
)


@FEW
@given(
    destination=st.tuples(_NAME, st.sampled_from(DestinationKind)),
    name=_NAME,
    selector=_NAME | st.sampled_from(["n > " + "9" * 5000, "n = 'x'", "n >"]),
    number=NUMBERS,
)
def test_commands_with_any_name_and_number_leave_the_engine_as_it_was(
    served: Served, destination: tuple[Any, DestinationKind], name: Any, selector: Any, number: int
) -> None:
    broker, client = served.broker, served.client
    place = Destination(*destination)
    subscription = Subscription(name, durable=True, shared=True)
    for command in (
        c.Connect(name),
        c.Attach(client, place, Inbox(), selector=selector),
        c.Attach(client, place, Inbox(), selector=selector, subscription=subscription),
        c.Attach(client, place, Inbox(), selector=selector, browse=True),
        c.Enqueue(client, place, [message("x")]),
        c.Enqueue(client, queue("q"), [message("x", identity=Identity("p" * 600, 0, 1))]),
        c.Commit(client, c.CommitId(name, number), [(place, message("x"))], []),
        c.ResolveCommit(c.CommitId(name, number)),
        c.Unsubscribe(client, name),
        c.Declare(place),
        c.Delete(place, name, name, False),
        c.Credit(number, number),
        c.Settle(number, [number], Outcome.ACCEPTED),
        c.Detach(number),
        c.Publish(name, number, [name]),
        c.Stage(name, place, number, [message("x")]),
        c.Renew(name, number),
        c.Discard([name]),
    ):
        try:
            result = broker.call(command, WAIT)
        except JMSException:
            continue
        if isinstance(command, c.Connect):
            broker.call(c.Disconnect(result), WAIT)
        elif isinstance(command, c.Attach):
            broker.call(c.Detach(result), WAIT)
    served.is_well()
    assert [each for each in broker.check() if not each.harmless] == []
