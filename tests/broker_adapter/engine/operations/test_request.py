"""What a request may be follows from its class: anything else is refused, before anything is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from broker_adapter.destination import queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.request import (
    MAX_TEXT,
    NEEDED,
    Names,
    Request,
    Threads,
    argument,
    check_outline,
    request,
    type_of,
)
from broker_adapter.engine.operations.requests import REQUESTS, request_of
from broker_adapter.engine.operations.steps import MAX_GIVEN, MAX_PREFIXES, MAX_QUEUES
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, MessageFormatException
from broker_adapter.packing import MAX_MEMBERS, Unread, check
from broker_adapter.settings import EngineSettings
from broker_adapter.transport import Subscription
from tests.broker_adapter.engine.driving import WAIT, Inbox, connect, depth, message, send


@pytest.fixture(params=["disk", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(EngineSettings(), str(tmp_path) if request.param == "disk" else None)
    yield broker
    broker.close()


@pytest.fixture
def news(broker: Broker) -> Broker:
    """A queue and a topic of one name, each with two messages; the topic's are in two durable subscriptions."""
    client = connect(broker, "me")
    send(broker, client, "news", "a", "b")
    for shared in (True, False):
        subscription = Subscription("reader", durable=True, shared=shared, of_client=not shared)
        consumer = broker.call(c.Attach(client, topic("news"), Inbox(), subscription=subscription), WAIT)
        broker.call(c.Detach(consumer), WAIT)
    broker.call(c.Enqueue(client, topic("news"), [message("c"), message("d")]), WAIT)
    return broker


def ask(broker: Broker, operation: str, arguments: dict[str, Any]) -> Any:
    return broker.request(operation, arguments, WAIT)


def kept(broker: Broker) -> int:
    """Messages in the queue and the subscriptions."""
    return sum(each["messages"] for each in ask(broker, "statistics", {})["queues"])


@pytest.mark.parametrize("operation", ["purge", "delete"])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"kind": "Topic", "subscription": "reader"}, "'kind' is \"queue\" or \"topic\", not 'Topic'"),
        ({"kind": "subscription"}, "'kind' is \"queue\" or \"topic\", not 'subscription'"),
        ({"kind": None, "subscription": "reader"}, "argument 'kind' of type str, not None"),
        ({"subscription": "reader"}, "'subscription' needs the kind \"topic\""),
        ({"kind": "queue", "client_id": "me"}, "'client_id' needs the kind \"topic\""),
        ({"kind": "topic", "client_id": "me"}, "'client_id' needs a 'subscription'"),
        ({"Kind": "topic", "subscripton": "reader"}, "no arguments 'Kind' and 'subscripton'; it has destination, kind"),
        ({"first": 1}, "has no argument 'first'; it has destination, kind, subscription, client_id"),
    ],
)
def test_a_misspelt_argument_does_not_do_the_larger_thing(
    news: Broker, operation: str, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises(MessageFormatException, match=error):
        ask(news, operation, {"destination": "news", **arguments})
    assert kept(news) == 6


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"durable": True}, "'durable' needs the kind \"topic\""),
        ({"kind": "topic", "durable": False}, "'durable' needs a 'subscription'"),
        ({"kind": "topic", "subscription": "reader", "durable": 1}, "argument 'durable' of type bool, not 1"),
    ],
)
def test_what_says_which_subscription_is_meant_is_checked(news: Broker, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(MessageFormatException, match=error):
        ask(news, "uncount", {"destination": "news", "given": [], **arguments})


@pytest.mark.parametrize("operation", sorted(REQUESTS))
def test_an_argument_that_an_operation_does_not_have_is_refused(news: Broker, operation: str) -> None:
    with pytest.raises(MessageFormatException, match=f"operation '{operation}' .*'nonsense'"):
        ask(news, operation, {"nonsense": 1})


def test_an_unknown_operation_is_answered_with_the_names_of_all(broker: Broker) -> None:
    with pytest.raises(MessageFormatException, match="the operations are ") as raised:
        ask(broker, "nothing", {})
    for operation in REQUESTS:
        assert operation in str(raised.value)
    assert "check" in REQUESTS


@pytest.mark.parametrize(
    ("operation", "arguments", "error"),
    [
        ("redrive", {"limit": True}, "'limit' of type int, not True"),
        ("redrive", {"limit": -1}, "'limit' of operation 'redrive' is not from 0 to"),
        ("read_range", {"first": -1, "last": 5}, "'first' of operation 'read_range' is not from 0 to"),
        ("read_range", {"first": 0, "last": -1}, "'last' of operation 'read_range' is not from 0 to"),
        ("read_range", {"first": 0, "last": 1 << 64}, "'last' of operation 'read_range' is not from 0 to"),
        ("read_range", {"first": False, "last": 5}, "'first' of type int, not False"),
        ("read_range", {"first": 0, "last": 5, "max_bytes": 0}, "'max_bytes' of operation 'read_range' is not from 1"),
        ("read_range", {"first": 0, "last": 5, "skip_damaged": 1}, "'skip_damaged' of type bool, not 1"),
        ("settle_through", {"position": -1}, "'position' of operation 'settle_through' is not from 0 to"),
        ("settle_through", {"position": 1 << 70}, "'position' of operation 'settle_through' is not from 0 to"),
        ("delete", {"force": "yes"}, "'force' of type bool, not 'yes'"),
        ("delete", {"destination": "x" * 4097}, "'destination' of operation 'delete' is longer than 4096 characters"),
        ("delete", {"destination": 5}, "'destination' of type str, not 5"),
        ("purge", {"destination": None}, "'destination' of type str, not None"),
    ],
)
def test_a_value_of_another_type_or_beyond_all_that_there_is_names_its_argument(
    news: Broker, operation: str, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises(MessageFormatException, match=error):
        ask(news, operation, {"destination": "news", **arguments})
    assert kept(news) == 6


def test_arguments_are_a_map(broker: Broker) -> None:
    for arguments in ([], None, "destination", [("destination", "q")]):
        with pytest.raises(MessageFormatException, match="arguments of operation 'statistics' are not a map"):
            broker.request("statistics", arguments, WAIT)  # type: ignore[arg-type]


def test_every_operation_takes_what_a_restored_connection_adds(news: Broker) -> None:
    added = {"request_id": "a", "request_run": news.run}
    assert len(ask(news, "statistics", added)["queues"]) >= 3
    assert ask(news, "bounds", {"destination": "news", **added})["first"] == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"request_id": 7}, "'request_id' of type str, not 7"),
        ({"request_id": ""}, "'request_id' is a string of 1 to 100 characters"),
        ({"request_id": "x" * 101}, "'request_id' is a string of 1 to 100 characters"),
        ({"request_id": "a", "request_run": 7}, "'request_run' of type str, not 7"),
    ],
)
def test_a_request_id_that_cannot_be_one_is_refused(news: Broker, given: dict[str, Any], error: str) -> None:
    with pytest.raises(MessageFormatException, match=error):
        ask(news, "purge", {"destination": "news", **given})
    assert kept(news) == 6


def test_a_request_for_another_run_is_refused_without_an_id_as_well(news: Broker) -> None:
    with pytest.raises(IllegalStateException, match="started again"):
        ask(news, "purge", {"destination": "news", "request_run": "earlier"})
    assert kept(news) == 6


def test_an_id_that_another_request_had_is_refused(news: Broker) -> None:
    assert ask(news, "purge", {"destination": "news", "request_id": "a"}) == 2
    assert ask(news, "purge", {"destination": "news", "kind": "queue", "request_id": "a"}) == 2
    for operation, arguments in (
        ("delete", {"destination": "news"}),
        ("purge", {"destination": "news", "kind": "topic", "subscription": "reader"}),
    ):
        with pytest.raises(IllegalStateException, match="request id 'a' was given to another request"):
            ask(news, operation, {**arguments, "request_id": "a"})
    assert kept(news) == 4


def test_operations_on_an_unknown_queue_do_not_make_it(broker: Broker) -> None:
    for operation, arguments in (
        ("bounds", {}),
        ("read_range", {"first": 0, "last": 10}),
        ("settle_through", {"position": 1}),
        ("settle_positions", {"given": [(1, "x")]}),
        ("uncount", {"given": [(1, "x", 0)]}),
        ("seen", {"token": "token", "positions": [1]}),
        ("purge", {}),
        ("redrive", {}),
        ("delete", {}),
    ):
        with pytest.raises(InvalidDestinationException, match="no queue 'n1'"):
            ask(broker, operation, {"destination": "n1", **arguments})
    ask(broker, "published", {"group": "n1"})
    assert "n1" not in {each["name"] for each in ask(broker, "statistics", {})["queues"]}


def test_bounds_make_a_queue_where_that_is_asked_for(broker: Broker) -> None:
    bounds = ask(broker, "bounds", {"destination": "n1", "make": True})
    assert bounds["first"] == bounds["next"]
    assert depth(broker, "n1") == 0
    with pytest.raises(MessageFormatException, match="'make' needs the kind \"queue\""):
        ask(broker, "bounds", {"destination": "t", "kind": "topic", "subscription": "s", "make": True})


def test_the_name_of_a_transaction_that_is_too_long_is_that_of_a_transaction(broker: Broker) -> None:
    stage = {"transaction": "x" * 401, "queue": "q", "first": 0, "messages": []}
    with pytest.raises(InvalidDestinationException, match="transaction name of 401 bytes is longer than the limit"):
        ask(broker, "stage", stage)


def test_every_operation_reports_that_a_subscription_needs_a_client_id(news: Broker) -> None:
    where = {"destination": "news", "kind": "topic", "subscription": "reader", "client_id": "you"}
    for operation in ("purge", "delete", "bounds", "redrive"):
        with pytest.raises(
            InvalidDestinationException,
            match=r"no subscription 'reader' of client id 'you' on 'news'; there is one without a client id and one of"
            r" client id 'me' \(--client-id\)",
        ):
            ask(news, operation, where)


@pytest.mark.parametrize("operation", ["settle_positions", "uncount"])
def test_a_request_names_a_bounded_number_of_messages(broker: Broker, operation: str) -> None:
    """Each may lie in another part of the queue, and requests of one group take turns."""
    broker.call(c.Declare(queue("q")), WAIT)
    most = [[10**6 * number, "ID:none", 0] for number in range(MAX_GIVEN)]
    broker.request(operation, {"destination": "q", "given": most}, WAIT)
    with pytest.raises(
        MessageFormatException, match=f"'given' of operation '{operation}' has 10001 values; 10000 is the"
    ):
        broker.request(operation, {"destination": "q", "given": [*most, [1, "ID:none", 0]]}, WAIT)


def _least(operation: str) -> dict[str, Any]:
    """What each needed argument may be."""
    values: dict[type, Any] = {str: "q", int: 1, bool: False, bytes: b"x", list: []}
    return {name: values[each.kind] for name, each in REQUESTS[operation].arguments.items() if each.default is NEEDED}


_LISTS = [
    (operation, name)
    for operation, request in REQUESTS.items()
    for name, each in request.arguments.items()
    if each.kind is list
]


@pytest.mark.parametrize(("operation", "name"), _LISTS)
def test_each_list_has_a_limit_and_an_error_that_names_it(operation: str, name: str) -> None:
    wanted = REQUESTS[operation].arguments[name]
    assert 0 < wanted.most_values <= 100_000
    value: Any = {int: 1, str: "x", bytes: b"x", None: [1, "x", 0]}[wanted.of]
    at_limit = [value] * wanted.most_values
    assert len(getattr(request_of(operation, {**_least(operation), name: at_limit}), name)) == wanted.most_values
    most = wanted.most_values
    reason = f"argument '{name}' of operation '{operation}' has {most + 1} values; {most} is the limit"
    with pytest.raises(MessageFormatException, match=reason):
        request_of(operation, {**_least(operation), name: [*at_limit, value]})


@pytest.mark.parametrize(
    ("operation", "name"), [each for each in _LISTS if REQUESTS[each[0]].arguments[each[1]].of is str]
)
def test_a_text_in_a_list_has_the_limit_of_any_text(operation: str, name: str) -> None:
    request_of(operation, {**_least(operation), name: ["x" * MAX_TEXT]})
    with pytest.raises(
        MessageFormatException, match=f"'{name}' of operation '{operation}' has a text of 4097 characters"
    ):
        request_of(operation, {**_least(operation), name: ["x" * (MAX_TEXT + 1)]})


@pytest.mark.parametrize(
    ("operation", "given", "error"),
    [
        ("nonsense", {}, "unknown operation 'nonsense'"),
        (
            "purge",
            {"destination": "q", "junk": Unread("list", 5)},
            "'purge' has no argument 'junk'; it has destination",
        ),
        (
            "discard",
            {"prefixes": Unread("list", MAX_PREFIXES + 1)},
            "'prefixes' of operation 'discard' has 1001 values",
        ),
        ("discard", {"prefixes": Unread("map", 1)}, "needs the argument 'prefixes' of type list, not a map of 1"),
        (
            "bounds_of_queues",
            {"destinations": Unread("list", MAX_QUEUES)},
            "'destinations' of operation 'bounds_of_queues' is no list of texts, or is longer",
        ),
        (
            "bounds_of_queues",
            {"destinations": ["q"] * (MAX_QUEUES + 1)},
            "'destinations' of operation 'bounds_of_queues' has 1001 values",
        ),
        ("purge", {"destination": Unread("list", 1)}, "needs the argument 'destination' of type str, not a list of 1"),
        (
            "purge",
            {"request_id": Unread("text", 9**9)},
            "argument 'request_id' of operation 'purge' is longer than 4096",
        ),
    ],
)
def test_what_cannot_be_a_request_is_refused_by_its_outline(operation: str, given: dict[str, Any], error: str) -> None:
    with pytest.raises(MessageFormatException, match=error):
        check_outline(type_of(operation), given)


@pytest.mark.parametrize("operation", sorted(REQUESTS))
def test_the_largest_request_of_each_operation_has_as_many_members_as_it_may_have(operation: str) -> None:
    wanted = REQUESTS[operation].arguments
    values: dict[type, Any] = {str: "q", int: 2**64 - 1, bool: True, bytes: b"x"}
    members: dict[type | None, Any] = {int: 2**64 - 1, str: "x", bytes: b"x", None: [1, ["producer", 5, 7], 3]}
    largest: dict[str, Any] = {
        name: [members[each.of]] * each.most_values if each.kind is list else values[each.kind]
        for name, each in wanted.items()
    } | {"request_id": "a", "request_run": "b"}
    most = check_outline(
        REQUESTS[operation],
        {
            name: Unread("list", len(value))
            if isinstance(value, list) and wanted[name].names is not Names.QUEUES
            else value
            for name, value in largest.items()
        },
    )
    check(msgpack.packb((1, operation, largest)), most)
    assert most < MAX_MEMBERS // 4


def test_a_new_request_is_one_class_which_says_all_of_it() -> None:
    table: dict[str, type[Request]] = {}

    @request(Threads.SHORT, once=True, table=table)
    class CountLettersRequest(Request):
        """How many letters there are."""

        queue: str = argument(names=Names.QUEUE)
        words: Sequence[str] = argument((), most_values=2)
        most: int = argument(9, least=1, most=9)

    made = table["count_letters"]
    assert made is CountLettersRequest
    assert (made.threads, made.once) == (Threads.SHORT, True)
    assert list(made.arguments) == ["queue", "words", "most"]
    assert [name for name, _ in made.naming] == ["queue"]
    found = request_of("count_letters", {"queue": "q", "words": ["a"]}, table)
    assert isinstance(found, CountLettersRequest)
    assert (found.queue, found.words, found.most, found.request_id) == ("q", ["a"], 9, None)
    assert found.what == {"operation": "count_letters", "queue": "q", "words": ["a"], "most": 9}
    for given, error in (
        ({}, "needs the argument 'queue' of type str, and it is missing"),
        ({"queue": "q", "words": ["a", "b", "c"]}, "has 3 values; 2 is the limit"),
        ({"queue": "q", "words": [1]}, "is not a list of str"),
        ({"queue": "q", "most": 10}, "is not from 1 to 9: 10"),
    ):
        with pytest.raises(MessageFormatException, match=error):
            request_of("count_letters", given, table)


@pytest.mark.parametrize("operation", sorted(REQUESTS))
def test_each_request_has_a_description(operation: str) -> None:
    assert REQUESTS[operation].__doc__
