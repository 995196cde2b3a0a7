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
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
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
from broker_adapter.engine.queues.gateway_queue import HEAD, JOINED, ORIGIN, SITES
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


class _Arrived(NamedTuple):
    """A message of another site."""

    position: int
    place: tuple[Destination, bool]  #: where it goes; a region, if that is True
    message: c.NewMessage
    key: str
    wanted: Wanted
    stamp: Stamp
    sites: Sequence[int]  #: that have seen it
    origin: c.Origin | None  #: where it was sent; None: it is not known
    is_resolved: bool  #: whether its value resolves a conflict
    is_joined: bool  #: whether it belongs to the transaction of the one ahead
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
    messages: Sequence[bytes] = argument(most_values=MAX_BATCH, note="as ``read_gateway`` has them")

    def steps(self, client: int) -> Steps:
        if len(self.positions) != len(self.messages):
            raise MessageFormatException("operation 'apply_batch' needs a position for each message")
        if any(one >= other for one, other in zip(self.positions, self.positions[1:], strict=False)):
            raise MessageFormatException("the positions of a batch do not grow")
        if len(self.sender) > _MAX_SENDER:
            raise MessageFormatException(f"the sender of a batch has a name of more than {_MAX_SENDER} characters")
        places: dict[str, tuple[Destination, bool]] = {}
        arrived = [_arrived(*each, self.site, places) for each in zip(self.positions, self.messages, strict=True)]
        size = sum(map(len, self.messages))
        group, name = f"{c.GATEWAY_GROUP}{self.site}/{self.sender}", self.sender.rpartition("/")[0]

        def look(reader: Reader) -> tuple[int, Sequence[_Transaction], Sequence[tuple[int, str]]]:
            settings = reader.state.directory.settings
            _check_site(settings.site, self.site)
            if size > settings.max_gateway_batch_bytes and len(arrived) > 1:
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
            taken, refused = _next(arrived[bisect_right(self.positions, known) :], reader.state)
            return known, taken, refused

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


def _next(
    arrived: Sequence[_Arrived], state: OperationsState
) -> tuple[Sequence[_Transaction], Sequence[tuple[int, str]]]:
    """Return the transactions of the next commit, or else position and reason of the messages that are refused ahead.

    A commit sends first, and then changes keys.  So that no transaction comes between the parts of another one, what
    has both is a commit of its own.
    """
    places = {each.place for each in arrived}
    unfit = {place: _unfit(state, *place) for place in places}
    may_be_mixed = len({is_region for _, is_region in places}) > 1
    taken: list[_Transaction] = []
    refused: list[tuple[int, str]] = []
    for transaction in _transactions(arrived):
        reasons = _refusals(transaction, unfit, state)
        if reasons and not taken:
            refused += [(each.position, reason) for each, reason in zip(transaction, reasons, strict=True)]
        elif reasons or refused or (may_be_mixed and taken and (_is_mixed(transaction) or _is_mixed(taken[-1]))):
            break
        else:
            taken.append(transaction)
    return taken[: _at_once(taken, state)], refused


def _is_mixed(transaction: _Transaction) -> bool:
    """Return whether a transaction has messages and changes of keys."""
    return len({each.place[1] for each in transaction}) > 1


def _transactions(arrived: Sequence[_Arrived]) -> Sequence[_Transaction]:
    """Divide messages into what is to be taken as a whole."""
    found: list[list[_Arrived]] = []
    for each in arrived:
        if each.is_joined and found:
            found[-1].append(each)
        else:
            found.append([each])
    return found


class _Load:
    """What a commit would take, beside the limits of a transaction."""

    def __init__(self, state: OperationsState) -> None:
        self._state = state
        self._messages = self._bytes = self._places = self._questions = 0

    def add(self, transaction: _Transaction) -> str | None:
        """Add messages; returns which limit the commit exceeds now, or None."""
        for place, some in groupby(transaction, key=lambda each: each.place):
            destination, is_region = place
            sizes = [len(each.message.payload) for each in some]
            each_takes = (e.PLACES_IN_COMMIT if is_region else 1) + self._state.directory.fan_out(destination)
            self._places += each_takes * len(sizes)
            self._questions += self._state.events.region(destination.name).questions * len(sizes) if is_region else 0
            self._bytes += sum(sizes)
        self._messages += len(transaction)
        settings = self._state.directory.settings
        for found, most, what in (
            (self._messages, settings.max_transaction_messages, "messages (option max_transaction_messages)"),
            (self._bytes, settings.max_transaction_bytes, "bytes (option max_transaction_bytes)"),
            (self._places, settings.max_transaction_entries, "places in queues (limit max_transaction_entries)"),
            (self._questions, e.QUESTIONS_IN_COMMIT, "questions to selectors and queries"),
        ):
            if found > most:
                return f"{found} is more than the limit of {most} {what}"
        return None


def _at_once(transactions: Sequence[_Transaction], state: OperationsState) -> int:
    """Return how many of some transactions one commit may take; one at least."""
    if _Load(state).add(list(chain.from_iterable(transactions))) is None:
        return len(transactions)
    load = _Load(state)
    for count, each in enumerate(transactions):
        if load.add(each) is not None and count:
            return count
    return len(transactions)


def _commit(client: int, group: str, known: int, transactions: Sequence[_Transaction]) -> c.Commit:
    """The commit of some messages: those of queues and topics, and the changes of keys, both in order."""
    arrived = list(chain.from_iterable(transactions))
    sends = [each for each in arrived if not each.place[1]]
    changed = [each for each in arrived if each.place[1]]
    joined: list[bool] = []
    if len(transactions) < len(arrived):
        heads = {transaction[0].position for transaction in transactions}
        joined = [each.position not in heads for each in (*sends, *changed)]
        if len(transactions) == 1:  # its first one may be a change, which comes behind what is sent
            joined = [False, *[True] * (len(arrived) - 1)]
    parts = [
        e.ChangeKeys(
            region.name,
            [
                e.KeyChange(
                    *(each.key, each.wanted, each.message),
                    stamp=each.stamp,
                    sites=each.sites,
                    is_resolved=each.is_resolved,
                )
                for each in run
            ],
        )
        for (region, _), run in groupby(changed, key=lambda each: each.place)
    ]
    ways = [each.sites for each in sends], [each.origin for each in sends]
    batch = c.SiteBatch(group, known, arrived[-1].position, *ways, joined)
    return c.Commit(client, None, [(each.place[0], each.message) for each in sends], [], changes=parts, batch=batch)


def _check_site(own: int, other: int) -> None:
    if not own:
        raise IllegalStateException("this server takes nothing from other sites: it has no site (option site)")
    if own == other:
        raise IllegalStateException(f"site {other} sends to itself: each site needs a number of its own (option site)")


def _arrived(position: int, packed: bytes, site: int, places: dict[str, tuple[Destination, bool]]) -> _Arrived:
    """A message of another site; raises MessageFormatException where it has not the form that such a one has.

    Args:
        position: of the message.
        packed: as the sender has sent it.
        site: of the sender.
        places: of the batch so far, by what is said of them; those of one destination are the same object, so that
            messages of a commit can be taken as a run.
    """
    try:
        found = unpacked(packed)
        place = places.get(found["to"]) or places.setdefault(found["to"], _place(found["to"]))
        payload, message_format = found["payload"], found["format"]
        sites = [site] if found[SITES] == [] else _sites(site, found[SITES])
        if type(payload) is not bytes or type(message_format) is not int or not 0 <= message_format < 1 << 32:
            raise ValueError("it has a payload or a format that none can have")
        key, wanted, stamp = "", Wanted.PUT, Stamp(0, 0)
        if place[1]:
            key, wanted, stamp = found["key"], _OPERATIONS[found["operation"]], Stamp(*found["stamp"])
            if not (0 < stamp.time < 1 << 63 and 0 <= stamp.site <= MAX_SITE) or {*map(type, stamp)} != {int}:
                raise ValueError("it has a stamp that none can have")
            checked_key(key)
        origin = None if ORIGIN not in found else _origin(*found[ORIGIN])
        unfit = None
        try:
            message = message_of(message_format, payload, found.get(HEAD))
        except MessageFormatException as error:
            message, unfit = c.NewMessage(message_format, payload), error.reason
        if place[1] and milliseconds_of(stamp) > epoch_ms() + _MOST_AHEAD_MS:
            unfit = "the stamp of the change is more than a day ahead of the clock of this site"
    except (LookupError, TypeError, ValueError, AttributeError, msgpack.UnpackException) as error:
        raise MessageFormatException(f"the message at position {position} of a batch is none: {error}") from error
    is_joined, is_resolved = found.get(JOINED) is True, found.get("resolved") is True
    return _Arrived(position, place, message, key, wanted, stamp, sites, origin, is_resolved, is_joined, unfit)


def _sites(sender: int, others: Sequence[int]) -> Sequence[int]:
    """The sites that have seen a message; raises ValueError or TypeError where they are none."""
    sites = sorted({sender, *others})
    if not 0 < sites[0] <= sites[-1] <= MAX_SITE or not all(type(each) is int for each in sites):
        raise ValueError("it has a site that none can be")
    return sites


def _place(text: str) -> tuple[Destination, bool]:
    """Where a message goes; a region, if the second is True.  Raises ValueError or LookupError where it is nothing."""
    kind, name = destination_of(text)
    return Destination(name, _PLACES[kind]), kind == "region"


def _origin(site: int, number: int, previous: int) -> c.Origin:
    """The origin of a message; raises ValueError where it is none."""
    is_one = type(site) is type(number) is type(previous) is int
    if not is_one or not (0 < site <= MAX_SITE and 0 <= previous < number <= LAST_MESSAGE):
        raise ValueError("it has an origin that none can have")
    return c.Origin(site, number, previous)


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


def _unfit(state: OperationsState, destination: Destination, is_region: bool) -> str | None:
    """Why nothing can go to a place; None: something can."""
    try:
        if is_region:
            state.events.region(destination.name)
        elif named_queue(checked_name(destination.name)).is_temporary:
            return f"{destination.name!r} is a temporary destination"
    except JMSException as error:
        return error.reason
    return None


def _refusals(transaction: _Transaction, unfit: Mapping[Any, str | None], state: OperationsState) -> Sequence[str]:
    """Why the messages of a transaction cannot be taken for good, of each of them; empty: they can.

    Args:
        transaction: the messages.
        unfit: place → why nothing can go to it, or None.
        state: of the engine.
    """
    most_bytes = state.directory.settings.max_message_bytes
    reasons = [_refusal(each, unfit[each.place], most_bytes) for each in transaction]
    first = next((reason for reason in reasons if reason is not None), None)
    if first is None:
        if len(transaction) == 1:
            return ()
        too_much = _Load(state).add(transaction) or _never_fits(transaction, state)
        return [f"its transaction is too large for the other site: {too_much}"] * len(reasons) if too_much else ()
    return [reason or f"another message of its transaction was refused: {first}" for reason in reasons]


def _never_fits(transaction: _Transaction, state: OperationsState) -> str | None:
    """Why the messages of a transaction find no room in a queue, however empty; None: they may."""
    sizes: dict[Destination, list[int]] = {}
    for each in transaction:
        destination, is_region = each.place
        if not (is_region or destination.is_topic):
            sizes.setdefault(destination, []).append(len(each.message.payload))
    for destination, of_queue in sizes.items():
        settings = state.directory.policies.settings_of(destination)
        reason = never_taken(settings, "it", len(of_queue), sum(of_queue[:-1]))
        if reason is not None and settings.when_full == "block":
            return reason
    return None


def _refusal(arrived: _Arrived, unfit: str | None, most_bytes: int) -> str | None:
    """Why a message cannot be taken for good; None: it can.

    Args:
        arrived: the message.
        unfit: why nothing can go to its place.
        most_bytes: of a message.
    """
    size = len(arrived.message.payload)
    if size > most_bytes:
        return message_too_large(size, most_bytes).reason
    return unfit or arrived.unfit
