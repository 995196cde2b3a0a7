"""Acknowledgements that were given, and may not have reached the broker: remembered, to be repeated.

Theory of operation
    An acknowledgement costs no round trip, so it is not known which of the last ones the broker has when the connection
    is lost.  They are repeated: to our own broker before anything else is done on the restored connection, by the
    positions of their messages; to any other when their messages are redelivered, which the application does not see.

    How many must be remembered is bounded by the credit.  A broker takes what a client says in order: once it sends on
    credit that was granted after an acknowledgement, it has that acknowledgement.  So what was acknowledged more than
    two windows of deliveries ago has arrived (two, since a credit may overtake what is written together with it).

    A link may be lost alone, while the connection lives.  Which of the last acknowledgements on it the broker has is
    not known either; those of messages that are redelivered are repeated then.

    What the application has seen and not acknowledged is redelivered as well.  Not every broker says of such a message
    that it was delivered before, so that is remembered too.

    A message is recognized by its source and the identity that its producer gave it, or else by its message id.  One
    that has neither is redelivered as any other.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import (
    ConnectionLostException,
    Delivery,
    Envelope,
    Identity,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
)

_log = logging.getLogger("holdfast.sdk")

#: Most acknowledgements of a connection that wait for their message to be redelivered; the oldest is forgotten.
MAX_ACK_RECORDS: Final = 100_000
#: Deliveries beyond the windows of the consumers that an acknowledgement is remembered for.
_MARGIN: Final = 16
#: What a request raises where the network is away.
_AWAY: Final = (ConnectionLostException, OperationTimedOutException)
#: Positions in one request to our own broker.
_REQUEST_POSITIONS: Final = 5_000


@attrs.frozen
class Source:
    """A queue or subscription, of which messages are redelivered after a loss.  Named as our own broker names it."""

    destination: str
    kind: str = "queue"
    subscription: str | None = None
    client_id: str | None = None
    durable: bool | None = None  #: of a subscription: a durable one and one that is not may have the same name


#: What a message is recognised by: its source, and its identity or id, where it has either.
Key = tuple[Source, Identity | str | None]
#: An acknowledgement: the same; at which position of its source the message was, where the broker
#: says so; how many deliveries of it had failed before; and its message id.
AckRecord = tuple[Source, Identity | str | None, int | None, int, str | None]
#: Called with ids of messages that were acknowledged and that others have, or that are dead letters, since the
#: acknowledgements were lost.
TooLate = Callable[[list[str]], None]


#: Asks the broker something beyond messaging.
Request = Callable[[str, Mapping[str, Any], float | None], Any]


def ack_record_for(source: Source | None, envelope: Envelope, delivery: Delivery) -> AckRecord | None:
    """Return what to remember of a message, where it can be recognised.

    Args:
        source: what it came from; None: nothing of that is ever redelivered.
        envelope: the message.
        delivery: the message, as it came.
    """
    if source is None:
        return None
    name = envelope.identity or envelope.message_id
    if name is None and delivery.position is None:
        return None
    return source, name, delivery.position, delivery.delivery_count, envelope.message_id


def _is_another(known: AckRecord, record: AckRecord) -> bool:
    """Return whether this is another message, though it has the same name: producers may give one id twice."""
    return known[2] is not None and record[2] is not None and known[2] != record[2]


class _Untold:
    """Positions of what was seen, until that was reported to the broker.

    Attributes:
        positions: by source.
        is_known: whether that is all; False: there was more than ``MAX_ACK_RECORDS``, and none is remembered.
    """

    def __init__(self) -> None:
        self.positions: dict[Source, set[int]] = {}
        self.is_known = True
        self._count = 0

    def add(self, source: Source, positions: Iterable[int]) -> None:
        """These were seen."""
        if not self.is_known:
            return
        known = self.positions.setdefault(source, set())
        self._count -= len(known)
        known.update(positions)
        self._count += len(known)
        if self._count > MAX_ACK_RECORDS:
            self.is_known, self.positions = False, {}

    def add_all(self, other: _Untold) -> None:
        """What is in another one was seen as well."""
        self.is_known = self.is_known and other.is_known
        for source, positions in other.positions.items():
            self.add(source, positions)


class LostAcknowledgements:
    """The acknowledgements of a connection that were lost with the network; for all its sessions, from any thread.

    Also what was seen and not acknowledged.

    Attributes:
        store: of the broker that the connection leads to, or led to last; None: the broker does not say.
        moved_at: what deliveries carry since the connection leads to another store than before.
        refused_at: what deliveries carry since the broker refused to hear again what a loss took, which may be
            redelivered; 0: it has heard all.
    """

    def __init__(self, store: str | None = None) -> None:
        self.store = store
        self.moved_at = 0
        self.refused_at = 0
        self._lost: OrderedDict[Key, tuple[AckRecord, TooLate, str | None]] = OrderedDict()  #: with the store
        self._seen: OrderedDict[Key, AckRecord] = OrderedDict()
        self._untold = _Untold()
        self._changing = threading.RLock()  #: an OrderedDict whose keys hash in Python is not safe by itself

    @property
    def knows_any(self) -> bool:
        """Whether anything that comes may be known."""
        return bool(self._lost or self._seen)

    def __len__(self) -> int:
        return len(self._lost)

    def add(self, records: Iterable[AckRecord], too_late: TooLate, *, with_link: bool = False) -> None:
        """The acknowledgements of these were in transit when they were lost.

        Args:
            records: the messages.
            too_late: called with those that others have, or that are dead letters.
            with_link: as in ``add_seen``.
        """
        with self._changing:
            for each in records:
                if each[1] is not None:
                    self._lost[each[0], each[1]] = each, too_late, self.store
                elif not with_link:  # it is redelivered as any other
                    self._note_seen(each)
            while len(self._lost) > MAX_ACK_RECORDS:
                _, (forgotten, _, store) = self._lost.popitem(last=False)
                if store == self.store:
                    self._note_seen(forgotten)  # it is redelivered

    def add_seen(self, records: Iterable[AckRecord], *, with_link: bool = False) -> None:
        """The application had these when they were lost, and had not acknowledged them.

        Args:
            records: the messages.
            with_link: only their link was lost: the connection, whose loss the broker is told about, lives.
        """
        with self._changing:
            for each in records:
                if each[1] is not None:
                    self._seen[each[0], each[1]] = each
                if not with_link:
                    self._note_seen(each)
            while len(self._seen) > MAX_ACK_RECORDS:
                self._seen.popitem(last=False)

    def _note_seen(self, record: AckRecord) -> None:
        """The application had this: the delivery that was lost counts, which our own broker is to be told."""
        source, _, position = record[:3]
        if position is not None:
            with self._changing:
                self._untold.add(source, (position,))

    def was_seen(self, record: AckRecord) -> bool:
        """A message has come: returns whether the application had it before."""
        with self._changing:
            found = self._seen.get(record[:2])
            if found is None or _is_another(found, record):
                return False
            del self._seen[record[:2]]
            return True

    def take(self, record: AckRecord) -> bool:
        """A message has come: returns whether it was acknowledged already, which is to be said again."""
        with self._changing:
            found = self._lost.get(record[:2])
            if found is None or _is_another(found[0], record):
                return False
            del self._lost[record[:2]]
            return True

    def give_again(self, request: Request, token: str | None = None, epoch: int = 0) -> None:
        """Say all of it again to our own broker, before it hands anything out.

        What another consumer has in hand by now, or has processed since, is processed twice; what has failed too often
        by the loss is a dead letter.  Both are reported to the session.  What else is not there any more had arrived.
        What was lost at another store is kept for that, and what the broker refuses is repeated when its message is
        redelivered, and with the next call.

        Args:
            request: asks the broker, as ``Transport.request``.
            token: what the broker knows the lost connection by.
            epoch: what deliveries carry from now on.

        Raises:
            JMSException: the connection is lost again; nothing is forgotten.
        """
        refused = False
        with self._changing:
            lost = [(each, too_late) for each, too_late, store in self._lost.values() if store == self.store]
        told = {(each[0], each[2]): too_late for each, too_late in lost}
        failures = {each: each[3] for each, _ in lost}
        late: dict[TooLate, list[str]] = {}
        try:
            for part, answer in _asked(request, "settle_positions", failures, token, _says_what_is_lost):
                if answer is REFUSED:
                    refused, self.refused_at = True, epoch
                    for each in part:
                        self._note_seen(each)
                    continue
                settled, taken = (answer["settled"], set(answer["lost"])) if answer is not None else (0, set())
                _log.debug("= %d acknowledgements repeated, %d of which had not arrived", len(part), settled)
                for each in part:
                    self.take(each)
                    if answer is None or each[2] in taken:
                        self._note_seen(each)
                    if each[2] in taken:
                        late.setdefault(told[each[0], each[2]], []).append(each[4] or str(each[1]))
            if not refused:
                self.refused_at = 0
        finally:
            for too_late, ids in late.items():
                too_late(ids)

    def uncount_rest(self, request: Request, token: str) -> None:
        """Say to our own broker what was seen of a lost connection: all else that it had was lost on its way.

        Where more was seen than is remembered, all of it counts as seen.

        Args:
            request: asks the broker, as ``Transport.request``.
            token: what the broker knows the connection by.

        Raises:
            JMSException: the connection is lost again; nothing is forgotten.
        """
        with self._changing:
            untold, self._untold = self._untold, _Untold()
        try:
            if not untold.is_known:
                request("seen_rest", {"token": token}, None)
                _log.debug("= what was lost on its way counts as failed: too many messages were seen")
                return
            for source, seen in untold.positions.items():
                positions = sorted(seen)
                for first in range(0, len(positions), _REQUEST_POSITIONS):
                    part = positions[first : first + _REQUEST_POSITIONS]
                    with suppress(InvalidDestinationException):  # it went with the connection
                        request("seen", {**_named(source), "token": token, "positions": part}, None)
            done = request("uncount_rest", {"token": token}, None)
            _log.debug("= %s messages that were lost on their way do not count as failed", done)
        except BaseException as error:
            with self._changing:  # the broker could not be told: it may have to be with the next connection
                self._untold.add_all(untold)
            if not isinstance(error, JMSException) or isinstance(error, _AWAY):
                raise
            # The broker's disk is full, for example.
            _log.debug("= what was lost on its way counts as failed: %s", error)

    def move(self, store: str | None, epoch: int) -> None:
        """The connection leads to another store, where positions of what was seen mean nothing.

        Args:
            store: names it; None: the broker does not say.
            epoch: what deliveries carry from now on.
        """
        with self._changing:
            self.store, self.moved_at = store, epoch
            self._untold = _Untold()


def uncount_deliveries(
    request: Request, never_delivered: Iterable[tuple[AckRecord, int]], token: str | None = None
) -> None:
    """Say to our own broker that these, lost with the connection, were never delivered: do not count them as failed.

    Else a message that waits behind others in a client would become a dead letter by the losses of a bad network alone.

    Args:
        request: asks the broker, as ``Transport.request``.
        never_delivered: what had come, each with its deliveries that had failed before this one; so that asking twice
            takes back one delivery.
        token: what the broker knows the lost connection by.

    Raises:
        JMSException: the connection is lost again.
    """
    for part, done in _asked(request, "uncount", dict(never_delivered), token, lambda answer: type(answer) is int):
        if done is not None and done is not REFUSED:
            _log.debug("= of %d messages that were never delivered %d do not count as failed", len(part), done)


def _named(source: Source) -> dict[str, Any]:
    return {key: value for key, value in attrs.asdict(source).items() if value is not None}


def _says_what_is_lost(answer: Any) -> bool:
    """Return whether this is an answer to ``settle_positions``."""
    if not isinstance(answer, Mapping) or type(answer.get("settled")) is not int:
        return False
    lost = answer.get("lost")
    return isinstance(lost, list | tuple) and all(type(each) is int for each in lost)


def _asked(
    request: Request,
    operation: str,
    failures: Mapping[AckRecord, int],
    token: str | None,
    is_answer: Callable[[Any], bool],
) -> Iterator[tuple[list[AckRecord], Any]]:
    """Ask something of the messages that have a position, source by source, in parts.

    Yields:
        The part, and the answer; None: the queue or subscription is gone; ``REFUSED``: the broker does not do this now,
        or not at all, or its answer has another form.
    """
    by_source: dict[Source, list[AckRecord]] = {}
    for each in failures:
        if each[2] is not None:
            by_source.setdefault(each[0], []).append(each)
    for source, all_of_it in by_source.items():
        arguments = _named(source) if token is None else {**_named(source), "token": token}
        for first in range(0, len(all_of_it), _REQUEST_POSITIONS):
            part = all_of_it[first : first + _REQUEST_POSITIONS]
            named = [
                (each[2], list(each[1]) if isinstance(each[1], tuple) else each[1], failures[each]) for each in part
            ]
            answer = None
            try:
                answer = request(operation, {**arguments, "given": named}, None)
                if not is_answer(answer):
                    _log.warning(
                        "! %s of %d messages of %s was answered %.100r, which is taken for a refusal",
                        *(operation, len(part), source, answer),
                    )
                    answer = REFUSED
            except _AWAY:
                raise
            except InvalidDestinationException as error:
                # It went with the connection, say: nothing of it is redelivered.
                _log.debug("= %s of %s was not possible: %s", operation, source, error)
            except JMSException as error:  # the broker's disk is full, for example
                _log.warning("! %s of %d messages of %s was refused: %s", operation, len(part), source, error)
                answer = REFUSED
            yield part, answer


#: What was settled: how many deliveries there had been by then, its tag, and the message.
_Settled = tuple[int, DeliveryTag, AckRecord]


class Acknowledgements:
    """What one session has acknowledged lately.  Its calls are made one at a time, as those of its policy."""

    __slots__ = ("_delivered", "_held", "_reach", "_recent", "_returned", "_surplus", "lost", "too_late")

    def __init__(self, lost: LostAcknowledgements, too_late: TooLate) -> None:
        """Nothing so far.

        Args:
            lost: those of the connection.
            too_late: called with what was acknowledged in vain.
        """
        self.lost = lost
        self.too_late = too_late
        self._reach = _MARGIN  #: deliveries that an acknowledgement is remembered for
        #: Of these, those of consumers that have left without the broker's word: no more than are kept at a loss.
        self._surplus = 0
        self._delivered = 0
        self._held: dict[DeliveryTag, AckRecord] = {}
        self._recent: deque[_Settled] = deque()
        #: What was seen and given back, which is remembered as long.
        self._returned: deque[_Settled] = deque()

    def __len__(self) -> int:
        return len(self._recent)

    def widen(self, prefetch: int) -> None:
        """A consumer with this prefetch has joined."""
        self._reach += 2 * max(1, prefetch)

    def narrow(self, prefetch: int, *, confirmed: bool) -> None:
        """A consumer with this prefetch has left.

        Args:
            prefetch: the consumer's.
            confirmed: whether the broker has said so, and so has what was acknowledged before.
        """
        reach = 2 * max(1, prefetch)
        if confirmed:  # and so has what those had acknowledged that have left before
            self._reach -= reach + self._surplus
            self._surplus = 0
        else:
            surplus = min(self._surplus + reach, MAX_ACK_RECORDS)
            self._reach -= self._surplus + reach - surplus
            self._surplus = surplus
        self._shorten()

    def delivered(self, tag: DeliveryTag, record: AckRecord | None) -> None:
        """The application is about to see a message."""
        self._delivered += 1
        if record is not None:
            self._held[tag] = record

    def accepted(self, tag: DeliveryTag, record: AckRecord | None) -> None:
        """A message was delivered, and its acknowledgement is on its way: both in one step."""
        self._delivered = now = self._delivered + 1
        if record is not None:
            recent = self._recent
            recent.append((now, tag, record))
            if now - recent[0][0] > self._reach:
                recent.popleft()

    def settled(self, settlements: Iterable[Settlement]) -> None:
        """These are on their way to the broker."""
        held, recent, returned, now = self._held, self._recent, self._returned, self._delivered
        for tag, outcome in settlements:
            record = held.pop(tag, None)
            if record is not None:
                (recent if outcome is _ACCEPTED else returned).append((now, tag, record))
        self._shorten()

    def _shorten(self) -> None:
        """Forget what is out of reach.  ``accepted`` removes one for each that it adds, so it needs no more."""
        oldest = self._delivered - self._reach
        for settled in (self._recent, self._returned):
            while settled and settled[0][0] < oldest:
                settled.popleft()

    def committed(self, settlements: Iterable[Settlement]) -> None:
        """These are done, as the broker has said."""
        for tag, _ in settlements:
            self._held.pop(tag, None)

    def interrupted(self) -> None:
        """The connection was lost."""
        self.lost.add([record for _, _, record in self._recent], self.too_late)
        self.lost.add_seen([record for _, _, record in self._returned])
        self.lost.add_seen(self._held.values())
        self._recent.clear()
        self._returned.clear()
        self._held.clear()
        self._reach -= self._surplus
        self._surplus = 0

    def link_lost(self, link: int, *, for_good: bool) -> None:
        """The broker took back what came on this link.

        Args:
            link: in tags.
            for_good: whether it is not attached again: its queue was deleted, say, and nothing of that is redelivered.
        """
        held, returned, recent = self._held, self._returned, self._recent
        seen = [record for _, tag, record in returned if tag.link == link]
        seen += [record for tag, record in held.items() if tag.link == link]
        self.lost.add_seen(seen, with_link=True)
        if not for_good:
            self.lost.add([record for _, tag, record in recent if tag.link == link], self.too_late, with_link=True)
        self._held = {tag: record for tag, record in held.items() if tag.link != link}
        self._returned = deque([each for each in returned if each[1].link != link])
        if not for_good:
            self._recent = deque([each for each in recent if each[1].link != link])


#: The answer of a broker that does not do what it is asked.
REFUSED: Final = object()
_ACCEPTED = Outcome.ACCEPTED
