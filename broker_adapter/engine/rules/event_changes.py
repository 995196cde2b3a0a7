"""How keys of regions change, and how durable clients come, want, get, acknowledge and go.

Everything a change of a key brings about is in one commit: the event, who wants it, the new value in place of the old
one, and the places in the subscriptions of the topic that has the region's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker_adapter.engine.clients.durable_client import DurableClient, Marker, OutgoingEvent, conflation_of
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.decision_time import DecisionTime
from broker_adapter.engine.commands.effects import Effects, Leaving
from broker_adapter.engine.commands.failures import message_too_large
from broker_adapter.engine.commands.identities import Sequences
from broker_adapter.engine.commands.selection import Selectable
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.entries import Entry
from broker_adapter.engine.queues.gateway_queue import REGION_KIND, Feed
from broker_adapter.engine.queues.limits import refusal
from broker_adapter.engine.queues.pending import raw_entry
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.queues.statistics import Totals
from broker_adapter.engine.records.layout import RawEntry, entry_key, short_name
from broker_adapter.engine.records.new_message import NewMessage
from broker_adapter.engine.regions.audience import NOTHING, Matched
from broker_adapter.engine.regions.event_log import append_event
from broker_adapter.engine.regions.event_records import (
    LANE,
    EventRecord,
    Operation,
    position_key,
    posting_key,
    run_key,
)
from broker_adapter.engine.regions.interests import (
    Interest,
    checked_interest,
    checked_key,
    digest,
)
from broker_adapter.engine.regions.key_records import (
    STATE_AFTER,
    KeyRecord,
    KeyState,
    Wanted,
    answer_again,
    encode_key_record,
    maker_of,
    operation_of,
    region_key,
    tombstone,
)
from broker_adapter.engine.regions.region import Region
from broker_adapter.engine.regions.stamps import Stamp, milliseconds_of
from broker_adapter.engine.rules.admission import Admission, CommitRoom
from broker_adapter.engine.rules.conflicts import Conflicts
from broker_adapter.engine.rules.event_answers import EventAnswers
from broker_adapter.engine.rules.event_descriptions import EventDescriptions
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.engine.rules.intake import Intake
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.envelope import (
    KEY_PROPERTY,
    OPERATION_PROPERTY,
    REGION_PROPERTY,
    RESOLVED_PROPERTY,
    SITE_PROPERTY,
    STAMP_PROPERTY,
    VERSION_PROPERTY,
)
from broker_adapter.errors import IllegalStateException, MessageFormatException, ResourceAllocationException

_TOO_LONG: Final = "more events wait for it than may (option max_client_queue_events)"
#: What an event takes in the record of an event for each audience that may want it, and its places beside that.
_AUDIENCE_BYTES: Final = 4
_PLACES: Final = 3


class EventChanges:
    """Carries out the commands of :mod:`broker_adapter.engine.commands.regions`."""

    def __init__(
        self,
        state: EventState,
        directory: Directory,
        admission: Admission,
        matching: Matching,
        intake: Intake,
        totals: Totals,
        time: DecisionTime,
    ) -> None:
        self._state = state
        self._clients = state.clients
        self._directory = directory
        self._admission = admission
        self._matching = matching
        self._intake = intake
        self._totals = totals
        self._time = time
        #: what this decision has changed, which the store does not have yet
        self._records: dict[tuple[int, str], KeyRecord] = {}
        #: the messages of these
        self._payloads: dict[tuple[int, str], tuple[int, bytes]] = {}
        #: what the events that leave in this decision match, by position and audience
        self._matched: dict[tuple[int, int], Matched] = {}
        self._deferred: set[int] = set()  #: regions of which changes wait for the next decision
        settings = directory.settings
        seconds = settings.site_tombstone_seconds if settings.site else settings.tombstone_seconds
        self._tombstone_ms = int(seconds * 1000)
        self._conflicts = Conflicts(settings, matching.formats)
        self._event_answers = EventAnswers(matching)
        descriptions = EventDescriptions(state, time)
        self.steps: dict[type, Callable[[Any, int, Effects], None]] = {
            e.MakeRegion: self._make_region,
            e.ChangeKeys: self._change_keys,
            e.ConnectDurable: self._connect,
            e.RegisterInterest: self._register,
            e.UnregisterInterest: self._unregister,
            e.ReadyForEvents: self._ready,
            e.AcknowledgeEvents: self._acknowledge,
            e.LeaveDurable: self._leave,
            e.CloseDurable: self._close,
            e.CloseQuery: self._close_query,
            e.DescribeClients: descriptions.clients,
            e.DescribeRegions: descriptions.regions,
            e.EventTotals: descriptions.totals,
            e.WalkEvents: self._walk,
            e.ReadEvents: self._read,
            e.TrimEvents: self._trim,
            e.RemoveTombstones: self._remove_tombstones,
            e.ExpireClients: self._expire,
        }

    def begin(self, effects: Effects) -> None:
        """A decision begins."""
        self._state.effects = effects
        if self._state.started is not None:
            self._state.take_started(effects)
        self._records.clear()
        self._payloads.clear()
        self._matched.clear()
        self._deferred.clear()
        if self._clients.walks.answers:
            self._answer_drains(effects)

    # Regions.

    def _make_region(self, command: e.MakeRegion, now_ms: int, effects: Effects) -> None:
        effects.answer(command, self._state.make_region(command.name, command.conflates).id)

    def _checked(self, command: e.ChangeKeys) -> Region:
        """Return the region of some changes; raises where one of them can be none."""
        region = self._state.region(command.region)
        most = self._directory.settings.max_message_bytes
        for change in command.changes:
            checked_key(change.key)
            if len(change.message.payload) > most:
                error = message_too_large(len(change.message.payload), most)
                reason = f"key {change.key!r} of region {region.name!r}: {error.reason}"
                raise MessageFormatException(reason, error_code=error.error_code)  # what a send raises
        return region

    def _change_keys(self, command: e.ChangeKeys, now_ms: int, effects: Effects) -> None:
        region = self._checked(command)
        asked = self._ask_ahead(region, command)
        if asked is None:
            return
        sizes = [len(change.message.payload) for change in command.changes[:-1]]
        for queue in self._directory.topics.get(region.topic, ()):
            more = len(sizes), sum(sizes)
            refused = refusal(queue, *more)
            if refused is not None and not self._admission.gives_way(queue, *more):
                raise ResourceAllocationException(refused)
        self._take_room(region, [change for change in command.changes if change.wanted is Wanted.PUT])
        if self._directory.feeds and len(command.changes) > 1:
            self._intake.begin_transaction()
        try:
            made = [self._change(region, change, now_ms, effects, asked) for change in command.changes]
        finally:
            self._intake.end_transaction()
        effects.answer(command, made)

    def _ask_ahead(self, region: Region, command: e.ChangeKeys) -> e.Asked | None:
        """What selectors say of the messages of a request; None: it waits for the next decision."""
        asked = {} if command.asked is None else command.asked
        if region.id not in self._deferred and self._are_asked(region, command, asked):
            return asked
        self._deferred.add(region.id)
        self._state.waiting.append(command._replace(asked=asked))
        return None

    def _are_asked(self, region: Region, command: e.ChangeKeys, asked: e.Asked) -> bool:
        """Ask what selectors say of the messages of a request; return whether there was time for all of them."""
        routing = region.routing
        if not routing.selectors and not routing.queries:
            return True
        payloads, number = self._payloads, region.id
        keys = {change.key for change in command.changes}
        known = {key: payloads[number, key] for key in keys if (number, key) in payloads}
        return self._event_answers.ask_ahead(routing, command, known, asked)

    def _take_room(self, region: Region, puts: Sequence[e.KeyChange]) -> None:
        """Take the room for new values; what takes values away needs none, so that it can be made.

        Raises:
            ResourceAllocationException: there is none.
        """
        if not puts:
            return
        of_audiences = _AUDIENCE_BYTES * len(region.routing.audiences)
        places = self._places(region)
        wanted = [(len(put.message.payload) + of_audiences, places) for put in puts]
        self._admission.take_at_once(wanted)
        if not self._directory.durable:
            self._admission.take_in_memory(wanted)

    # The changes of a commit: they are checked, asked about and given room; then nothing of them can fail.

    def check(self, parts: Sequence[e.ChangeKeys]) -> int:
        """Check that some changes can be made; return as how many places in queues they count.

        Raises:
            InvalidDestinationException: there is no such region, or it can have no such key.
            MessageFormatException: a value is larger than the limit.
            ResourceAllocationException: too many selectors and queries are to be asked.
        """
        places = questions = 0
        for part in parts:
            region, changes = self._checked(part), len(part.changes)
            places += changes * (e.PLACES_IN_COMMIT + len(self._directory.topics.get(region.topic, ())))
            questions += changes * region.questions
        if questions > e.QUESTIONS_IN_COMMIT:
            raise ResourceAllocationException(
                f"the changes of the transaction, each with the selectors and queries of its region, make {questions}"
                f" questions, more than the limit of {e.QUESTIONS_IN_COMMIT}; commit more often"
            )
        return places

    def ask(self, parts: Sequence[e.ChangeKeys], asked_parts: int) -> int:
        """Ask what selectors and queries say of some changes, as long as the slice of this decision lasts.

        Args:
            parts: the changes; ``asked`` of each gets the answers.
            asked_parts: of how many, from the first on, everything was asked.

        Returns:
            Of how many it was by now.
        """
        for part in parts[asked_parts:]:
            asked = {} if part.asked is None else part.asked
            if not self._are_asked(self._state.region(part.region), part, asked):
                break
            asked_parts += 1
        return asked_parts

    def find_room(self, parts: Sequence[e.ChangeKeys], room: CommitRoom) -> str | None:
        """Ask for the room for some changes; return why there is none.  What takes values away needs none.

        Args:
            parts: the changes.
            room: of their commit.
        """
        durable = self._directory.durable
        for part in parts:
            region = self._state.region(part.region)
            of_audiences = _AUDIENCE_BYTES * len(region.routing.audiences)
            sizes, places = [len(change.message.payload) for change in part.changes], self._places(region)
            for change, size in zip(part.changes, sizes, strict=True):
                if change.wanted is Wanted.PUT:
                    reason = room.ask_for_value(size + of_audiences, places, durable=durable)
                    if reason is not None:
                        return reason
            for queue in self._directory.topics.get(region.topic, ()):
                reason = room.ask_for_events(queue, sizes)
                if reason is not None:
                    return reason
        return None

    def carry_out(
        self, parts: Sequence[e.ChangeKeys], now_ms: int, effects: Effects, joined: Sequence[bool] = ()
    ) -> int:
        """Make some changes, for which there is room; return how many changed nothing.

        Args:
            parts: the changes.
            now_ms: the time of the day.
            effects: of the decision.
            joined: of each, whether it belongs to the transaction of the one ahead; empty: that is known.
        """
        unchanged, joins = 0, iter(joined)
        for part in parts:
            region, asked = self._state.region(part.region), {} if part.asked is None else part.asked
            for change in part.changes:
                if joined and not next(joins):
                    self._intake.begin_transaction()
                operation, _ = self._change(region, change, now_ms, effects, asked)
                unchanged += operation is None
        return unchanged

    def _change(
        self, region: Region, change: e.KeyChange, now_ms: int, effects: Effects, asked: e.Asked
    ) -> tuple[Operation | None, int]:
        name = region.id, change.key
        before = self._records.get(name, change.before)
        version = 0 if before is None else before.version
        if change.stamp is not None:
            self._state.seen_stamp(change.stamp)
            old = self._payloads.get(name, change.old)
            change = self._conflicts.resolved(region.name, change, before, old, effects)
        if change.stamp is not None:
            if before is not None and before.stamp >= change.stamp:
                return None, version  # the same change, or an older one
        elif not self._is_new(region, change.message, now_ms, effects):
            return answer_again(before, change.message.identity)
        operation = operation_of(change.wanted, before)
        if operation is None and change.stamp is not None:
            return None, self._bury(region, change, change.stamp, now_ms, effects)
        if operation is None:
            return None, version
        if change.stamp is not None and before is None and milliseconds_of(change.stamp) + self._tombstone_ms < now_ms:
            effects.warn(
                ("late change", region.id),
                "! region %r takes changes of another site that are older than site_tombstone_seconds, as of key %r:"
                " keys that were destroyed here may be back, unless these are copied",
                *(region.name, change.key),
            )
        message = change.message._replace(persistent=True, expires_at_ms=None, deliver_at_ms=None, priority=4, group=0)
        events = self._state.events
        assert events is not None
        values = self._values(region)
        position = events.next_position
        answers = self._answers(region, change, message, operation, before, asked)
        wanting = region.routing.wanting(change.key, answers)
        is_wanted = bool(wanting)  # clients whose queues are too long by it are taken out
        run = 0
        if operation is Operation.UPDATE:
            run = (0 if before is None else before.run) or position
        queues: list[QueueState] = [events] if is_wanted else []
        place = 0
        if operation in (Operation.CREATE, Operation.UPDATE):
            place = values.next_position
            queues.append(values)
        stamp, fed = change.stamp, self._fed(region) if self._directory.feeds else ()
        if stamp is None and operation is Operation.INVALIDATE and before is not None:
            stamp, fed = before.stamp, ()  # it is a matter of this site: a value of another one may be newer
        elif stamp is None:
            stamp = self._state.next_stamp(now_ms)
        subscriptions = self._directory.topics.get(region.topic)
        annotations = None
        if subscriptions or fed:
            annotations = event_annotations(region.name, change.key, operation, position, stamp)
            if change.is_resolved:
                annotations[RESOLVED_PROPERTY] = True
        if subscriptions and annotations is not None:
            queues += self._wanting(subscriptions, message, annotations)
        number = self._intake.next_message
        self._intake.store(message, queues, now_ms, effects, annotations, fed, change.sites)
        if is_wanted:
            stored = [(digest(each), what) for each, what in answers.items()]
            conflated = run if self._clients.conflating.is_asked_for(region) else 0
            event = EventRecord(region.id, operation, number, len(message.payload), change.key, (), stored, conflated)
            append_event(event, position, region.broad, wanting, self._state.batch.put)
            region.events += 1
            for client in self._clients.came(position, event, wanting):
                self._hand_out(client, [OutgoingEvent(position, event, False)], effects)
            for client in self._clients.overflowing(wanting, position):
                self._overflow(client, effects)
        else:
            events.next_position = position + 1
            events.counters_due = True
        for queue in (events, values, *queues):
            self._directory.changed[queue.id] = queue
        if before is not None and before.place:
            self._drop_value(region, before.place, change.value, effects)
        maker = 0 if change.stamp is not None else maker_of(change.message.identity)
        record = KeyRecord(position, place, self._time.age_ms, STATE_AFTER[operation], run, maker, stamp)
        if operation is Operation.CREATE:
            region.keys += 1
        elif operation is Operation.DESTROY:
            region.keys = max(0, region.keys - 1)
        if is_wanted or operation in (Operation.CREATE, Operation.DESTROY):
            self._state.store_region(region)
        self._payloads[name] = message.format, message.payload
        self._store_record(region, change.key, record)
        self._totals.enqueued += 1
        return operation, position

    def _bury(self, region: Region, change: e.KeyChange, stamp: Stamp, now_ms: int, effects: Effects) -> int:
        """A key that is not there was destroyed at another site: an older value of it must not come back.

        That is no event here, but further sites may have the key.  Returns its version.
        """
        events = self._state.events
        assert events is not None
        position = events.next_position
        events.next_position = position + 1
        events.counters_due = True
        self._directory.changed[events.id] = events
        annotations = event_annotations(region.name, change.key, Operation.DESTROY, position, stamp)
        message = change.message._replace(persistent=True)
        self._intake.store(message, (), now_ms, effects, annotations, self._fed(region), change.sites)
        record = KeyRecord(position, 0, self._time.age_ms, KeyState.TOMBSTONE, 0, 0, stamp)
        self._store_record(region, change.key, record)
        return position

    def _places(self, region: Region) -> int:
        """Return how many places a new value takes."""
        return _PLACES + (len(self._fed(region)) if self._directory.feeds else 0)

    def _fed(self, region: Region) -> Sequence[Feed]:
        """The gateways that take the events of a region."""
        return self._directory.feeds.get((region.name, REGION_KIND), ())

    def _store_record(self, region: Region, of: str, record: KeyRecord) -> None:
        self._records[region.id, of] = record
        key = region_key(region.id, of)
        self._state.batch.put("keys", key, encode_key_record(key, record))
        if record.state is KeyState.TOMBSTONE:
            due_ms = record.changed_ms + self._tombstone_ms
            self._state.batch.put("tombstones", *tombstone(due_ms, key, record.version))
            self._state.next_tombstone_ms = min(self._state.next_tombstone_ms or due_ms, due_ms)

    def _answers(
        self,
        region: Region,
        change: e.KeyChange,
        message: NewMessage,
        operation: Operation,
        before: KeyRecord | None,
        asked: e.Asked,
    ) -> dict[Interest, Operation]:
        """What an event is for each distinct selector and query that is true of it."""
        routing = region.routing
        if not routing.selectors and not routing.queries:
            return {}
        old = None
        if before is not None and before.state is KeyState.VALID:
            stored = self._payloads.get((region.id, change.key), change.old)
            old = None if stored is None else (change.key, *stored)
        new = change.key, message.format, message.payload
        has_value = STATE_AFTER[operation] is KeyState.VALID
        return self._event_answers.of(routing, operation, new, has_value, old, asked)

    def _values(self, region: Region) -> QueueState:
        """The queue in which the values of a region's keys have their places."""
        return self._directory.queues[region.id]

    def _is_new(self, region: Region, message: NewMessage, now_ms: int, effects: Effects) -> bool:
        """Whether a change was not made before: a client may ask again for what it does not know the answer of."""
        identity = message.identity
        if identity is None:
            return True
        stream = (region.name, REGION_KIND, short_name(identity.producer_id), identity.thread_id)
        seen = self._intake.streams.get(stream)
        if seen is None:
            seen = Sequences.begin(identity.sequence)
        elif not seen.add(identity.sequence):
            self._totals.duplicates_rejected += 1
            return False
        self._intake.note_stream(stream, seen, now_ms, effects)
        return True

    def _wanting(
        self, found: Sequence[QueueState], message: NewMessage, annotations: Mapping[str, Any]
    ) -> Sequence[QueueState]:
        """Those of the topic's subscriptions that want an event; those that are full give way to it."""
        fields = Selectable(self._matching.formats, message.format, message.payload, annotations=annotations)
        is_selected, admission = self._matching.is_selected, self._admission
        wanting = [each for each in found if each.selector is None or is_selected(each.selector, fields)]
        full = [each for each in wanting if refusal(each) is not None]
        admission.note_gave_way(full)
        return admission.takers(full, wanting)

    def _drop_value(self, region: Region, place: int, value: RawEntry | None, effects: Effects) -> None:
        """The value of a key ends, which may have come in this decision."""
        queue = self._values(region)
        made = self._state.batch.entries.get(entry_key(queue.id, LANE, place))
        raw = raw_entry(queue.id, made) if isinstance(made, Entry) else value
        entry = None if raw is None or raw.position != place else queue.find(raw, effects)
        if entry is not None:
            queue.remove(entry, effects)

    # Durable clients.

    def _connect(self, command: e.ConnectDurable, now_ms: int, effects: Effects) -> None:
        self._directory.client(command.client)
        has = self._clients.of_connection(command.client)
        if has is not None:
            raise IllegalStateException(f"the connection is that of durable client {has.id!r} already")
        if command.window < 1:
            raise IllegalStateException(
                f"a durable client may have 1 event under way or more, and not {command.window}"
            )
        pending = self._clients.connect(
            *(command.client_id, command.client, command.timeout_ms, command.window, command.sink),
            *(conflation_of(command.conflation), command.counted, self._state.head),
            window_bytes=command.window_bytes,
        )
        effects.answer(command, pending)

    def _client(self, connection: int) -> DurableClient:
        return self._state.durable_client(connection)

    def _register(self, command: e.RegisterInterest, now_ms: int, effects: Effects) -> None:
        client, region = self._client(command.client), self._state.region(command.region)
        head = self._state.head
        routing, wanted = region.routing, command.interests
        if command.prepared is None:
            wanted = [checked_interest(*each) for each in wanted]
        routing.check_room(wanted)
        routing.prepared = command.prepared or {}
        try:
            self._clients.register(client, region, wanted, command.durable, head)
        finally:
            routing.prepared = {}
        effects.answer(command, head)

    def _unregister(self, command: e.UnregisterInterest, now_ms: int, effects: Effects) -> None:
        client, region = self._client(command.client), self._state.region(command.region)
        interests, reply = command.interests, command.reply
        if not self._clients.unregister(
            client, region, interests, self._state.head, drop=command.drop_queued, answer=reply
        ):
            effects.answer(command, 0)

    def _close_query(self, command: e.CloseQuery, now_ms: int, effects: Effects) -> None:
        self._clients.close_query(command.client_id, command.name, self._state.head, command.reply)

    def _walk(self, command: e.WalkEvents, now_ms: int, effects: Effects) -> None:
        client = self._clients.clients.get(command.client_id)
        if client is not None and command.walk is not None:
            walks, head = self._clients.walks, self._state.head
            is_counted = walks.note_part(client, command.walk, command.found, command.through, head)
            if is_counted and self._clients.is_too_long(client):
                self._overflow(client, effects)
        self._answer_drains(effects)
        effects.answer(command, None)

    def _answer_drains(self, effects: Effects) -> None:
        """Answer those that wait for events to be taken out of a queue."""
        answers = self._clients.walks.answers
        for answer, count in answers:
            gone = IllegalStateException(
                "the client's queue was dropped before the query's events were taken out of it"
            )
            effects.replies.append((answer, gone if count is None else count))
        answers.clear()

    def _overflow(self, client: DurableClient, effects: Effects) -> None:
        """A client's queue is too long."""
        sink = self._clients.overflow(client)
        if sink is not None:
            effects.events.append((sink, [Leaving(0, e.QueueDroppedHandout(_TOO_LONG))]))

    def _ready(self, command: e.ReadyForEvents, now_ms: int, effects: Effects) -> None:
        self._clients.ready(self._client(command.client), self._state.head)
        effects.answer(command, None)

    def _acknowledge(self, command: e.AcknowledgeEvents, now_ms: int, effects: Effects) -> None:
        effects.answer(command, self._clients.acknowledge(self._client(command.client), command.through))

    def _leave(self, command: e.LeaveDurable, now_ms: int, effects: Effects) -> None:
        head = self._state.head
        kept = self._clients.leave(command.client, self._time.age_ms, head, keep=command.keep, asked=True)
        effects.answer(command, kept)

    def lost(self, connection: int) -> None:
        """A connection is lost, or has ended without a word about its durable client: the queue is kept."""
        self._clients.leave(connection, self._time.age_ms, self._state.head, keep=True, asked=False)

    def _close(self, command: e.CloseDurable, now_ms: int, effects: Effects) -> None:
        clients = self._clients
        client = clients.clients.get(command.client_id)
        dropped = None if client is None else e.DroppedQueue(clients.size(client), clients.is_exact(client))
        clients.close(command.client_id)
        effects.answer(command, dropped)

    def _remove_tombstones(self, command: e.RemoveTombstones, now_ms: int, effects: Effects) -> None:
        batch = self._state.batch
        changed = {region_key(region, key) for region, key in self._records}
        for line in command.lines:
            batch.put("tombstones", line, None)
        for key in command.keys:
            if key not in changed:
                batch.put("keys", key, None)
        self._state.next_tombstone_ms = command.next_ms
        effects.answer(command, None)

    def _expire(self, command: e.ExpireClients, now_ms: int, effects: Effects) -> None:
        self._clients.expire(self._time.age_ms)
        effects.answer(command, None)

    # Events leave, and end.

    def _read(self, command: e.ReadEvents, now_ms: int, effects: Effects) -> None:
        client = self._clients.clients.get(command.client_id)
        if client is not None:
            leaving = self._clients.take(client, command.read, command.after, self._state.head)
            if leaving:
                self._hand_out(client, leaving, effects)
        effects.answer(command, None)

    def _hand_out(self, client: DurableClient, leaving: Sequence[OutgoingEvent | Marker], effects: Effects) -> None:
        handouts: list[Leaving] = []
        for each in leaving:
            if isinstance(each, Marker):
                handouts.append(Leaving(0, e.MarkerHandout(each.position)))
                continue
            event = each.event
            region = self._state.by_number[event.region]
            found = self._match(client, each.position, event)
            handout = e.EventHandout(
                each.position,
                region.name,
                event.operation,
                event.key,
                found.interests,
                found.queries,
                each.is_history,
                0,
                b"",
            )
            handouts.append(Leaving(event.message, handout))
        if client.sink is not None:
            effects.events.append((client.sink, handouts))

    def _match(self, client: DurableClient, position: int, event: EventRecord) -> Matched:
        """Which interests of a client an event matches, of those that it had as the event came."""
        number = client.queue.audience_at(event.region, position)
        audience = None if number is None else self._clients.audiences.get(number)
        if audience is None:
            return NOTHING
        found = self._matched.get((position, audience.id))
        if found is None:
            found = self._matched[position, audience.id] = audience.matched(event.key, event.answers, position)
        return found

    def _trim(self, command: e.TrimEvents, now_ms: int, effects: Effects) -> None:
        state, clients = self._state, self._clients
        batch, events = state.batch, state.events
        changed: dict[int, Region] = {}
        for position, event, place in command.found:
            batch.put("postings", posting_key(command.stream, position), None)
            if event is None or events is None or not clients.have_passed(event.audiences, position):
                continue
            key = position_key(position)
            if batch.tables.get("events", {}).get(key, b"") is None:
                continue  # another of its postings was found in this decision
            batch.put("events", key, None)
            if event.run:
                batch.put("runs", run_key(event.run, position), None)
            entry = None if place is None else events.find(place, effects)
            if entry is not None:
                events.remove(entry, effects)
                self._directory.changed[events.id] = events
            region = state.by_number.get(event.region)
            if region is not None:
                region.events = max(0, region.events - 1)
                changed[region.id] = region
        for region in changed.values():
            state.store_region(region)
        audience = clients.audiences.get(command.stream)
        if command.region is not None:
            if command.has_more:
                clients.regions_to_trim[command.region] = None
        elif audience is None:
            pass  # it is forgotten
        elif command.has_more:
            clients.to_trim[audience.id] = audience
        elif command.is_empty and not audience.members:
            clients.remove_audience(audience)
        effects.answer(command, None)


def event_annotations(region: str, key: str, operation: Operation, version: int, stamp: Stamp) -> dict[str, Any]:
    """What is added to the message of an event for plain consumers and gateways."""
    return {
        REGION_PROPERTY: region,
        KEY_PROPERTY: key,
        OPERATION_PROPERTY: operation.name.lower(),
        VERSION_PROPERTY: version,
        STAMP_PROPERTY: stamp.time,
        SITE_PROPERTY: stamp.site,
    }
