"""Operations on regions, and of the durable client that a connection is."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.request import Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import MAX_RANGE_BYTES, rows
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.engine.regions.interests import Interest, checked_interest, checked_key, expression, prepared
from broker_adapter.engine.regions.key_records import KeyState, Wanted
from broker_adapter.engine.regions.routing import check_numbers
from broker_adapter.engine.regions.stored_key import StoredKey
from broker_adapter.engine.store.region_snapshots import RegionSnapshot, position_of_token
from broker_adapter.engine.store.stores import Message
from broker_adapter.envelope import read_head
from broker_adapter.errors import (
    InvalidDestinationException,
    MessageFormatException,
    ResourceAllocationException,
    StoreCorruptException,
)
from broker_adapter.selectors.language import Selector, parse_selector

#: Keys that one request may change, name or be answered with, and interests that it may have.
MAX_KEYS: Final = 10_000
#: Keys that are changed, and the bytes of their messages, in one commit; more are changed in several.
CHANGED_AT_ONCE: Final = 1_000
_CHANGED_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
#: Keys that are read in one step.
_READ_AT_ONCE: Final = 500
#: What a key takes in an answer beside its name and its value, in bytes.
_KEY_BYTES: Final = 32
#: Keys that are passed in one step, where a snapshot is divided.
_PASSED_AT_ONCE: Final = 20_000
#: Parts that a snapshot is divided into at most.
_MOST_PARTS: Final = 10_000


@request(Threads.INTEREST)
class CreateRegionRequest(Request):
    """True, when the region exists."""

    region: str = argument(names=Names.TOPIC, note="its name")
    conflates: bool | None = argument(None, note="without it, as it is")

    def steps(self, client: int) -> Steps:
        yield e.MakeRegion(self.region, conflates=self.conflates)
        return True


@request(Threads.CHANGING)
class ChangeKeysRequest(Request):
    """(operation, version) of each, in order.

    The change is 0 (put), 1 (invalidate) or 2 (destroy); the operation is 0 (create), 1 (update), 2 (invalidate), 3
    (destroy), or None where nothing has changed.  What was changed before, as the message's identity says, is not
    changed again: where it was the key's last change, the answer is that of then, else None and the key's version.  Up
    to 1,000 of them are one commit.
    """

    region: str = argument(names=Names.TOPIC)
    changes: Sequence[Any] = argument(most_values=MAX_KEYS, note="(key, change, packed envelope) each")

    def steps(self, client: int) -> Steps:
        changes = [key_change(*each) for each in rows("changes", self.changes, (str, int, bytes))]
        done: list[tuple[int | None, int]] = []
        for part in in_parts(changes, lambda each: len(each.message.payload), CHANGED_AT_ONCE, _CHANGED_BYTES_AT_ONCE):
            answers = yield e.ChangeKeys(self.region, part)
            done += [(None if operation is None else int(operation), version) for operation, version in answers]
        return done


def key_change(key: str, wanted: int, payload: bytes) -> e.KeyChange:
    """A change as a client asks for it.

    Args:
        key: the key.
        wanted: number of a :class:`Wanted`.
        payload: the packed envelope that tells of it, of a put with the value.

    Raises:
        InvalidDestinationException: it can be no key.
        MessageFormatException: there is no such change, or no envelope.
    """
    if not 0 <= wanted < len(Wanted):
        kinds = ", ".join(f"{each.value} ({each.name})" for each in Wanted)
        raise MessageFormatException(f"{reprlib.repr(wanted)} is no change of a key: {kinds}")
    return e.KeyChange(checked_key(key), Wanted(wanted), c.from_head(payload, read_head(payload)))


@request(Threads.READING)
class ReadKeysRequest(Request):
    """``entries``: (key, version, state, message-format, payload) of each key that is there.

    The state is 0 (it has a value) or 1 (it has none); they are in the order of the keys' bytes, or as they were named.
    ``next``: the last key that was examined, where there are more, else None; ``position``: of the last event as this
    began.  Every change up to that position is in the answer; some behind it may be, and their versions say so.  Of a
    snapshot, nothing behind its position is.  ``damaged``: with ``skip_damaged``, the keys that were left out, whose
    values cannot be trusted.
    """

    region: str = argument(names=Names.TOPIC)
    keys: Sequence[str] | None = argument(None, most_values=MAX_KEYS, note="without them, all")
    after: str | None = argument(None, note="a key, of all those behind it")
    values: bool = argument(True)
    selector: str | None = argument(None)
    expression: str | None = argument(None, note="a regular expression for the whole key")
    max_bytes: int = argument(MAX_RANGE_BYTES, least=1)
    skip_damaged: bool = argument(False)
    snapshot: str | None = argument(None, note="without one, what is there now")
    through: str | None = argument(None, note="of all keys, the last one that is wanted")

    def steps(self, client: int) -> Steps:
        choice = _Choice(
            None if self.expression is None else expression(self.expression),
            None if self.selector is None else parse_selector(self.selector),
        )
        keys = _Keys(self.region, self.keys, self.after, self.through)
        room = min(self.max_bytes, MAX_RANGE_BYTES)
        first_position: int | None = None
        found: list[tuple[Any, ...]] = []
        damaged: list[str] = []
        while True:
            page = _Page(keys, self.snapshot, choice, room, with_values=self.values)
            position = yield page.read
            first_position = position if first_position is None else first_position
            found += page.answers(skip_damaged=self.skip_damaged)
            damaged += page.damaged
            room -= page.size
            if page.next is None or room <= 0 or len(found) >= MAX_KEYS:
                return {"position": first_position, "entries": found, "next": page.next, "damaged": damaged}
            names = None if keys.names is None else keys.names[page.covered :]
            keys = keys._replace(names=names, after=page.next)


@request(Threads.READING)
class OpenSnapshotRequest(Request):
    """``snapshot``: what names it from any connection.

    That is until it was not read for ``region_snapshot_seconds``, the store needs the room, or the engine starts again;
    as long as no event of any region happens behind it, what is there then is read in its place, and else the request
    is refused.  ``position``: of its last event.  ``splits``: keys in order, so that up to each of them there are this
    many, those that were destroyed lately included.
    """

    region: str = argument(names=Names.TOPIC)
    keys_per_part: int = argument(0, note="0: it is not divided")

    def steps(self, client: int) -> Steps:
        name, part = self.region, self.keys_per_part

        token, region = yield lambda reader: reader.open_snapshot(name)

        def pass_over(last: str | None, left: int, reader: Reader) -> tuple[int, str | None]:
            found = reader.open_one(token, region)
            return (0, None) if found is None else found.key_ahead(last, min(left, _PASSED_AT_ONCE))

        splits: list[str] = []
        after: str | None = None
        while part and len(splits) < _MOST_PARTS:
            left, last = part, after
            while left:
                passed, last = yield partial(pass_over, last, left)
                left -= passed
                if last is None:
                    break
            if last is None:
                break
            splits.append(last)
            after = last
        position, _ = position_of_token(token)
        return {"snapshot": token, "position": position, "splits": splits}


@request(Threads.READING)
class CloseSnapshotRequest(Request):
    """Whether it was open, and one of this region."""

    region: str = argument(names=Names.TOPIC)
    snapshot: str = argument()

    def steps(self, client: int) -> Steps:
        token, name = self.snapshot, self.region

        def close(reader: Reader) -> bool:
            region = reader.state.events.regions.get(name)
            if region is None or reader.open_one(token, region.id) is None:
                return False
            return reader.snapshots.drop(token)

        return (yield close)


class _Choice(NamedTuple):
    """Which keys are wanted; None: all."""

    matches: Callable[[str], bool] | None
    selector: Selector | None


class _Keys(NamedTuple):
    """Keys that are to be read: those that are named, or a range of all."""

    region: str
    names: Sequence[str] | None  #: None: all
    after: str | None  #: of all keys, those behind this one
    through: str | None  #: of all keys, those up to this one; None: to the last there is


class _Page:
    """Keys that are read in one step.

    Attributes:
        size: bytes that they take in an answer.
        damaged: keys whose values cannot be trusted, and that were left out of the answers.
        covered: how many of the keys that were named are among them, or are not there.
        next: the last key that was examined, where there may be more; None: there are none.
    """

    def __init__(
        self,
        wanted: _Keys,
        token: str | None,
        choice: _Choice,
        room: int,
        *,
        with_values: bool,
    ) -> None:
        """A page that was not read yet.

        Args:
            wanted: the first ones of these.
            token: of the snapshot that is read; None: what is there now.
            choice: which of them are wanted.
            room: bytes that they may take in the answer, but for the last one.
            with_values: whether their values are wanted.
        """
        self._wanted = wanted
        self._token = token
        self._choice = choice
        self._room = room
        self._with_values = with_values
        self._found: list[tuple[StoredKey, Message | None]] = []
        self.size = 0
        self.covered = 0
        self.next: str | None = None
        self.damaged: list[str] = []

    def read(self, reader: Reader) -> int:
        """Read it; returns the position of the last event by now."""
        state, token = reader.state.events, self._token
        name, wanted, after, through = self._wanted
        region = state.regions.get(name)
        if region is None:
            raise InvalidDestinationException(f"there is no region {name!r}: create it first")
        view = reader if token is None else reader.snapshot(token, region.id, name)
        position = view.position if isinstance(view, RegionSnapshot) else state.head
        matches, selector = self._choice
        needs_values = self._with_values or selector is not None
        if wanted is None:
            keys = view.keys_behind(region.id, after, _READ_AT_ONCE, places=needs_values)
            has_more = len(keys) == _READ_AT_ONCE
            if through is not None and keys and keys[-1].key.encode() >= through.encode():
                last = through.encode()
                keys = [each for each in keys if each.key.encode() <= last]
                has_more = False
        else:
            names = wanted[:_READ_AT_ONCE]
            keys = [view.key(region.id, each) for each in names]
            has_more = len(names) < len(wanted)
        sizes = [_KEY_BYTES + len(each.key) + (each.size if needs_values else 0) for each in keys]
        for each in sizes:
            if self.covered and self.size + each > self._room:
                has_more = True
                break
            self.size += each
            self.covered += 1
        keys = keys[: self.covered]
        self.next = keys[-1].key if has_more else None
        there = [each for each in keys if each.record is not None and each.record.state is not KeyState.TOMBSTONE]
        if matches is not None:
            there = [each for each in there if matches(each.key)]
        values = view.values(there) if needs_values else [None] * len(there)
        found = zip(there, values, strict=True)
        if selector is None:
            self._found = list(found)
        else:
            self._found = [each for each in found if reader.is_wanted(selector, *each)]
        return position

    def answers(self, *, skip_damaged: bool) -> list[tuple[Any, ...]]:
        """(key, version, state, format, payload) of each, the last two None where it has no value.

        Args:
            skip_damaged: whether a value that cannot be trusted is left out.

        Raises:
            StoreCorruptException: a value cannot be trusted.
        """
        answers: list[tuple[Any, ...]] = []
        for stored, value in self._found:
            record = stored.record
            assert record is not None
            if value is None and self._with_values and record.state is KeyState.VALID:
                if skip_damaged:
                    self.damaged.append(stored.key)
                    continue
                raise StoreCorruptException(
                    f"the value of key {stored.key!r} of region {self._wanted.region!r} cannot be trusted: a checksum"
                    " is wrong; put the key again, or leave such keys out (skip_damaged)"
                )
            if value is None or not self._with_values:
                answers.append((stored.key, record.version, int(record.state), None, None))
                continue
            answers.append((stored.key, record.version, int(record.state), *value))
        return answers


@request(Threads.INTEREST)
class RegisterInterestRequest(Request):
    """The position behind which events are queued for the connection's durable client.

    The kind is 0 (one key), 1 (all keys), 2 (a regular expression), 3 (a selector) or 4 (a query, which has a name).
    """

    region: str = argument(names=Names.TOPIC)
    interests: Sequence[Any] = argument(most_values=MAX_KEYS, note="(kind, text, name) each")
    durable: bool = argument(False)

    def steps(self, client: int) -> Steps:
        wanted = rows("interests", self.interests, (int, str, str))
        check_numbers([Interest(*each) for each in wanted])  # ahead: each is compiled now
        interests = [checked_interest(*each) for each in wanted]
        ready = prepared(interests)
        return (yield e.RegisterInterest(client, self.region, interests, self.durable, prepared=ready))


@request(Threads.INTEREST)
class UnregisterInterestRequest(Request):
    """True.

    With ``drop_queued`` what waits for these queries alone is dropped.
    """

    region: str = argument(names=Names.TOPIC)
    interests: Sequence[Any] = argument(most_values=MAX_KEYS, note="(kind, text, name) each")
    drop_queued: bool = argument(False)

    def steps(self, client: int) -> Steps:
        interests = [checked_interest(*each) for each in rows("interests", self.interests, (int, str, str))]
        drops = self.drop_queued
        yield e.UnregisterInterest(client, self.region, interests, drop_queued=drops)
        return True


@request(Threads.EVENTS)
class ReadyForEventsRequest(Request):
    """True.

    The connection's durable client gets its events from now on.
    """

    def steps(self, client: int) -> Steps:
        yield e.ReadyForEvents(client)
        return True


@request(Threads.EVENTS)
class AcknowledgeEventsRequest(Request):
    """How many events of the connection's durable client end, which has processed them."""

    through: int = argument(note="a position")

    def steps(self, client: int) -> Steps:
        return (yield e.AcknowledgeEvents(client, self.through))


@request(Threads.EVENTS)
class LeaveRequest(Request):
    """Whether the queue of the connection's durable client, which closes, stays.

    It does with ``keep``, if it has a durable interest.
    """

    keep: bool = argument()

    def steps(self, client: int) -> Steps:
        return (yield e.LeaveDurable(client, self.keep))


@request(Threads.EVENTS)
class PendingEventsRequest(Request):
    """How many events waited for the durable client as it connected.

    -1: it was away for too long, -2: it had no queue.
    """

    def steps(self, client: int) -> Steps:

        def pending(reader: Reader) -> int:
            return reader.state.events.durable_client(client).pending

        yield c.ResolveCommit(
            c.CommitId("", 0)
        )  # what the connection has handed over before, as its attach, is done then
        return (yield pending)


@request(Threads.EVENTS)
class EventPositionsRequest(Request):
    """``run``: in which run of the engine events have their positions from now on.

    None where the store has no room for a note of that.  ``kept``: positions of events below it, seen in the run that
    was asked about, are known to be still those of the same events.
    """

    run: str | None = argument(None)

    def steps(self, client: int) -> Steps:

        def positions(reader: Reader) -> dict[str, Any]:
            log = reader.state.events.events
            if log is None:  # no region, so no event has a position
                return {"run": None, "kept": 1}
            kept = reader.kept(log, self.run)
            try:
                run = reader.run(log)
            except ResourceAllocationException:  # what the client has says as much
                run = None
            return {"run": run, "kept": kept}

        return (yield positions)
