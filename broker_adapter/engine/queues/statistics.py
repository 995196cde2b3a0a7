"""What the engine knows about itself, as frozen objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from broker_adapter.errors import MessageFormatException

_Made = TypeVar("_Made")


@attrs.frozen
class QueueStatistics:
    """One queue or subscription."""

    name: str  #: of the queue, topic, subscription or staged transaction
    #: "queue", "topic" (its number of subscriptions as consumers), "subscription", "staged", "region" (its values),
    #: "events" (of all regions) or "gateway" (what waits for another site)
    kind: str
    messages: int  #: waiting, in consumers' hands and not due yet
    bytes: int  #: of their payloads
    in_hand: int  #: in consumers' hands
    delayed: int  #: not due yet
    consumers: int  #: attached now
    blocked_sends: int  #: sends that wait because of a limit
    next_position: int  #: of the message that is stored next
    client_id: str | None = None  #: of a subscription that has one: others may have subscriptions of the same name
    #: time since the oldest message was sent, as it says, or came to a gateway; None where there is none that is due,
    #: where it does not say that, and of what is none of these
    oldest_age_ms: int | None = None
    dropped: int = 0  #: since the start, of a subscription that was full and not read (option full_subscription)


@attrs.frozen
class BrokerStatistics:
    """The whole engine since it was opened."""

    enqueued: int  #: messages taken in
    delivered: int  #: messages sent to consumers
    settled: int  #: settlements of deliveries
    redelivered: int  #: deliveries that failed
    expired: int  #: messages that expired
    dead_lettered: int  #: messages moved to the dead-letter queue
    duplicates_rejected: int  #: sends of an identity that was there already
    refused: int  #: sends refused at a limit
    quarantined: int  #: records that could not be trusted, since the start
    miscounted: int  #: messages that counters said wrongly, since the start: a reason for ``holdfast check``
    commits: int  #: of the store
    clients: int  #: connections now
    volatile_bytes: int  #: of non-persistent messages and places
    blocked_because: str | None  #: why producers of the whole broker are held back
    queues: tuple[QueueStatistics, ...]  #: each queue, topic, subscription and staged transaction
    in_quarantine: int = 0  #: records that are in the store's quarantine, from earlier starts as well
    durable_clients: Mapping[str, int] = attrs.field(factory=dict, hash=False)  #: how many there are in each state
    stored_events: int = 0  #: events of regions, that wait for durable clients
    queues_timed_out: int = 0  #: queues of durable clients that were away for too long
    queues_overflowed: int = 0  #: queues of durable clients that were too long
    markers: int = 0  #: durable clients that were told their marker
    dropped: int = 0  #: messages that were dropped of subscriptions that were full and not read
    subscriptions_ended: int = 0  #: subscriptions that were deleted since they were full and not read


class Totals:
    """What the engine has counted since it was opened."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.delivered = 0
        self.settled = 0
        self.redelivered = 0
        self.expired = 0
        self.dead_lettered = 0
        self.dropped = 0
        self.subscriptions_ended = 0
        self.miscounted = 0
        self.duplicates_rejected = 0
        self.refused = 0
        self.quarantined = 0
        self.commits = 0


def by_kind_and_name(queue: QueueStatistics) -> tuple[str, str]:
    """The order of queues in a list."""
    return queue.kind, queue.name


def as_plain(statistics: BrokerStatistics, queues: Iterable[QueueStatistics], **known: Any) -> dict[str, Any]:
    """The statistics as plain data.

    Args:
        statistics: without what is known only elsewhere.
        queues: each queue, topic, subscription and staged transaction.
        known: further fields, by name.
    """
    fields = {**attrs.asdict(statistics, recurse=False), **known}
    fields["queues"] = [attrs.asdict(queue, recurse=False) for queue in sorted(queues, key=by_kind_and_name)]
    return fields


def statistics_from(fields: Mapping[str, Any]) -> BrokerStatistics:
    """The statistics in the plain data that the operation ``statistics`` answers; a newer broker may say more.

    Raises:
        MessageFormatException: a field is missing, or they are no statistics at all.
    """
    try:
        queues = tuple(_made(QueueStatistics, queue) for queue in fields["queues"])
        return _made(BrokerStatistics, {**fields, "queues": queues})
    except (KeyError, TypeError) as error:
        raise MessageFormatException(f"the broker's statistics are not what they should be: {error}") from error


def _made(cls: type[_Made], fields: Mapping[str, Any]) -> _Made:
    return cls(**{each.name: fields[each.name] for each in attrs.fields(cls) if each.name in fields})  # type: ignore[arg-type]
