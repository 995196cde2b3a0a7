"""Operations of those who look after an engine: on all durable clients, their queries, and regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.clients.states import Refusal, State
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.errors import IllegalStateException, JMSException, MessageFormatException

#: Clients, regions or queries in one answer, at most.
MAX_DESCRIBED: Final = e.MOST_DESCRIBED
#: Clients that are examined in one step, and their interests, after which a step ends.
_AT_ONCE: Final = 200
_INTERESTS_AT_ONCE: Final = 20_000
#: What an interest takes in an answer beside its texts, in bytes, about.
_INTEREST_BYTES: Final = 64


@request(Threads.DESCRIBING)
class ClientsRequest(Request):
    """``clients``, by their ids, and ``next``: the last id, where there may be more behind it, else None.

    Of each durable client: ``client_id``, ``state`` ("connected", "live", "paused", "draining" or "timed_out"),
    ``timeout_ms`` (how long it may be away; None: for ever), ``away_ms`` (for how long it has been; None: it is here),
    ``conflation`` ("server", "true" or "false"), ``interest_count``, ``size`` (events in its queue), ``in_hand`` (of
    these, sent and not acknowledged) and ``is_exact`` (false: ``size`` and ``queued`` may be less).  Events, counted
    since it came first: ``queued`` (that came for it), ``dispatched`` (sent, repetitions included), ``again`` (sent,
    but not acknowledged before the connection was lost), ``removed`` (acknowledged), ``conflated`` (left out for newer
    updates), ``drained`` (removed with a query that was closed), ``dropped`` (lost with its queue, or unreadable) and
    ``while_away`` (that came while it was away); also ``reconnections``.  Always ``queued`` = ``removed`` +
    ``conflated`` + ``drained`` + ``dropped`` + ``size``.  Of one client also ``interests``, the first 1,000 at most:
    ``region``, ``kind`` ("key", "all_keys", "expression", "selector" or "query"), ``text``, ``name`` (of a query) and
    ``durable``.  An unknown client is an error.
    """

    client_id: str | None = argument(None, names=Names.TOPIC, note="of one; without it, of all")
    after: str | None = argument(None, note="an id, of all those behind it")
    limit: int = argument(100, least=1, most=MAX_DESCRIBED)

    def steps(self, client: int) -> Steps:
        client_id, after, limit = self.client_id, self.after or "", self.limit
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


@request(Threads.DESCRIBING)
class QueueSizeRequest(Request):
    """``state``, ``size``, ``in_hand`` and ``is_exact`` of a durable client, as in ``clients``."""

    client_id: str = argument(names=Names.TOPIC)

    def steps(self, client: int) -> Steps:
        found = _client((yield from _described(self.client_id, most_interests=0)))
        return {name: found[name] for name in ("state", "size", "in_hand", "is_exact")}


@request(Threads.DESCRIBING)
class RegionsRequest(Request):
    """``regions``, by their names, and ``next`` as in ``clients``.

    Of each: ``name``, ``conflates``, ``keys`` (that are there, those without a value included), ``clients`` (durable
    ones that want something of it) and ``events`` (that are stored).
    """

    after: str | None = argument(None, note="a name")
    limit: int = argument(100, least=1, most=MAX_DESCRIBED)

    def steps(self, client: int) -> Steps:
        limit = self.limit
        found: Sequence[e.RegionDescription] = yield e.DescribeRegions(self.after or "", limit)
        return {"regions": [each._asdict() for each in found], "next": found[-1].name if len(found) == limit else None}


@request(Threads.DESCRIBING)
class QueriesRequest(Request):
    """``queries``, by client and name, and ``next``: (client id, name) of the last one, where there are more, else
    None.

    Of each continuous query: ``client_id``, ``name``, ``region``, ``selector``, ``durable``, and the ``state`` of its
    client.
    """

    client_id: str | None = argument(None, names=Names.TOPIC, note="of one; without it, of all")
    after: Sequence[str] | None = argument(None, most_values=2, note="the ``next`` of an answer")
    limit: int = argument(100, least=1, most=MAX_DESCRIBED)

    def steps(self, client: int) -> Steps:
        client_id, limit = self.client_id, self.limit
        after = _place(self.after)
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


@request(once=True)
class CloseClientRequest(Request):
    """``dropped``: how many events its queue had; ``is_exact``: false where they may have been fewer.

    A durable client that is connected is not closed, but an error.
    """

    client_id: str = argument(names=Names.TOPIC)

    def steps(self, client: int) -> Steps:
        client_id = self.client_id
        yield lambda reader: _check_queue(reader, client_id)
        dropped: e.DroppedQueue = yield e.CloseDurable(client_id)
        return {"dropped": dropped.size, "is_exact": dropped.is_exact}


@request(once=True)
class CloseQueryRequest(Request):
    """``dropped``: how many events were taken out of the queue of the durable client, which were for this query alone.

    It is an error where the client is connected; and until the answer the client cannot connect.
    """

    client_id: str = argument(names=Names.TOPIC)
    name: str = argument()

    def steps(self, client: int) -> Steps:
        client_id = self.client_id
        yield lambda reader: _check_queue(reader, client_id)
        return {"dropped": (yield e.CloseQuery(client_id, self.name))}


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
