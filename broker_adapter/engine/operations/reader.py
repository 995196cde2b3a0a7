"""What operations read of the engine between two cycles: what is committed, of queues, messages and names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.commands.selection import RegionFields, selects
from broker_adapter.engine.cycle.background_jobs import BackgroundJobs
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.queues.directory import Directory
from broker_adapter.engine.queues.gateway_queue import GatewayQueue, came_at_ms
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.engine.records.layout import DELAYED_LANE, FLAG_ANNOTATED, MAX_KEY_BYTES, RawEntry, position_of
from broker_adapter.engine.regions.event_records import LANE
from broker_adapter.engine.regions.key_records import region_key
from broker_adapter.engine.regions.stored_key import StoredKey, records_behind, stored_key
from broker_adapter.engine.rules.claims import check_claim
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.event_state import EventState
from broker_adapter.engine.rules.gateways import gateway_named
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.engine.store.port import Loaded, StoredColumns, by_position
from broker_adapter.engine.store.region_snapshots import RegionSnapshot, RegionSnapshots, gone, position_of_token
from broker_adapter.engine.store.starts import Runs
from broker_adapter.engine.store.stores import Message, Stores
from broker_adapter.errors import IllegalStateException, InvalidDestinationException, MessageFormatException
from broker_adapter.selectors.language import Selector

#: Bytes of messages that are read for their age before other work has its turn.
AGE_BYTES: Final = 1024 * 1024


class OperationsState(Protocol):
    """What operations see of the rules: :class:`~broker_adapter.engine.broker_state.BrokerState` has it."""

    directory: Directory
    events: EventState
    deliveries: Deliveries
    matching: Matching
    published: LastNumbers


class Reader:
    """Reads of one step of an operation; nothing else is carried out meanwhile.

    Args:
        stores: of the engine.
        state: of the engine's rules.
        reads: of its entries.
        runs: the starts of the engine.
        jobs: what is not done yet of publications.
        elapsed_ms: when the step began, by the monotonic clock.

    Attributes:
        state: as given.
    """

    def __init__(
        self,
        stores: Stores,
        state: OperationsState,
        reads: EntryReads,
        runs: Runs,
        jobs: BackgroundJobs,
        elapsed_ms: int,
    ) -> None:
        self.state = state
        self._stores = stores
        self._reads = reads
        self._runs = runs
        self._jobs = jobs
        self._elapsed_ms = elapsed_ms

    def begin_tail(self) -> None:
        """Have each commit noted from now on, so that copies can follow; raises as
        :meth:`~broker_adapter.engine.store.port.DurableStore.begin_tail`."""
        if self._stores.disk is None:
            raise IllegalStateException("the engine has no store on disk, which a copy could follow")
        self._stores.disk.begin_tail()

    def note_use(self, queue: QueueState) -> None:
        """A queue is read without a consumer: it is not idle."""
        queue.note_use(self._elapsed_ms)

    def check_claim(self, queue: QueueState, claim: str | None) -> None:
        """Raise QueueClaimedException where a queue has another claim than that of a request; None: it names none."""
        check_claim(queue, claim, self._elapsed_ms)

    def entries(self, queue: int, first: int, last: int, limit: int, most_bytes: int | None = None) -> Loaded:
        """Up to ``limit`` entries with positions in [first, last], by position, without delayed ones.

        With ``most_bytes`` what is behind the entry whose message exceeds it may be left out, too.
        """
        further = () if most_bytes is None else (most_bytes,)
        return self._reads.repaired(self._stores.read_entries, queue, first, last, limit, *further)

    def delayed_entries(self, queue: int, first: int, limit: int) -> Loaded:
        """Up to ``limit`` entries that are delayed, with positions from ``first`` on, by position."""
        return self._reads.repaired(self._stores.load, queue, DELAYED_LANE, first - 1, limit)

    def columns(self, queue: int, first: int, last: int, limit: int, most_bytes: int) -> StoredColumns | None:
        """Messages with positions in [first, last], by field; None where some are to be read one by one.

        Args:
            queue: its number.
            first, last: positions.
            limit: of messages.
            most_bytes: of their payloads; one message may have more.
        """
        return self._stores.read_columns(queue, first, last, limit, most_bytes)

    def first_position(self, queue: int) -> int | None:
        """The lowest position that is there, without delayed ones; also that of an entry that cannot be trusted."""
        found = [self._stores.browse(queue, 0, 0, 1)]
        if not found[0].complete:  # there is more than one
            found = [self._stores.load(queue, lane, 0, 1) for lane in range(10)]
        positions = [entry.position for part in found for entry in part.entries]
        positions += [position_of(key) for part in found for key in part.corrupt]
        return min(positions, default=None)

    def oldest_sent_ms(self, numbers: Sequence[int]) -> tuple[dict[int, int], int]:
        """Return when the oldest message of each of some queues was sent, as it says; of a gateway, when it came.

        Args:
            numbers: of the queues.

        Returns:
            What is known of them, by number, and how many were examined: no more once their messages are large.
        """
        formats, queues = self.state.matching.formats, self.state.directory.queues
        found: dict[int, int] = {}
        size = 0
        for count, number in enumerate(numbers):
            if size > AGE_BYTES:
                return found, count
            queue = queues.get(number)
            if isinstance(queue, GatewayQueue):
                came_ms = self.oldest_came_ms(queue)
                if came_ms is not None:
                    found[number] = came_ms
                continue
            if queue is None or not queue.depth or queue.record.kind not in ("queue", "subscription"):
                continue
            loads = [self._reads.repaired(self._stores.load, number, lane.number, 0, 1) for lane in queue.lanes]
            oldest = min((entry for load in loads for entry in load.entries), key=by_position, default=None)
            if oldest is None:
                continue
            size += oldest.size
            (body,) = self._stores.bodies([(oldest.number, oldest.flags)])
            with suppress(MessageFormatException):
                sent_ms = None if body is None else formats.read(*body).sent_at_ms
                if sent_ms is not None:
                    found[number] = sent_ms
        return found, len(numbers)

    def last_published(self, group: str) -> int | None:
        """The last number of a group that was published; None where none was, or it was forgotten."""
        published = self.state.published
        self._stores.look_up(published, group)
        return published.last(group)

    def run(self, queue: QueueState) -> str:
        """Return what tells later in which run a queue gave its positions.

        Raises:
            ResourceAllocationException: the store has no room to note the run.
        """
        return self._runs.seen(queue.id)

    def kept(self, queue: QueueState, run: str | None) -> int:
        """Positions of a queue below this one, seen in a run, are those of the same messages; None: in any run."""
        return self._runs.kept(queue.id, run, queue.next_position) if run else queue.next_position

    def is_aging(self, run: str | None) -> bool:
        """Return whether a run in which positions were seen will be forgotten before long."""
        return bool(run) and self._runs.is_aging(run or "")

    def messages(self, entries: Sequence[RawEntry]) -> list[tuple[Message | None, dict[str, Any] | None]]:
        """(format and payload, annotations) of each entry; None where the record cannot be trusted."""
        bodies = self._stores.bodies([(entry.number, entry.flags) for entry in entries])
        annotations_of = self._stores.annotations_of
        return [
            (body, annotations_of(entry) if entry.flags & FLAG_ANNOTATED else None)
            for entry, body in zip(entries, bodies, strict=True)
        ]

    # Gateways.

    def oldest_came_ms(self, queue: GatewayQueue) -> int | None:
        """Return when the oldest message that waits for a gateway came; None: none waits."""
        waiting = self.entries(queue.id, 0, queue.next_position - 1, 1).entries if queue.depth else ()
        return came_at_ms(waiting[0].position) if waiting else None

    def gateway(self, name: str) -> GatewayRecord:
        """What is known of a gateway, with the password of its URL; raises InvalidDestinationException."""
        return gateway_named(self.state.directory, name).noted()

    def gateway_names(self) -> list[str]:
        """Return the names of all gateways."""
        return sorted(self.state.directory.gateways)

    def note_sender(
        self, name: str, *, sends: bool, is_under_way: bool, trouble: str
    ) -> tuple[GatewayRecord, int, int]:
        """Note what the sender of a gateway does, as the request ``gateways`` shows it.

        Args:
            name: of the gateway.
            sends: whether it sends a batch from now on; if the gateway is not running, it may not.
            is_under_way: whether a batch has no answer yet.
            trouble: why the last attempt failed; empty: it did not.

        Returns:
            What is known of the gateway, with the password of its URL; messages that wait, and their bytes.

        Raises:
            InvalidDestinationException: there is no such gateway.
        """
        queue = gateway_named(self.state.directory, name)
        record = queue.noted()
        queue.is_sending = is_under_way or (sends and record.state == "running")
        queue.trouble = trouble
        return record, queue.depth, queue.bytes

    # Regions.

    def key(self, region: int, key: str) -> StoredKey:
        """Return what the store knows of a key of a region."""
        name = region_key(region, key)
        with self._stores.records() as records:
            value = records.get("keys", name) if len(name) <= MAX_KEY_BYTES else None
        return StoredKey(key, None, None) if value is None else self._stored(region, name, value)

    def keys_behind(self, region: int, after: str | None, limit: int, *, places: bool = True) -> list[StoredKey]:
        """Up to ``limit`` keys of a region, those that were destroyed included, by their bytes in UTF-8.

        Args:
            region: its number.
            after: those behind this one; None: from the first on.
            limit: of them.
            places: whether the places of their values are wanted, for ``values``.
        """
        with self._stores.records() as records:
            found = list(records_behind(partial(records.items_from, "keys"), region, after, limit))
        return [self._stored(region, name, value, places=places) for name, value in found]

    def _stored(self, region: int, name: bytes, value: bytes, *, places: bool = True) -> StoredKey:
        return stored_key(region, name, value, partial(self._entry_at, region) if places else None)

    def _entry_at(self, region: int, place: int) -> RawEntry | None:
        found = self._reads.repaired(self._stores.load, region, LANE, place - 1, 1).entries
        return found[0] if found and found[0].position == place else None

    def values(self, keys: Sequence[StoredKey]) -> list[Message | None]:
        """The value of each key; None where it has none, or a record that cannot be trusted."""
        entries = [each.entry for each in keys if each.entry is not None]
        bodies = iter(self._stores.bodies([(entry.number, entry.flags) for entry in entries]))
        return [None if each.entry is None else next(bodies) for each in keys]

    @property
    def snapshots(self) -> RegionSnapshots:
        """Those of regions that are open."""
        return self._stores.region_snapshots

    def open_snapshot(self, name: str) -> tuple[str, int]:
        """(token, number of the region) of a new snapshot.

        Raises:
            InvalidDestinationException: there is no region of this name.
            ResourceAllocationException: too many are being read.
        """
        events = self.state.events
        region = events.regions.get(name)
        if region is None or events.events is None:
            raise InvalidDestinationException(f"there is no region {name!r}: create it first")
        run = self.run(events.events)
        return self.snapshots.open(region.id, events.head, run, self._elapsed_ms), region.id

    def open_one(self, token: str, region: int) -> RegionSnapshot | None:
        """The snapshot of a token, which is used with this; None where it is gone."""
        return self.snapshots.find(token, region, self._elapsed_ms)

    def snapshot(self, token: str, region: int, name: str) -> Reader | RegionSnapshot:
        """A snapshot of a region; the present where that is gone, and no event has happened since.

        Args:
            token: that was given for it.
            region: its number.
            name: of the region.

        Raises:
            InvalidDestinationException: it is gone, or there was none.
        """
        found = self.open_one(token, region)
        if found is not None:
            return found
        position, run = position_of_token(token)
        events = self.state.events
        queue = events.events
        if queue is None or position != events.head or position >= self.kept(queue, run):
            raise gone(token, name, self.state.directory.settings.region_snapshot_seconds)
        return self

    def is_wanted(self, selector: Selector, stored: StoredKey, value: Message | None) -> bool:
        """Return whether a selector is true of a key and its value; it is not of a key without one."""
        if value is None:
            return False
        return selects(selector, RegionFields(self.state.matching.formats, *value, stored.key))

    @property
    def moves(self) -> tuple[int, int]:
        """How many publications there were since the engine began, and how many of them are in their queues."""
        return self._jobs.moves_added, self._jobs.moves_done

    @property
    def in_quarantine(self) -> int:
        """How many records are in quarantine; without a store on disk, none."""
        return self._stores.in_quarantine
