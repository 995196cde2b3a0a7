"""What our own engine can be asked beyond messaging: ``Transport.request``, in process and over AMQP.

Arguments and results are plain data (what msgpack carries): names, ``run`` and ``incarnation`` are strings, positions
and numbers integers, and a packed envelope is what ``broker_adapter.pack`` makes.  A queue is named by
``destination``, ``kind`` ("queue", the default, or "topic") and for a topic ``subscription`` and ``client_id``; a
queue has neither of the last two.  Where a durable subscription and one that is not have the same name, the durable
one is meant; ``settle_positions``, ``uncount`` and ``seen`` take ``durable`` as well, which says which.  An argument
that an operation does not have is refused, as is a value of another type.  Positions and other numbers are from 0 to
2^64 - 1; True is not a number.

``statistics`` of nothing
    ``BrokerStatistics`` as a map.  Counted since the engine was opened: ``enqueued``, ``delivered``, ``settled``,
    ``redelivered``, ``expired`` and ``dead_lettered`` messages, ``duplicates_rejected``, ``refused`` (sends, at a
    limit), ``quarantined`` (records that could not be trusted), ``miscounted`` (messages by which the counters of
    queues differed from the store, and were corrected; more than 0 is a reason to run ``holdfast check``) and
    ``commits`` of the store; of durable clients ``queues_timed_out`` and ``queues_overflowed`` (queues that were
    dropped since their clients were away for too long, or since they were too long) and ``markers`` (clients that were
    told their marker); of durable subscriptions that were full and that nobody read (option ``full_subscription``)
    ``dropped`` (messages) and ``subscriptions_ended``.  As it is now: ``clients``, ``volatile_bytes`` (of
    non-persistent messages and places), ``blocked_because`` (why all producers are held back; or None),
    ``in_quarantine`` (records), ``durable_clients`` (how many there are in each state), ``stored_events`` (of regions,
    for durable clients) and ``queues``.  Of each of these: ``name``, ``kind`` ("queue", "topic", "subscription" or
    "staged"), ``messages`` (those in hand and delayed included), ``bytes``, ``in_hand`` (of consumers), ``delayed``,
    ``consumers``, ``blocked_sends`` (sends that wait for room), ``next_position``, ``client_id`` (or None) and
    ``oldest_age_ms`` (since its oldest message was sent, as that says; None where it does not, where none is due, and
    of other kinds than queues and subscriptions) and ``dropped`` (since the engine was opened).
``check`` of nothing
    What ``holdfast check --json`` prints, of the records on disk as of the last commit.
``purge`` of a queue
    The number of messages dropped: those that wait, and not those in consumers' hands.
``redrive`` of a queue (default: the dead-letter queue), with ``to`` (name of a queue, or None) and ``limit`` (or None)
    ``moved`` and ``left``: how many of its messages went back to where they were set aside, or to ``to``, and how many
    stayed, because that is full, unknown, or a subscription that is gone.  A queue that is gone is made again.
``bounds`` of a queue, with ``run``, ``claim`` (or None) and ``make`` (default: false; true makes a queue that does not
exist)
    ``incarnation``, ``first`` and ``next``: what is there has positions from ``first`` to below ``next``.  ``run``: the
    run of the engine in which this queue gives them, for this queue alone.  ``kept``: positions below it, seen in the
    run that was asked about, are known to be still those of the same messages; 1 where the store knows nothing of that
    run.  ``aging``: whether that run is one of those that the store forgets next; a client that keeps positions below
    ``kept`` keeps the new ``run`` with them then.  ``settled``: the last position that ``settle_through`` was asked to
    settle, or 0.  ``events``: the position of the last event of all regions at this moment.
``bounds_of_queues`` with ``destinations`` (names of queues, at most 1,000, of at most 32 KiB together), ``runs`` (one
for each of them; "" for none), ``claim`` (or None) and ``make`` (default: false)
    What ``bounds`` answers of each queue, in order; None of one that does not exist.
``read_range`` of a queue, with ``first``, ``last`` (inclusive), ``max_bytes``, ``incarnation`` and ``run`` (or None)
``skip_damaged`` (default: false), ``columns`` (default: false) and ``selector`` (or None: all messages)
    ``messages``: (position, delivery count, message-format, payload, annotations or None) each, by position;
    ``next``: the first position that the answer does not cover; ``damaged``: positions whose messages could not be
    trusted, and are in quarantine now.  Without ``skip_damaged`` such a message is an error, and stays.  With
    ``columns`` there is no ``messages``, but ``block``: a map of ``positions`` (u64 each), ``counts`` (u32 each: of
    deliveries), ``sizes`` (u32 each) and ``payloads`` (one behind the other), all as bytes, with little-endian
    integers, and ``annotations``: (index of a message, what was added to its properties) each.
``settle_through`` of a queue, with ``position`` (inclusive), ``first``, ``incarnation``, ``run`` and ``claim`` (or
None)
    The number of messages dropped, of those from ``first`` on.  It is refused while consumers are attached, or sessions
    hold messages of consumers that are closed.
``claim`` of a queue, with ``claim`` (an id that no other query has), ``holder`` (who that is, for people) and
``take_over`` (default: false)
    True.  From now on ``bounds`` and ``settle_through`` are refused that name another claim, also after a restart,
    until ``end_claim``; those that name none are not.  Refused where the queue has another claim, unless ``take_over``
    is true: that one is replaced then.
``end_claim`` of a queue, with ``claim``
    True, also where the queue has no such claim.
``stage`` with ``transaction``, ``queue`` (the target's name), ``first`` (index of the first message in the
transaction) and ``messages`` (packed envelopes)
    True, or False where the number of its group (as its name says) was published before: nothing of it is staged then.
    What was staged before is not staged again.  At most 50,000 messages at once.
``renew`` with ``group`` and ``number``
    The seconds for which what is staged for this number is kept from now on, unless it is added to or renewed again.
    A client that works for longer than that before the next message calls this.
``publish`` with ``group``, ``number``, ``transactions`` and ``counts`` (of their messages, or None)
    True, or False where this number of the group was published before.  At most 100,000 transactions.
``published`` with ``group``
    The last number of the group that was published; None where none was, or nothing is known of it.
``discard`` with ``transactions``, and ``prefixes`` (of further ones' names) without those that begin as ``keep`` says
    The number of staged transactions dropped.  At most 10,000 names, and 1,000 each of ``prefixes`` and ``keep``, at
    once.
``settle_positions`` of a queue, with ``given``: (position, name, failures) each, where the name is the message's
identity (as a list), else its message id, else None, and the failures are the failed deliveries before the one
acknowledged; and with ``token`` (of the connection that was lost, as its client says it in the open frame; or None)
    A map: ``settled``, the number of messages dropped, which wait at such a position under that name and no consumer
    holds; ``lost``, the positions of those that another consumer holds or has processed since, or that are dead
    letters or in the expiry queue by now (of the last 50,000 messages that ended so after a failed delivery, since the
    engine began).  At most 10,000 messages at once.
``confirm`` without arguments
    True, when what the connection has settled and sent before is done, and on disk.
``uncount`` of a queue, with ``given``: (position, name, failures) each, the last being the failed deliveries before
the one that was lost, and ``token`` (of a connection, as its client says it in the open frame; or None)
    The number of messages of which a delivery does not count any more: it was lost with that connection, and no
    application has seen it; whether they wait, or others have them in hand.  Where the engine does not know what that
    connection had, the last delivery does not count, if as many as given had failed before.  At most 10,000 messages at
    once.
``seen`` of a queue, with ``token`` (of a connection, as its client says it in the open frame) and ``positions``
    True.  The client had these when the connection was lost, and its application has seen them.  At most 10,000
    messages at once.
``seen_rest`` with ``token``
    True.  The application has seen all else that this connection had when it was lost, or may have: for a client that
    does not remember it.  All of it counts.
``uncount_rest`` with ``token``
    The number of messages of which a delivery does not count any more: all that this connection had when it was lost
    but what was ``seen``.  Of the last 200,000 deliveries that were lost, since the engine began.
``resolve_commit`` with ``session`` (the name in the commit's id), ``number`` and ``age_ms`` (how long ago the commit
was made; default 0)
    True where that commit was done, False where it was not; None where it may have been forgotten, since it was made
    longer ago than ``commit_memory_seconds``.  Nothing of a connection that is gone is done after this answer.
``delete`` of a queue, of a topic, or of a subscription, with ``force`` (default: false) and ``incarnation`` (of a queue
or subscription; or None)
    The number of messages that it had.  It is refused while it is in use, unless by force.

``create_region`` with ``region`` (its name) and ``conflates`` (None: as it is)
    True, when the region exists.
``change_keys`` with ``region`` and ``changes``: (key, change, packed envelope) each, where the change is 0 (put), 1
(invalidate) or 2 (destroy)
    (operation, version) of each, in order: 0 (create), 1 (update), 2 (invalidate), 3 (destroy), or None where nothing
    has changed.  What was changed before, as the message's identity says, is not changed again: where it was the key's
    last change, the answer is that of then, else None and the key's version.  At most 10,000 at once; up to 1,000 of
    them are one commit.
``read_keys`` with ``region``, ``keys`` (or None: all), ``after`` (a key, of all those behind it; or None), ``values``
(default: true), ``selector`` and ``expression`` (a regular expression for the whole key; or None), ``max_bytes``
and ``skip_damaged`` as in ``read_range``; and with ``snapshot`` (or None: what is there now) and
``through`` (of all keys, the last one that is wanted; or None)
    ``entries``: (key, version, state, message-format, payload) of each key that is there, where the state is 0 (it has
    a value) or 1 (it has none), in the order of the keys' bytes, or as they were named; ``next``: the last key that was
    examined, where there are more, else None; ``position``: of the last event as this began.  Every change up to that
    position is in the answer; some behind it may be, and their versions say so.  Of a snapshot, nothing behind its
    position is.  ``damaged``: with ``skip_damaged``, the keys that were left out, whose values cannot be trusted.
``open_snapshot`` with ``region`` and ``keys_per_part`` (default: 0, it is not divided)
    ``snapshot``: what names it from any connection, until it was not read for ``region_snapshot_seconds``, the store
    needs the room, or the engine starts again; as long as no event of any region happens behind it, what is there then
    is read in its place, and else the request is refused.  ``position``: of its last event.  ``splits``: keys in order,
    so that up to each of them there are this many, those that were destroyed lately included.
``close_snapshot`` with ``region`` and ``snapshot``
    Whether it was open, and one of this region.
``register_interest`` with ``region``, ``interests``: (kind, text, name) each, where the kind is 0 (one key), 1 (all
keys), 2 (a regular expression), 3 (a selector) or 4 (a query, which has a name), and ``durable`` (default: false)
    The position behind which events are queued for the connection's durable client.
``unregister_interest`` with ``region``, ``interests`` and ``drop_queued`` (default: false)
    True.  With ``drop_queued`` what waits for these queries alone is dropped.
``ready_for_events`` without arguments
    True.  The connection's durable client gets its events from now on.
``acknowledge_events`` with ``through`` (a position)
    How many events of the connection's durable client end, which has processed them.
``pending_events`` without arguments
    How many events waited for the durable client as it connected; -1: it was away for too long, -2: it had no queue.
``event_positions`` with ``run`` (or None)
    ``run``: in which run of the engine events have their positions from now on; None where the store has no room for a
    note of that.  ``kept``: positions of events below it, seen in the run that was asked about, are known to be still
    those of the same events.
``leave`` with ``keep``
    Whether the queue of the connection's durable client, which closes, stays: with ``keep``, if it has a durable
    interest.

``clients`` with ``client_id`` (of one; None: of all), ``after`` (an id, of all those behind it; or None) and ``limit``
(default: 100, at most 1,000)
    ``clients``, by their ids, and ``next``: the last id, where there may be more behind it, else None.  Of each
    durable client: ``client_id``, ``state`` ("connected", "live", "paused", "draining" or "timed_out"), ``timeout_ms``
    (how long it may be away; None: for ever), ``away_ms`` (for how long it has been; None: it is here), ``conflation``
    ("server", "true" or "false"), ``interest_count``, ``size`` (events in its queue), ``in_hand`` (of these, those that
    it has and has not acknowledged) and ``is_exact`` (false: ``size``, and ``queued`` with it, may be less).  Counted
    since it came first: ``queued`` (events that came for it), ``dispatched`` (that left for it, again ones included),
    ``again`` (that had left for a connection that was lost), ``removed`` (that it has processed), ``conflated``
    (updates that were left out for newer ones), ``drained`` (taken out for a query that was closed), ``dropped`` (lost
    with its queue, or unreadable), ``reconnections``, and ``while_away`` (events that came while it was away).  Always
    ``queued`` = ``removed`` + ``conflated`` + ``drained`` + ``dropped`` + ``size``.  Of one client also ``interests``,
    the first 1,000 at most: ``region``, ``kind`` ("key", "all_keys", "expression", "selector" or "query"), ``text``,
    ``name`` (of a query) and ``durable``.  One that there is not is an error.
``queue_size`` with ``client_id``
    ``state``, ``size``, ``in_hand`` and ``is_exact`` of a durable client, as in ``clients``.
``regions`` with ``after`` (a name; or None) and ``limit`` (default: 100, at most 1,000)
    ``regions``, by their names, and ``next`` as in ``clients``.  Of each: ``name``, ``conflates``, ``keys`` (that are
    there, those without a value included), ``clients`` (durable ones that want something of it) and ``events`` (that
    are stored).
``queries`` with ``client_id`` (of one; None: of all), ``after`` (the ``next`` of an answer; or None) and ``limit``
(default: 100, at most 1,000)
    ``queries``, by client and name, and ``next``: (client id, name) of the last one, where there are more, else None.
    Of each continuous query: ``client_id``, ``name``, ``region``, ``selector``, ``durable``, and the ``state`` of its
    client.
``close_client`` with ``client_id``
    ``dropped``: how many events its queue had; ``is_exact``: false where they may have been fewer.  A durable client
    that is connected is not closed, but an error.
``close_query`` with ``client_id`` and ``name``
    ``dropped``: how many events were taken out of the queue of the durable client, which were for this query alone.  It
    is an error where the client is connected; and until the answer the client cannot connect.

``purge``, ``redrive``, ``delete``, ``close_client`` and ``close_query`` take effect once where they are repeated under
one ``request_id`` (a word of at most 100 characters that the client makes up, for this one request) and ``request_run``
(the ``run`` that ``bounds`` returns; a restart of the engine changes it, and a request that names an earlier run is
refused, because the engine does not remember whether it was carried out).  An answer is remembered for ten minutes,
unless 1,000 others came after it.  A connection that restores itself adds both where they are not given.  Other
operations accept them, without effect.

A range of positions reads the same, from anywhere, until it is settled: nothing is taken by reading.  The *incarnation*
tells a queue from one of the same name that was made after it was deleted.  The *run* tells the starts of the engine
apart: where its store was replaced by an older copy, positions that were seen in an earlier run may be given once more,
to other messages.  A request that names the run in which a position was seen is refused instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.identities import MAX_NUMBER
from broker_adapter.engine.operations import arguments as arguments_module
from broker_adapter.engine.operations import durable_clients as client_operations
from broker_adapter.engine.operations import named_messages as given_operations
from broker_adapter.engine.operations import ranges as range_operations
from broker_adapter.engine.operations import regions as region_operations
from broker_adapter.engine.operations import staged as staged_operations
from broker_adapter.engine.operations.arguments import DESTINATIONS, QUEUE, Argument, checked
from broker_adapter.engine.operations.durable_clients import MAX_DESCRIBED
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.operations.regions import MAX_KEYS
from broker_adapter.engine.operations.steps import (
    MAX_DISCARDED,
    MAX_GIVEN,
    MAX_PREFIXES,
    MAX_PUBLISHED,
    MAX_QUEUES,
    MAX_RANGE_BYTES,
    MAX_STAGED,
    RANGE_ENTRIES,
    Arguments,
    Steps,
    settle,
)
from broker_adapter.engine.queues.statistics import BrokerStatistics, QueueStatistics, as_plain
from broker_adapter.errors import (
    ConnectionLostException,
    MessageFormatException,
    OperationTimedOutException,
)

#: Operations that are not the same when they are carried out again.
ONCE = frozenset(("purge", "redrive", "delete", "close_client", "close_query"))
#: Queues whose figures are collected in one cycle.
_STATISTICS_QUEUES = 100


class Engine(Protocol):
    """What operations need of the broker."""

    def call(self, command: c.Command, timeout: float | None) -> Any:
        """Carry out a command."""

    def reading(self) -> AbstractContextManager[Reader]:
        """Keep all other threads out."""


def perform(
    engine: Engine,
    operation: str,
    arguments: Mapping[str, Any],
    timeout: float | None,
    is_cancelled: Callable[[], bool] | None = None,
    client: int = 0,
) -> Any:
    """Carry out one operation of the table above.

    Args:
        engine: the broker.
        operation: its name.
        arguments: by name.
        timeout: longest wait in seconds; None: no limit.
        is_cancelled: asked before each step; once it returns True, no further step is carried out.
        client: the engine's number of the connection that asks; 0: none asks.

    Raises:
        ConnectionLostException: the operation was cancelled; what was done so far stays done.
        InvalidDestinationException: the queue, or this incarnation of it, is gone.
        MessageFormatException: an argument is missing or of the wrong type, or the operation is unknown.
        OperationTimedOutException: not done in time; what was done so far stays done, and it may be repeated.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    steps = steps_of(operation, arguments, client)
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value
        if is_cancelled is not None and is_cancelled():
            raise ConnectionLostException("the operation was cancelled: the connection that asked for it ended")
        left = _left(deadline)
        if isinstance(step, tuple):
            result = engine.call(step, left)
        else:
            with engine.reading() as reader:
                result = step(reader)


def steps_of(operation: str, arguments: Mapping[str, Any], client: int = 0) -> Steps:
    """The steps of one operation; each may be carried out in another cycle of the engine, and others in between.

    Args:
        operation: its name.
        arguments: by name.
        client: the engine's number of the connection that asks; 0: none asks.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is not what it must be.
    """
    values = checked_arguments(operation, arguments)
    return _HANDLERS[operation](Arguments(values, client))


def checked_arguments(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operation, those that are not given with their default.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is not what it must be.
    """
    return checked(operation, _arguments_of(operation), arguments)


def check_outline(operation: str, outline: Mapping[str, Any]) -> int:
    """Refuse a request early, by its outline; see :func:`broker_adapter.engine.operations.arguments.check_outline`.

    Raises:
        MessageFormatException: the operation is unknown, or cannot have such arguments.
    """
    return arguments_module.check_outline(operation, _arguments_of(operation), outline)


def _arguments_of(operation: str) -> Mapping[str, Argument]:
    wanted = ARGUMENTS.get(operation) if isinstance(operation, str) else None
    if wanted is None:
        raise MessageFormatException(f"unknown operation {operation!r:.100}; the operations are {', '.join(ARGUMENTS)}")
    return wanted


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise OperationTimedOutException("the time is over; what was done stays done, and the call may be repeated")
    return left


def _statistics(arguments: Arguments) -> Steps:
    # In parts: the statistics of many queues at once would block all other clients.
    numbers: list[int] = yield lambda reader: list(reader.state.directory.queues)
    queues: list[QueueStatistics] = yield lambda reader: reader.state.directory.topic_statistics()
    first = 0
    while first < len(numbers):
        wanted = numbers[first : first + _STATISTICS_QUEUES]
        sent_ms, count = yield partial(Reader.oldest_sent_ms, numbers=wanted)
        part: BrokerStatistics = yield c.Statistics(wanted[:count], sent_ms)
        queues += part.queues
        first += count
    in_quarantine: int = yield lambda reader: reader.in_quarantine
    events: e.EventStatistics = yield e.EventTotals()
    return as_plain(
        (yield c.Statistics(())),
        queues,
        in_quarantine=in_quarantine,
        durable_clients=dict(events.clients),
        stored_events=events.events,
        queues_timed_out=events.dropped_by_timeout,
        queues_overflowed=events.dropped_by_overflow,
        markers=events.markers,
    )


def _purge(arguments: Arguments) -> Steps:
    def through(reader: Reader) -> tuple[int, int]:
        queue = arguments.queue(reader.state)
        return queue.id, queue.next_position - 1

    number, last = yield through
    # The delayed ones first: one that falls due gets a position behind all that there were.
    dropped = yield from settle(number, last, delayed=True)
    return dropped + (yield from settle(number, last))


def _redrive(arguments: Arguments) -> Steps:
    to, limit = arguments["to"], arguments["limit"]

    def through(reader: Reader) -> tuple[int, int]:
        queue = arguments.queue(reader.state)
        return queue.id, queue.next_position - 1

    number, last = yield through
    moved = seen = 0
    position: int | None = 0
    while position is not None and (limit is None or moved < limit):
        most = RANGE_ENTRIES if limit is None else min(RANGE_ENTRIES, limit - moved)
        some, examined, position = yield c.Redrive(c.Range(number, position, last, most), to)
        moved += some
        seen += examined
    return {"moved": moved, "left": seen - moved}


def _delete(arguments: Arguments) -> Steps:
    kind = DestinationKind.TOPIC if arguments["kind"] == "topic" else DestinationKind.QUEUE
    number: int | None = None
    if arguments["incarnation"] is not None:
        number = (yield arguments.this_queue).id
    return (
        yield c.Delete(
            Destination(arguments["destination"], kind),
            arguments["subscription"],
            arguments["client_id"],
            arguments["force"],
            number,
        )
    )


def _resolve_commit(arguments: Arguments) -> Steps:
    commit_id = c.CommitId(arguments["session"], arguments["number"])
    return (yield c.ResolveCommit(commit_id, arguments["age_ms"]))


_HANDLERS: dict[str, Callable[[Arguments], Steps]] = {
    "statistics": _statistics,
    "purge": _purge,
    "redrive": _redrive,
    "delete": _delete,
    "bounds": range_operations.bounds,
    "bounds_of_queues": range_operations.bounds_of_queues,
    "read_range": range_operations.read_range,
    "settle_through": range_operations.settle_through,
    "claim": range_operations.claim,
    "end_claim": range_operations.end_claim,
    "settle_positions": given_operations.settle_positions,
    "confirm": given_operations.confirm,
    "uncount": given_operations.uncount,
    "seen": given_operations.seen,
    "seen_rest": given_operations.seen_rest,
    "uncount_rest": given_operations.uncount_rest,
    "stage": staged_operations.stage,
    "renew": staged_operations.renew,
    "publish": staged_operations.publish,
    "published": staged_operations.published,
    "discard": staged_operations.discard,
    "resolve_commit": _resolve_commit,
    "create_region": region_operations.create_region,
    "change_keys": region_operations.change_keys,
    "read_keys": region_operations.read_keys,
    "open_snapshot": region_operations.open_snapshot,
    "close_snapshot": region_operations.close_snapshot,
    "register_interest": region_operations.register_interest,
    "unregister_interest": region_operations.unregister_interest,
    "ready_for_events": region_operations.ready_for_events,
    "acknowledge_events": region_operations.acknowledge_events,
    "pending_events": region_operations.pending_events,
    "event_positions": region_operations.event_positions,
    "leave": region_operations.leave,
    "clients": client_operations.clients,
    "queue_size": client_operations.queue_size,
    "regions": client_operations.regions,
    "queries": client_operations.queries,
    "close_client": client_operations.close_client,
    "close_query": client_operations.close_query,
}

_RUN = Argument(str, None)
_CLAIM = Argument(str, None)
_NUMBER = Argument(int, most=MAX_NUMBER)
_GIVEN = Argument(list, most_values=MAX_GIVEN)
#: What a client names the source of its deliveries by: a subscription that is not durable as well.
_SOURCE = {**QUEUE, "durable": Argument(bool, None)}
_PREFIXES = Argument(list, (), of=str, most_values=MAX_PREFIXES)
_DESCRIBED = Argument(int, 100, least=1, most=MAX_DESCRIBED)
_INTERESTS = {"region": Argument(str), "interests": Argument(list, most_values=MAX_KEYS)}
#: The arguments of each operation; ``check`` is carried out beside the engine.
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "statistics": {},
    "check": {},
    "purge": QUEUE,
    "redrive": {
        **QUEUE,
        "destination": Argument(str, None),
        "to": Argument(str, None),
        "limit": Argument(int, None),
    },
    "delete": {**QUEUE, "force": Argument(bool, False), "incarnation": Argument(str, None)},
    "bounds": {**QUEUE, "run": _RUN, "make": Argument(bool, False), "claim": _CLAIM},
    "bounds_of_queues": {
        DESTINATIONS: Argument(list, of=str, most_values=MAX_QUEUES),
        "runs": Argument(list, of=str, most_values=MAX_QUEUES),
        "make": Argument(bool, False),
        "claim": _CLAIM,
    },
    "read_range": {
        **QUEUE,
        "first": Argument(int),
        "last": Argument(int),
        "max_bytes": Argument(int, MAX_RANGE_BYTES, least=1),
        "incarnation": Argument(str, None),
        "run": _RUN,
        "skip_damaged": Argument(bool, False),
        "columns": Argument(bool, False),
        "selector": Argument(str, None),
    },
    "settle_through": {
        **QUEUE,
        "position": Argument(int),
        "first": Argument(int, 0),
        "incarnation": Argument(str, None),
        "run": _RUN,
        "claim": _CLAIM,
    },
    "claim": {**QUEUE, "claim": Argument(str), "holder": Argument(str), "take_over": Argument(bool, False)},
    "end_claim": {**QUEUE, "claim": Argument(str)},
    "settle_positions": {**_SOURCE, "given": _GIVEN, "token": Argument(str, None)},
    "uncount": {**_SOURCE, "given": _GIVEN, "token": Argument(str, None)},
    "seen": {**_SOURCE, "token": Argument(str), "positions": Argument(list, of=int, most_values=MAX_GIVEN)},
    "seen_rest": {"token": Argument(str)},
    "uncount_rest": {"token": Argument(str)},
    "confirm": {},
    "stage": {
        "transaction": Argument(str),
        "queue": Argument(str),
        "first": Argument(int),
        "messages": Argument(list, of=bytes, most_values=MAX_STAGED),
    },
    "renew": {"group": Argument(str), "number": _NUMBER},
    "publish": {
        "group": Argument(str),
        "number": _NUMBER,
        "transactions": Argument(list, of=str, most_values=MAX_PUBLISHED),
        "counts": Argument(list, None, of=int, most_values=MAX_PUBLISHED),
    },
    "published": {"group": Argument(str)},
    "discard": {
        "transactions": Argument(list, (), of=str, most_values=MAX_DISCARDED),
        "prefixes": _PREFIXES,
        "keep": _PREFIXES,
    },
    "resolve_commit": {"session": Argument(str), "number": _NUMBER, "age_ms": Argument(int, 0)},
    "create_region": {"region": Argument(str), "conflates": Argument(bool, None)},
    "change_keys": {"region": Argument(str), "changes": Argument(list, most_values=MAX_KEYS)},
    "read_keys": {
        "region": Argument(str),
        "keys": Argument(list, None, of=str, most_values=MAX_KEYS),
        "after": Argument(str, None),
        "values": Argument(bool, True),
        "selector": Argument(str, None),
        "expression": Argument(str, None),
        "max_bytes": Argument(int, MAX_RANGE_BYTES, least=1),
        "skip_damaged": Argument(bool, False),
        "snapshot": Argument(str, None),
        "through": Argument(str, None),
    },
    "open_snapshot": {"region": Argument(str), "keys_per_part": Argument(int, 0)},
    "close_snapshot": {"region": Argument(str), "snapshot": Argument(str)},
    "register_interest": {**_INTERESTS, "durable": Argument(bool, False)},
    "unregister_interest": {**_INTERESTS, "drop_queued": Argument(bool, False)},
    "ready_for_events": {},
    "acknowledge_events": {"through": Argument(int)},
    "pending_events": {},
    "event_positions": {"run": Argument(str, None)},
    "leave": {"keep": Argument(bool)},
    "clients": {"client_id": Argument(str, None), "after": Argument(str, None), "limit": _DESCRIBED},
    "queue_size": {"client_id": Argument(str)},
    "regions": {"after": Argument(str, None), "limit": _DESCRIBED},
    "queries": {
        "client_id": Argument(str, None),
        "after": Argument(list, None, of=str, most_values=2),
        "limit": _DESCRIBED,
    },
    "close_client": {"client_id": Argument(str)},
    "close_query": {"client_id": Argument(str), "name": Argument(str)},
}
