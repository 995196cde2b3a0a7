"""Operations of a site that takes what gateways of other sites send.

Theory of operation
    The receiver keeps the position of the last message that it has applied, by who sent it, in the commit of the
    messages.  So what comes again is known, whatever became of the answer, and also where the batch is cut otherwise.

    A batch is applied up to the first message that is refused, and those behind that are refused as well are told with
    it; the rest comes in the next batch.  So no message that was refused stands below a position that is known.

    Messages that the sender keeps together are one transaction here as well: all are applied in one commit, or all are
    refused.

    The same message may come by several ways.  It is known by its number at the site where it was sent, and taken once.

    A sender has several batches under way.  Each says behind which position it stands, and is not looked at unless that
    is known: so none overtakes one that has failed or was cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence, Set
from itertools import chain, groupby
from operator import ge, gt
from typing import Any, Final, NamedTuple

import msgpack

from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, DestinationKind, checked_name
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.operations.reader import OperationsState, Reader
from broker_adapter.engine.operations.request import Request, Steps, Threads, argument, request
from broker_adapter.engine.queues.directory import named_queue
from broker_adapter.engine.queues.gateway_queue import HEAD, ORIGIN, SITES
from broker_adapter.engine.queues.limits import never as never_taken
from broker_adapter.engine.records.gateway_records import MAX_BATCH, MAX_SITE, destination_of
from broker_adapter.engine.records.layout import LAST_MESSAGE
from broker_adapter.engine.regions.interests import checked_key
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.engine.regions.stamps import Stamp, milliseconds_of
from broker_adapter.envelope import (
    ENVELOPE_FORMAT,
    Identity,
    check_identity,
    read_head,
)
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.packing import unpacked
from broker_adapter.settings import EngineSettings

#: The right to hand over what another site has sent.
GATEWAY: Final = "gateway"
#: By how much the clock of another site may be ahead: a change that is made later than it says would lose against it.
_MOST_AHEAD_MS: Final = 86_400_000
_PLACES: Final = {
    **{"queue": DestinationKind.QUEUE, "topic": DestinationKind.TOPIC},
    "region": DestinationKind.TOPIC,
}
#: Characters of the name of a sender.
_MAX_SENDER: Final = 500
_OPERATIONS: Final = {"create": Wanted.PUT, "update": Wanted.PUT, "destroy": Wanted.DESTROY}


@request(Threads.SHORT, right=GATEWAY)
class SiteRequest(Request):
    """The number of the server's site; 0: it has none."""

    def steps(self, client: int) -> Steps:
        return (yield lambda reader: reader.state.directory.settings.site)


class _Place:
    """Where messages of a batch go.

    Args:
        text: what the sender says.

    Attributes:
        destination: the destination, or the topic of a region.
        is_region: whether it is a region.
        unfit: why nothing can go to it; None: something can.
        places: that a message takes in queues and subscriptions.
        questions: to selectors and queries that a message asks.
    """

    def __init__(self, text: str) -> None:
        """Raise ValueError or LookupError where it is nothing."""
        kind, name = destination_of(text)
        self.destination = Destination(name, _PLACES[kind])
        self.is_region = kind == "region"
        self.unfit: str | None = None
        self.places = self.questions = 0

    def look(self, state: OperationsState) -> None:
        """Find out what can go to it now."""
        name = self.destination.name
        self.unfit = None
        self.places = state.directory.fan_out(self.destination) + (e.PLACES_IN_COMMIT if self.is_region else 1)
        try:
            if self.is_region:
                self.questions = state.events.region(name).questions
            elif named_queue(checked_name(name)).is_temporary:
                self.unfit = f"{name!r} is a temporary destination"
        except JMSException as error:
            self.unfit = error.reason


class _Kind(NamedTuple):
    """What messages of a batch have in common beside their payloads."""

    place: _Place
    format: int
    head: Sequence[Any] | None
    sites: Sequence[int]  #: that have seen them
    origin: int  #: the site where they were sent; 0: it is not known
    key: str = ""
    wanted: Wanted = Wanted.PUT
    stamp: Stamp = Stamp(0, 0)
    is_resolved: bool = False  #: whether their value resolves a conflict


class _Arrived(NamedTuple):
    """A message of another site."""

    position: int
    kind: _Kind
    message: c.NewMessage
    origin: c.Origin | None  #: where it was sent; None: it is not known
    unfit: str | None  #: why it cannot be read; None: it can


#: Messages that are taken as a whole, or not at all; one or more.
_Transaction = Sequence[_Arrived]


@request(Threads.GATEWAY, right=GATEWAY)
class ApplyBatchRequest(Request):
    """What a gateway of another site sends, in the order of its positions; a message is taken once.

    ``through``: the position of the last message that is done; what stands behind it was not looked at.  ``refused``:
    (position, reason) of the last ones of those.  ``applied``: the position that is known from now on: those up to it
    are not taken again.  ``repeated``: how many were known, or had come by another way.  A change of a key is made if
    its stamp is newer than that of the key; ``unchanged``: of those that were taken, how many were not.

    Where there is no room, nothing is taken, and the request may be repeated later.  Where ``behind`` is not known,
    nothing is taken, and ``through`` is 0.  It is refused where the server has no site, or the same one, or does not
    know ``after``.
    """

    site: int = argument(least=1, most=MAX_SITE, note="of the sender")
    sender: str = argument(note="which gateway of the site")
    after: int = argument(note="a position that the sender was told as ``applied``, or 0")
    behind: int = argument(0, note="that of the last message of the batch ahead, which may be under way, or 0")
    positions: Sequence[int] = argument(most_values=MAX_BATCH, note="of the messages, each greater than the last one")
    messages: Sequence[bytes] = argument(most_values=MAX_BATCH, note="their payloads")
    kinds: Sequence[bytes] = argument(most_values=MAX_BATCH, note="as ``read_gateway`` has them, each once")
    kind_of: Sequence[int] = argument(most_values=MAX_BATCH, note="for each message the place of its kind, from 0 on")
    numbers: Sequence[int] = argument(most=LAST_MESSAGE, most_values=MAX_BATCH, note="as ``read_gateway`` has them")
    previous: Sequence[int] = argument(most=LAST_MESSAGE, most_values=MAX_BATCH, note="likewise")
    joined: Sequence[int] = argument((), most_values=MAX_BATCH, note="likewise")

    def steps(self, client: int) -> Steps:
        places: dict[str, _Place] = {}
        waiting = deque(_transactions(self._arrived(places), frozenset(self.joined)))
        size = sum(map(len, self.messages)) + sum(map(len, self.kinds))
        group, name = f"{c.GATEWAY_GROUP}{self.site}/{self.sender}", self.sender.rpartition("/")[0]

        def look(reader: Reader) -> tuple[int, Sequence[_Transaction], Sequence[tuple[int, str]]]:
            settings = reader.state.directory.settings
            _check_site(settings.site, self.site)
            if size > settings.max_gateway_batch_bytes and len(self.messages) > 1:
                raise MessageFormatException(
                    f"batch of {size} bytes is larger than the limit of {settings.max_gateway_batch_bytes} bytes"
                    " (max_gateway_batch_bytes)"
                )
            known = reader.last_published(group) or 0
            if known < self.after:
                raise IllegalStateException(
                    f"gateway {self.sender!r} of site {self.site} was told position {self.after}, and {known} is known"
                    " at the other site: its store was restored from an older copy, or lost, so messages may be missing"
                    f" there; recover it (docs/gateways.md), then go on here: holdfast gateway alter {name} --forget"
                )
            while waiting and waiting[0][0].position <= known:
                transaction = waiting.popleft()
                if transaction[-1].position > known:
                    waiting.appendleft([each for each in transaction if each.position > known])
            if known_before is None:  # what changes meanwhile fails the commit
                for place in places.values():
                    place.look(reader.state)
            return known, *_next(waiting, reader.state)

        unchanged = repeated = 0
        known_before: int | None = None
        while True:
            known, taken, refused = yield look
            if known < self.behind:
                return {"through": 0, "refused": [], "applied": known, "repeated": 0, "unchanged": 0}
            if known_before is None:
                known_before = known
            if not taken:
                break
            done: c.Applied = yield _commit(client, group, known, taken)
            if done.known == taken[-1][-1].position:  # else another connection has brought some of them meanwhile
                unchanged += done.unchanged
                repeated += done.repeated
        return {
            "through": refused[-1][0] if refused else min([known, *self.positions[-1:]]),
            "refused": refused,
            "applied": known,
            "repeated": bisect_right(self.positions, known_before) + repeated,
            "unchanged": unchanged,
        }

    def _arrived(self, places: dict[str, _Place]) -> Sequence[_Arrived]:
        """Return the messages; raises MessageFormatException where they have not the form that such have.

        Args:
            places: gets where they go, by what the sender says of it.
        """
        if {*map(len, (self.messages, self.kind_of, self.numbers, self.previous))} != {len(self.positions)}:
            raise MessageFormatException("operation 'apply_batch' needs a position, a kind and numbers of each message")
        if any(map(ge, self.positions, self.positions[1:])):
            raise MessageFormatException("the positions of a batch do not grow")
        if len(self.sender) > _MAX_SENDER:
            raise MessageFormatException(f"the sender of a batch has a name of more than {_MAX_SENDER} characters")
        columns = self.positions, self.kind_of, self.numbers, self.previous, self.messages
        try:
            kinds = [_kind(each, self.site, places) for each in self.kinds]
            return [
                _arrived(position, kinds[kind], number, previous, payload)
                for position, kind, number, previous, payload in zip(*columns, strict=True)
            ]
        except (LookupError, TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
            raise MessageFormatException(f"a message of a batch is none: {error}") from error


def _next(
    waiting: Iterable[_Transaction], state: OperationsState
) -> tuple[Sequence[_Transaction], Sequence[tuple[int, str]]]:
    """Return the transactions of the next commit, or else position and reason of the messages that are refused ahead.

    A commit sends first, and then changes keys.  So that no transaction comes between the parts of another one, what
    has both is a commit of its own.
    """
    taken: list[_Transaction] = []
    refused: list[tuple[int, str]] = []
    load = _Load(state.directory.settings)
    for transaction in waiting:
        reasons = _refusals(transaction, state)
        if reasons and not taken:
            refused += [(each.position, reason) for each, reason in zip(transaction, reasons, strict=True)]
            continue
        if reasons or refused:
            break
        is_too_much = load.add(transaction) is not None
        if taken and (is_too_much or _is_mixed(transaction) or _is_mixed(taken[-1])):
            break
        taken.append(transaction)
    return taken, refused


def _is_mixed(transaction: _Transaction) -> bool:
    """Return whether a transaction has messages and changes of keys."""
    return len(transaction) > 1 and len({each.kind.place.is_region for each in transaction}) > 1


def _transactions(arrived: Sequence[_Arrived], joined: Set[int]) -> Sequence[_Transaction]:
    """Divide messages into what is to be taken as a whole; ``joined``: positions of what belongs to the one ahead."""
    found: list[list[_Arrived]] = []
    for each in arrived:
        if found and each.position in joined:
            found[-1].append(each)
        else:
            found.append([each])
    return found


#: What :class:`_Load` counts, as errors say it.
_LIMITS: Final = (
    "messages (option max_transaction_messages)",
    "bytes (option max_transaction_bytes)",
    "places in queues (limit max_transaction_entries)",
    "questions to selectors and queries",
)


class _Load:
    """What a commit would take, beside the limits of a transaction."""

    def __init__(self, settings: EngineSettings) -> None:
        transaction = settings.max_transaction_messages, settings.max_transaction_bytes
        self._most = *transaction, settings.max_transaction_entries, e.QUESTIONS_IN_COMMIT
        self._takes = 0, 0, 0, 0

    def add(self, transaction: _Transaction) -> str | None:
        """Add messages; returns which limit the commit exceeds now, or None."""
        messages, size, places, questions = self._takes
        for each in transaction:
            place = each.kind.place
            messages += 1
            size += len(each.message.payload)
            places += place.places
            questions += place.questions
        self._takes = messages, size, places, questions
        if not any(map(gt, self._takes, self._most)):
            return None
        limits = zip(self._takes, self._most, _LIMITS, strict=True)
        return next(f"{found} is more than the limit of {most} {what}" for found, most, what in limits if found > most)


def _commit(client: int, group: str, known: int, transactions: Sequence[_Transaction]) -> c.Commit:
    """The commit of some messages: those of queues and topics, and the changes of keys, both in order."""
    arrived = list(chain.from_iterable(transactions))
    sends = [each for each in arrived if not each.kind.place.is_region]
    changed = [each for each in arrived if each.kind.place.is_region]
    joined: list[bool] = []
    if len(transactions) < len(arrived):
        heads = {transaction[0].position for transaction in transactions}
        joined = [each.position not in heads for each in (*sends, *changed)]
        if len(transactions) == 1:  # its first one may be a change, which comes behind what is sent
            joined = [False, *[True] * (len(arrived) - 1)]
    parts = [
        e.ChangeKeys(
            region.destination.name,
            [
                e.KeyChange(
                    *(kind.key, kind.wanted, message),
                    stamp=kind.stamp,
                    sites=kind.sites,
                    is_resolved=kind.is_resolved,
                )
                for _, kind, message, *_ in run
            ],
        )
        for region, run in groupby(changed, key=lambda each: each.kind.place)
    ]
    ways = [each.kind.sites for each in sends], [each.origin for each in sends]
    batch = c.SiteBatch(group, known, arrived[-1].position, *ways, joined)
    sent = [(each.kind.place.destination, each.message) for each in sends]
    return c.Commit(client, None, sent, [], changes=parts, batch=batch)


def _check_site(own: int, other: int) -> None:
    if not own:
        raise IllegalStateException("this server takes nothing from other sites: it has no site (option site)")
    if own == other:
        raise IllegalStateException(f"site {other} sends to itself: each site needs a number of its own (option site)")


def _kind(packed: bytes, site: int, places: dict[str, _Place]) -> _Kind:
    """A kind of the messages of a batch; raises various errors where it has not the form that such a one has.

    Args:
        packed: as the sender has sent it.
        site: of the sender.
        places: of the batch so far, by what is said of them; those of one destination are the same object, so that
            messages of a commit can be taken as a run.
    """
    found = unpacked(packed)
    text, message_format, origin = found["to"], found["format"], found[ORIGIN]
    place = places.get(text) or places.setdefault(text, _Place(text))
    if type(message_format) is not int or not 0 <= message_format < 1 << 32:
        raise ValueError("it has a format that none can have")
    if type(origin) is not int or not 0 <= origin <= MAX_SITE:
        raise ValueError("it has an origin that none can have")
    kind = _Kind(place, message_format, found.get(HEAD), _sites(site, found[SITES]), origin)
    if not place.is_region:
        return kind
    stamp = Stamp(*found["stamp"])
    if not (0 < stamp.time < 1 << 63 and 0 <= stamp.site <= MAX_SITE) or {*map(type, stamp)} != {int}:
        raise ValueError("it has a stamp that none can have")
    key, is_resolved = found["key"], found.get("resolved") is True
    checked_key(key)
    return kind._replace(key=key, wanted=_OPERATIONS[found["operation"]], stamp=stamp, is_resolved=is_resolved)


def _arrived(position: int, kind: _Kind, number: int, previous: int, payload: bytes) -> _Arrived:
    """A message of a batch; raises various errors where it has not the form that such a one has."""
    unfit = None
    try:
        message = message_of(kind.format, payload, kind.head)
    except MessageFormatException as error:
        message, unfit = c.NewMessage(kind.format, payload), error.reason
    if kind.place.is_region and milliseconds_of(kind.stamp) > epoch_ms() + _MOST_AHEAD_MS:
        unfit = "the stamp of the change is more than a day ahead of the clock of this site"
    origin = None
    if kind.origin:
        if previous >= number:
            raise ValueError("it has an origin that none can have")
        origin = c.Origin(kind.origin, number, previous)
    return _Arrived(position, kind, message, origin, unfit)


def _sites(sender: int, others: Sequence[int]) -> Sequence[int]:
    """The sites that have seen a message; raises ValueError or TypeError where they are none."""
    sites = sorted({sender, *others})
    if not 0 < sites[0] <= sites[-1] <= MAX_SITE or not all(type(each) is int for each in sites):
        raise ValueError("it has a site that none can be")
    return sites


def message_of(message_format: int, payload: bytes, head: Sequence[Any] | None) -> c.NewMessage:
    """A message that comes in; ``head``: see :func:`~broker_adapter.engine.queues.gateway_queue.head_of`."""
    if message_format == ENVELOPE_FORMAT:
        return c.from_head(payload, read_head(payload))
    if head is None:
        return c.NewMessage(message_format, payload)
    priority, persistent, expires_at_ms, deliver_at_ms, group, of = head
    numbers = priority, expires_at_ms or 0, deliver_at_ms or 0, group
    if not all(type(each) is int for each in numbers):
        raise ValueError("it has a head that none can have")
    identity = None
    if of is not None:
        check_identity(*of)
        identity = Identity(*of)
    times = expires_at_ms, deliver_at_ms
    made = c.incoming(message_format, payload, priority, persistent is True, *times, identity, None)
    return made._replace(group=group % (c.MAX_GROUP_NUMBER + 1))


def _refusals(transaction: _Transaction, state: OperationsState) -> Sequence[str]:
    """Why the messages of a transaction cannot be taken for good, of each of them; empty: they can."""
    settings = state.directory.settings
    most_bytes = settings.max_message_bytes
    reasons = [
        message_too_large(len(each.message.payload), most_bytes).reason
        if len(each.message.payload) > most_bytes
        else each.kind.place.unfit or each.unfit
        for each in transaction
    ]
    if any(reasons):
        first = next(filter(None, reasons))
        return [reason or f"another message of its transaction was refused: {first}" for reason in reasons]
    if len(transaction) == 1:
        return ()
    too_much = _Load(settings).add(transaction) or _never_fits(transaction, state)
    return [f"its transaction is too large for the other site: {too_much}"] * len(reasons) if too_much else ()


def _never_fits(transaction: _Transaction, state: OperationsState) -> str | None:
    """Why the messages of a transaction find no room in a queue, however empty; None: they may."""
    sizes: dict[Destination, list[int]] = {}
    for each in transaction:
        place = each.kind.place
        if not (place.is_region or place.destination.is_topic):
            sizes.setdefault(place.destination, []).append(len(each.message.payload))
    for destination, of_queue in sizes.items():
        settings = state.directory.policies.settings_of(destination)
        reason = never_taken(settings, "it", len(of_queue), sum(of_queue[:-1]))
        if reason is not None and settings.when_full == "block":
            return reason
    return None
