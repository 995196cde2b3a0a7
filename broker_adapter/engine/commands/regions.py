"""Commands about regions and durable clients; see :mod:`broker_adapter.engine.commands.messaging`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker_adapter.engine.clients.client_queue import Read
from broker_adapter.engine.clients.durable_client import ClientCounters, CountedQueue
from broker_adapter.engine.clients.queue_walks import Walk
from broker_adapter.engine.records.layout import RawEntry
from broker_adapter.engine.records.new_message import EventSink, NewMessage, Reply
from broker_adapter.engine.regions.event_records import EventRecord, Operation
from broker_adapter.engine.regions.interests import Interest, Prepared
from broker_adapter.engine.regions.key_records import KeyRecord, Wanted
from broker_adapter.engine.regions.stamps import Stamp

#: As how many places of a message in a queue a change counts in a commit, by the time that it takes: it ends a value,
#: and writes another one, the key and an event.
PLACES_IN_COMMIT: Final = 4
#: Selectors and queries that are asked of the changes of a commit, at most: a second of work, for which others wait.
QUESTIONS_IN_COMMIT: Final = 300_000
#: Events of a queue at which a client looks that connects and has updates conflated, to be told how many wait for it.
COUNTED_AT_ONCE: Final = 10_000
#: Clients and regions of which one answer tells, at most, and interests of one client.
MOST_DESCRIBED: Final = 1000


class EventHandout(NamedTuple):
    """An event as it leaves the engine for a durable client."""

    position: int  #: also the version that the key has from then on
    region: str
    operation: Operation
    key: str
    interests: Sequence[Interest]  #: of the client as the event came, that matched: all but queries
    queries: Sequence[tuple[str, Operation]]  #: name of each query that matched, and what the event is for it
    is_history: bool  #: it was queued before the client was ready
    format: int  #: the AMQP message-format of ``payload``
    payload: bytes


class MarkerHandout(NamedTuple):
    """What came before it is history, and what comes behind it is live."""

    position: int


class QueueDroppedHandout(NamedTuple):
    """The client's queue was longer than it may be, and is dropped: when it comes back, the client is a new one."""

    reason: str


class MakeRegion(NamedTuple):
    """Make sure that a region exists.  Replies with its number."""

    name: str
    #: whether clients that leave it to the region have updates conflated; None: as it is, and of a new region False
    conflates: bool | None = None
    reply: Reply | None = None


class KeyChange(NamedTuple):
    """A wish for one key, with the message that tells of it; of a put its value."""

    key: str
    wanted: Wanted
    message: NewMessage
    before: KeyRecord | None = None  #: supplied by the driver: what the store knows of the key
    value: RawEntry | None = None  #: supplied by the driver: the place of its value
    #: supplied by the driver where queries may be asked, or conflicts resolved: format and payload of its value
    old: tuple[int, bytes] | None = None
    stamp: Stamp | None = None  #: of a change of another site; None: it is made here
    sites: Sequence[int] = ()  #: that have seen it
    is_resolved: bool = False  #: whether its value resolves a conflict


#: Key, format and payload of a message → what each selector or query says of it.
Asked = dict[tuple[str, int, bytes], dict[Interest, bool]]


class ChangeKeys(NamedTuple):
    """Changes of keys of one region, in order, all or none.

    Replies with (operation, version) of each: the operation is None where nothing has changed.
    """

    region: str
    changes: Sequence[KeyChange]
    reply: Reply | None = None
    asked: Asked | None = None  #: kept by the rules: what was asked of selectors, where that takes several cycles

    @property
    def size(self) -> int:
        """The bytes of its keys and messages."""
        return sum([len(change.key) + len(change.message.payload) for change in self.changes])


class ConnectDurable(NamedTuple):
    """The client of a connection is a durable one.

    Replies with how many events wait for it; -1: it was away for too long, -2: it had no queue.  Where updates are
    conflated for it, and more than :data:`COUNTED_AT_ONCE` events are queued, this is what it gets at most.
    """

    client: int  #: number of the connection
    client_id: str
    timeout_ms: int | None  #: how long it may be away; None: for ever; 0: it keeps no queue
    window: int  #: most events under way, from 1 on
    sink: EventSink
    reply: Reply | None = None
    conflation: str = "server"  #: whether updates are conflated for it: "true", "false", or as the region says
    counted: CountedQueue | None = None  #: supplied by the driver, where its queue is not known exactly
    window_bytes: int | None = None  #: most bytes that the events under way may take, but for the last; None: no limit


class RegisterInterest(NamedTuple):
    """A durable client wants more of a region.

    Replies with a position: what happens behind it is queued; the values of the region, read later, have all before it.
    """

    client: int
    region: str
    interests: Sequence[Interest]
    durable: bool
    reply: Reply | None = None
    prepared: Prepared | None = None  #: what these ask, made ahead; None: they were not checked, and may be wrong


class UnregisterInterest(NamedTuple):
    """A durable client does not want something any more; what is queued of it stays.

    With ``drop_queued``, what was queued for queries only that are among the interests is taken out, as far as it is
    not under way.  That takes several cycles.

    Replies with how many events were taken out, when that is done.
    """

    client: int
    region: str
    interests: Sequence[Interest]
    reply: Reply | None = None
    drop_queued: bool = False


class ReadyForEvents(NamedTuple):
    """A durable client gets its events from now on.  Replies None."""

    client: int
    reply: Reply | None = None


class AcknowledgeEvents(NamedTuple):
    """A durable client has processed its events up to a position.  Replies with how many these were."""

    client: int
    through: int
    reply: Reply | None = None


class LeaveDurable(NamedTuple):
    """The durable client of a connection closes; its queue is kept where it asks for that.  Replies whether it is."""

    client: int
    keep: bool
    reply: Reply | None = None


class CloseDurable(NamedTuple):
    """An administrator closes a durable client that is away.  Replies with a :class:`DroppedQueue`."""

    client_id: str
    reply: Reply | None = None


class DroppedQueue(NamedTuple):
    """The queue that a client had."""

    size: int  #: events in it
    is_exact: bool  #: whether that is exact; else it may have been less


class CloseQuery(NamedTuple):
    """An administrator closes a query of a durable client that is away, and takes out what is queued for it only.

    The client cannot connect until that is done, which takes several cycles; a restart goes on with it.

    Replies with how many events were taken out, when that is done.
    """

    client_id: str
    name: str  #: of the query
    reply: Reply | None = None


class DescribeClients(NamedTuple):
    """What there is to know of durable clients, by their ids.  Replies with a list of :class:`ClientDescription`."""

    client_id: str | None = None  #: only of this one; None: of all
    after: str = ""  #: of those whose ids stand behind this one
    limit: int = 100  #: most clients
    reply: Reply | None = None
    most_interests: int = MOST_DESCRIBED  #: of each client, of those that it has


class DescribeRegions(NamedTuple):
    """What there is to know of regions, by their names.  Replies with a list of :class:`RegionDescription`."""

    after: str = ""  #: of those whose names stand behind this one
    limit: int = 100  #: most regions
    reply: Reply | None = None


class EventTotals(NamedTuple):
    """What is counted of all durable clients.  Replies with an :class:`EventStatistics`."""

    reply: Reply | None = None


class InterestDescription(NamedTuple):
    """What a durable client wants."""

    region: str
    interest: Interest
    durable: bool  #: it outlives the client's connection


class ClientDescription(NamedTuple):
    """A durable client.

    Of the events that came for it, each is removed, conflated, drained, dropped or in its queue:
    ``queued == counters.removed + counters.conflated + counters.drained + counters.dropped + size``.
    """

    client_id: str
    state: str  #: name of its :class:`~broker_adapter.engine.clients.states.State`, in small letters
    timeout_ms: int | None  #: how long it may be away; None: for ever
    away_ms: int | None  #: for how long it has been; None: it is here
    conflation: str  #: whether updates are conflated for it: "server", "true" or "false"
    interests: Sequence[InterestDescription]  #: the first ones, as many as were asked for
    interest_count: int  #: how many it has
    queued: int  #: events that came for it, since it came first
    counters: ClientCounters
    size: int  #: events in its queue, under way or not
    in_hand: int  #: of these, under way
    is_exact: bool  #: whether ``size`` is exact, and what follows from it; else it may be less


class RegionDescription(NamedTuple):
    """A region."""

    name: str
    conflates: bool  #: whether updates are conflated for clients that leave it to the region
    keys: int  #: keys that are there, those without a valid value included
    clients: int  #: durable clients that want something of it
    events: int  #: events that are stored


class EventStatistics(NamedTuple):
    """What is counted of all durable clients; the last three since the engine was started."""

    clients: Mapping[str, int]  #: how many there are in each state
    events: int  #: events that are stored
    dropped_by_timeout: int  #: queues of clients that were away for too long
    dropped_by_overflow: int  #: queues that were too long
    markers: int  #: clients that were told their marker


class ReadEvents(NamedTuple):
    """The next events of a client that is behind; of the driver.  Replies None."""

    client_id: str
    after: int = 0  #: supplied by the driver
    read: Read = Read([], 0)  #: supplied by the driver
    reply: Reply | None = None


class WalkEvents(NamedTuple):
    """A part of a walk through the whole queue of a client; of the driver.  Replies None."""

    client_id: str
    walk: Walk | None = None  #: supplied by the driver
    found: Sequence[int] = ()  #: supplied by the driver: positions that it asks for
    through: int = 0  #: supplied by the driver: up to where the part goes
    reply: Reply | None = None


class TrimEvents(NamedTuple):
    """Postings of one stream that may have ended; of the driver.  Replies None."""

    stream: int
    region: int | None = None  #: of which it is the stream of what many want; None: it is that of an audience
    #: supplied by the driver: those that its audience has passed, or of which all that wanted the event have
    found: Sequence[tuple[int, EventRecord | None, RawEntry | None]] = ()
    is_empty: bool = False  #: supplied by the driver: whether the stream has no other postings
    has_more: bool = False  #: supplied by the driver: whether there are more of these
    reply: Reply | None = None


class RemoveTombstones(NamedTuple):
    """Remove keys that were destroyed long ago; of the driver.  Replies None."""

    age_ms: int  #: of the store, now
    lines: Sequence[bytes] = ()  #: supplied by the driver: the records that say so, whose keys are removed
    keys: Sequence[bytes] = ()  #: supplied by the driver: the records of those that have the version still
    next_ms: int | None = None  #: supplied by the driver: when the next one is due; None: there is none
    reply: Reply | None = None


class ExpireClients(NamedTuple):
    """End the clients that were away for too long; of the driver.  Replies None."""

    reply: Reply | None = None


EventCommand = (
    MakeRegion
    | ChangeKeys
    | ConnectDurable
    | RegisterInterest
    | UnregisterInterest
    | ReadyForEvents
    | AcknowledgeEvents
    | LeaveDurable
    | CloseDurable
    | CloseQuery
    | DescribeClients
    | DescribeRegions
    | EventTotals
    | ReadEvents
    | WalkEvents
    | TrimEvents
    | RemoveTombstones
    | ExpireClients
)
