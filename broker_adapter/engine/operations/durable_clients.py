"""Operations of those who look after an engine: on all durable clients, their queries, and regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.clients.states import Refusal, State
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, Arguments, Steps
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.errors import IllegalStateException, JMSException, MessageFormatException

#: Clients, regions or queries in one answer, at most.
MAX_DESCRIBED: Final = e.MOST_DESCRIBED
#: Clients that are examined in one step, and their interests, after which a step ends.
_AT_ONCE: Final = 200
_INTERESTS_AT_ONCE: Final = 20_000
#: What an interest takes in an answer beside its texts, in bytes, about.
_INTEREST_BYTES: Final = 64


def clients(arguments: Arguments) -> Steps:
    """What there is to know of one durable client, or of a page of them."""
    client_id, after, limit = arguments["client_id"], arguments["after"] or "", arguments["limit"]
    if client_id is not None:
        one = yield from _described(client_id, most_interests=e.MOST_DESCRIBED)
        return {"clients": [{**_client(one), "interests": _interests(one.interests)}], "next": None}
    found: list[dict[str, Any]] = []
    while True:
        most = min(_AT_ONCE, limit - len(found))
        part: Sequence[e.ClientDescription] = yield e.DescribeClients(None, after, most, most_interests=0)
        found += map(_client, part)
        if len(part) < most:
            return {"clients": found, "next": None}
        after = part[-1].client_id
        if len(found) >= limit:
            return {"clients": found, "next": after}


def queue_size(arguments: Arguments) -> Steps:
    """How many events wait for a durable client."""
    found = _client((yield from _described(arguments["client_id"], most_interests=0)))
    return {name: found[name] for name in ("state", "size", "in_hand", "is_exact")}


def regions(arguments: Arguments) -> Steps:
    """What there is to know of a page of regions."""
    limit = arguments["limit"]
    found: Sequence[e.RegionDescription] = yield e.DescribeRegions(arguments["after"] or "", limit)
    return {"regions": [each._asdict() for each in found], "next": found[-1].name if len(found) == limit else None}


def queries(arguments: Arguments) -> Steps:
    """A page of the continuous queries of one durable client, or of all."""
    client_id, limit = arguments["client_id"], arguments["limit"]
    after = _place(arguments["after"])
    if client_id is not None:
        yield from _described(client_id, most_interests=0)
        names = [client_id]
    else:
        names = yield lambda reader: list(reader.state.events.clients.clients)
        names.sort()  # not in the step: there may be very many
    names = [each for each in names if each >= after[0]]
    found: list[dict[str, Any]] = []
    size = 0
    while names:
        page = _Queries(names, after)
        yield page.read
        names = names[page.covered :]
        for each in sorted(page.found):
            if len(found) >= limit or size >= MAX_RANGE_BYTES:
                return {"queries": found, "next": [found[-1]["client_id"], found[-1]["name"]]}
            found.append(each._asdict())
            size += _INTEREST_BYTES + len(each.client_id) + len(each.name) + len(each.region) + len(each.selector)
    return {"queries": found, "next": None}


def close_client(arguments: Arguments) -> Steps:
    """Close a durable client that is away."""
    client_id = arguments["client_id"]
    yield lambda reader: _check_queue(reader, client_id)
    dropped: e.DroppedQueue = yield e.CloseDurable(client_id)
    return {"dropped": dropped.size, "is_exact": dropped.is_exact}


def close_query(arguments: Arguments) -> Steps:
    """Close a query of a durable client that is away."""
    client_id = arguments["client_id"]
    yield lambda reader: _check_queue(reader, client_id)
    return {"dropped": (yield e.CloseQuery(client_id, arguments["name"]))}


class _Query(NamedTuple):
    """A query of a client."""

    client_id: str
    name: str
    region: str
    selector: str
    durable: bool
    state: str  #: of the client


class _Queries:
    """The queries of some clients, read in one step.

    Args:
        names: the ids of the clients, in order.
        after: of their queries, those behind this place.

    Attributes:
        found: the queries, in no order.
        covered: how many of the clients have been examined.
    """

    def __init__(self, names: Sequence[str], after: tuple[str, str]) -> None:
        self._names = names
        self._after = after
        self.found: list[_Query] = []
        self.covered = 0

    def read(self, reader: Reader) -> None:
        """Examine as many clients as a step may."""
        events = reader.state.events
        examined = 0
        for name in self._names[:_AT_ONCE]:
            self.covered += 1
            client = events.clients.clients.get(name)
            if client is None:  # it has closed meanwhile
                continue
            state = client.state.name.lower()
            for number, wanted in client.interests.items():
                region = events.by_number[number].name
                examined += len(wanted)
                self.found += [
                    _Query(name, each.name, region, each.text, durable, state)
                    for each, durable in wanted.items()
                    if each.kind is InterestKind.QUERY and (name, each.name) > self._after
                ]
            if examined >= _INTERESTS_AT_ONCE:
                return


def _described(client_id: str, *, most_interests: int) -> Steps:
    """The description of one client; raises IllegalStateException where there is none."""
    found = yield e.DescribeClients(client_id, most_interests=most_interests)
    if not found:
        raise _unknown(client_id)
    return found[0]


def _check_queue(reader: Reader, client_id: str) -> None:
    """Raises IllegalStateException where there is no such client, or it has no queue any more."""
    client = reader.state.events.clients.clients.get(client_id)
    if client is None:
        raise _unknown(client_id)
    if client.state is State.TIMED_OUT:
        raise IllegalStateException(
            f"durable client {client_id!r} has timed out: its queue and its queries are gone already, and there is"
            " nothing to close"
        )


def _unknown(client_id: str) -> JMSException:
    text = Refusal.UNKNOWN.error(client_id).reason
    return IllegalStateException(f"{text}; those that there are: request 'clients', or 'holdfast clients'")


def _client(found: e.ClientDescription) -> dict[str, Any]:
    """A client as plain data, without its interests."""
    fields = {**found._asdict(), **found.counters._asdict()}
    del fields["counters"], fields["interests"]
    return fields


def _interests(wanted: Sequence[e.InterestDescription]) -> list[dict[str, Any]]:
    """Interests as plain data; the first ones, where they are more than an answer can have."""
    return list(_fitting(wanted))


def _fitting(wanted: Sequence[e.InterestDescription]) -> Iterator[dict[str, Any]]:
    size = 0
    for region, interest, durable in wanted:
        size += _INTEREST_BYTES + len(region) + len(interest.text) + len(interest.name)
        if size > MAX_RANGE_BYTES:
            return
        yield {"region": region, **_interest(interest), "durable": durable}


def _interest(interest: Interest) -> dict[str, Any]:
    return {"kind": interest.kind.name.lower(), "text": interest.text, "name": interest.name}


def _place(given: Sequence[str] | None) -> tuple[str, str]:
    """Behind which query a page begins."""
    if given is None:
        return "", ""
    if len(given) != 2:
        raise MessageFormatException(
            "the argument 'after' of operation 'queries' is a client id and the name of a query, as 'next' was"
        )
    return given[0], given[1]
