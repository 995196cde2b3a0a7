"""Requests about an engine and about whole queues: statistics, a check, and what destroys or moves all messages."""

from __future__ import annotations

from functools import partial
from typing import Final

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.reader import OperationsState, Reader
from broker_adapter.engine.operations.request import SEND, Names, Request, Steps, Threads, argument, request
from broker_adapter.engine.operations.steps import RANGE_ENTRIES, OfQueue, settle
from broker_adapter.engine.queues.statistics import BrokerStatistics, QueueStatistics, as_plain

#: Queues whose figures are collected in one cycle.
_STATISTICS_QUEUES: Final = 100


@request(Threads.SHORT)
class StatisticsRequest(Request):
    """``BrokerStatistics`` as a map.

    Counted since the engine was opened: ``enqueued``, ``delivered``, ``settled``, ``redelivered``, ``expired`` and
    ``dead_lettered`` messages, ``duplicates_rejected``, ``refused`` (sends, at a limit), ``quarantined`` (damaged
    records), ``miscounted`` (messages by which counters of queues were corrected; if more than 0, run ``holdfast
    check``) and ``commits`` of the store; of durable clients ``queues_timed_out`` and ``queues_overflowed`` (queues
    that were dropped since their clients were away for too long, or since they were too long) and ``markers`` (that
    clients got); by the option ``full_subscription`` ``dropped`` (messages) and ``subscriptions_ended``.  As it is now:
    ``clients``, ``volatile_bytes`` (of non-persistent messages and places), ``blocked_because`` (why all producers are
    held back; or None), ``in_quarantine`` (records), ``durable_clients`` (how many there are in each state),
    ``stored_events`` (of regions) and ``queues``.  Of each of these: ``name``, ``kind`` ("queue", "topic",
    "subscription", "staged", "region", "events" or "gateway"), ``messages`` (those in hand and delayed included),
    ``bytes``, ``in_hand`` (of consumers), ``delayed``, ``consumers``, ``blocked_sends`` (that wait for room),
    ``next_position``, ``client_id`` (or None), ``oldest_age_ms`` (since its oldest due message was sent, as that says,
    or came to a gateway; or None) and ``dropped`` (since the engine was opened).
    """

    def steps(self, client: int) -> Steps:
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


@request(Threads.SHORT)
class QueueSettingsRequest(Request):
    """The settings of a queue, or of the subscriptions of a topic, by name: the value, and where it is from
    ("default", an option, or the policy).
    """

    destination: str = argument(names=Names.DESTINATION)
    kind: str = argument("queue")

    def steps(self, client: int) -> Steps:
        kind = DestinationKind.TOPIC if self.kind == "topic" else DestinationKind.QUEUE
        settings = yield lambda reader: reader.state.directory.policies.settings_of(Destination(self.destination, kind))
        return {name: list(each) for name, each in settings.shown().items()}


@request()
class CheckRequest(Request):
    """What ``holdfast check --json`` prints, of the records on disk as of the last commit."""

    # It is carried out beside the engine: see ``Broker.request``.


@request(once=True)
class PurgeRequest(OfQueue):
    """The number of messages dropped: those that wait, and not those in consumers' hands."""

    def steps(self, client: int) -> Steps:
        def through(reader: Reader) -> tuple[int, int]:
            queue = self.queue_in(reader.state)
            return queue.id, queue.next_position - 1

        number, last = yield through
        # The delayed ones first: one that falls due gets a position behind all that there were.
        dropped = yield from settle(number, last, delayed=True)
        return dropped + (yield from settle(number, last))


@request(once=True)
class RedriveRequest(OfQueue):
    """``moved`` and ``left``: how many of its messages went back to where they were set aside, or to ``to``, and how
    many stayed, because that is full, unknown, or a subscription that is gone.

    A queue that is gone is made again.  Without ``destination`` it is the dead-letter queue.
    """

    # None: the dead-letter queue.
    destination: str = argument(None, names=Names.DESTINATION)
    to: str | None = argument(None, names=Names.QUEUE, rights=(SEND,), note="name of a queue")
    limit: int | None = argument(None)

    def _name(self, state: OperationsState) -> str:
        return state.directory.settings.dead_letter_queue if self.destination is None else self.destination

    def steps(self, client: int) -> Steps:
        to, limit = self.to, self.limit

        def through(reader: Reader) -> tuple[int, int]:
            queue = self.queue_in(reader.state)
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


@request(once=True)
class DeleteRequest(OfQueue):
    """The number of messages that it had.

    It may be a topic as well.  It is refused while it is in use, unless by force.
    """

    force: bool = argument(False)
    incarnation: str | None = argument(None, note="of a queue or subscription")

    def steps(self, client: int) -> Steps:
        kind = DestinationKind.TOPIC if self.kind == "topic" else DestinationKind.QUEUE
        number: int | None = None
        if self.incarnation is not None:
            number = (yield self.this_queue).id
        return (
            yield c.Delete(
                Destination(self.destination, kind),
                self.subscription,
                self.client_id,
                self.force,
                number,
            )
        )
