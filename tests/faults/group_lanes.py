"""What the soak of a group does with messages, one lane for each way, and what each of them promises."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import attrs

from sdk import (
    AcknowledgeMode,
    Connection,
    JMSException,
    Message,
    MessageProducer,
    QueueStatistics,
    Region,
    RegionEvent,
    RegionListener,
    ResourceAllocationException,
    Session,
)
from tests.faults.lanes import BATCH, Course, DurableLane, Faced, QueueLane
from tests.faults.sites import SiteClient

#: Messages a second in each lane.
RATE: Final = 60
#: Modes in which what was acknowledged or committed, and confirmed, does not come again.
ENDING: Final = (AcknowledgeMode.CLIENT, AcknowledgeMode.INDIVIDUAL, AcknowledgeMode.TRANSACTED)
#: Of the URL of a gateway: it notices a loss soon.
GATEWAY_OPTIONS: Final = "?idle_timeout_seconds=1&connect_timeout_seconds=5&request_timeout_seconds=10"


@attrs.frozen
class Insisting:
    """A producer that sends again what is refused."""

    _producer: MessageProducer

    def send(self, message: object, **options: Any) -> None:
        while True:
            try:
                return self._producer.send(message, **options)
            except ResourceAllocationException:
                time.sleep(0.05)


@attrs.define
class GroupLane(QueueLane):
    """A queue with one producer and one consumer: what comes for the first time comes in its order."""

    back: list[int] = attrs.field(factory=list, kw_only=True)  #: came after their end was confirmed
    next: int = attrs.field(default=0, kw_only=True)  #: the lowest number that has not come

    def has_all(self) -> bool:
        """Whether all that was sent has come."""
        return self.next >= self.sent

    def saw(self, message: Message) -> int:
        """See :meth:`Lane.saw`."""
        number = super().saw(message)
        if number in self.ended and self.mode in ENDING:
            self.back.append(number)
        if number > self.next:
            self.broken.append(f"{number} came, and {self.next} had not come")
        self.next = max(self.next, number + 1)
        return number

    def producer(self, session: Session) -> MessageProducer:
        """See :meth:`QueueLane.producer`; what is refused, since too few nodes are in sync, is sent again."""
        return cast(MessageProducer, Insisting(super().producer(session)))

    def _commit_some(self, session: Session, producer: MessageProducer) -> None:
        try:
            super()._commit_some(session, producer)
        except ResourceAllocationException as error:
            self.raised[type(error).__name__] += 1
            session.rollback()

    def problems(self, queues: Mapping[str, QueueStatistics], faced: Faced) -> Iterable[str]:
        """See :meth:`Lane.problems`."""
        yield from super().problems(queues, faced)
        if self.back:
            yield f"{len(self.back)} came after they were acknowledged: {self.back[:10]}"


@attrs.define
class DurableGroupLane(GroupLane, DurableLane):
    """The same with a durable subscription."""


@attrs.define
class _Told(RegionListener):
    """The values that a durable client was told of."""

    values: list[int] = attrs.field(factory=list)

    def after_create(self, event: RegionEvent) -> None:
        self.values.append(int(event.value))

    def after_update(self, event: RegionEvent) -> None:
        self.values.append(int(event.value))


@attrs.define
class GatewayLane(GroupLane):
    """A queue that a gateway moves to another site, and a region: each transaction has messages, and changes of keys.

    A durable client of the group is told of each change once.
    """

    site: SiteClient = attrs.field(kw_only=True)  #: the other one
    url: str = attrs.field(kw_only=True)  #: of the site to which the gateway leads
    is_outward: bool = attrs.field(kw_only=True)  #: from the group to the site
    told: _Told = attrs.field(factory=_Told, kw_only=True)
    _changed: Region | None = attrs.field(default=None, kw_only=True)  #: of the producer

    @property
    def region(self) -> str:
        """The name of the region: statistics have both by their names."""
        return f"region {self.name}"

    def prepare(self, consuming: Connection) -> None:
        """See :meth:`Lane.prepare`."""
        region = consuming.create_session().create_region(self.region)
        region.add_listener(self.told)
        region.register_interest(all_keys=True, durable=True)
        consuming.ready_for_events()
        self.site.session.create_region(self.region)
        arguments = {
            **{"name": self.name, "url": self.url + GATEWAY_OPTIONS, "state": "running"},
            **{"destinations": [f"move:{self.name}", f"region:{self.region}"]},
            **{"batch_ms": 0, "group_transaction_events": True},
        }
        (consuming if self.is_outward else self.site.connection).request("create_gateway", arguments)

    def has_all(self) -> bool:
        """See :meth:`GroupLane.has_all`."""
        return super().has_all() and len(self.told.values) >= self.sent

    def produce(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.produce`."""
        super().produce(connection if self.is_outward else self.site.connection, course)

    def producer(self, session: Session) -> MessageProducer:
        """See :meth:`QueueLane.producer`."""
        self._changed = session.create_region(self.region)
        return super().producer(session)

    def _commit_some(self, session: Session, producer: MessageProducer) -> None:
        assert self._changed is not None
        try:
            found = self._changed.get_all()
            self._changed.put_all(_values(self.sent + BATCH))
        except JMSException as error:
            self.raised[type(error).__name__] += 1
            session.rollback()
            return
        if found != _values(self.sent):
            self.broken.append(f"{self.sent} were committed, and the region has {found}")
        super()._commit_some(session, producer)

    def consume(self, connection: Connection, course: Course) -> None:
        """See :meth:`Lane.consume`."""
        connection = self.site.connection if self.is_outward else connection
        super().consume(connection, course)
        found = connection.create_session().create_region(self.region).get_all()
        if found != _values(self.sent):
            self.broken.append(f"{self.sent} were committed, and the region there has {found}")

    def record(self, queues: Mapping[str, QueueStatistics]) -> QueueStatistics:
        """See :meth:`Lane.record`: of the queue to which messages are moved."""
        if self.is_outward:
            queues = {each.name: each for each in self.site.connection.statistics().queues}
        return queues[self.name]

    def problems(self, queues: Mapping[str, QueueStatistics], faced: Faced) -> Iterable[str]:
        """See :meth:`Lane.problems`."""
        yield from super().problems(queues, faced)
        told = self.told.values
        if told != [*range(self.sent)]:
            yield f"{self.sent} keys were changed, and a client was told {len(told)} times, of {len({*told})}"


def _values(count: int) -> dict[str, str]:
    """What a region has once so many messages are committed."""
    return {str(number % BATCH): str(number) for number in range(max(0, count - BATCH), count)}


def lanes(min_in_sync: int, url: str, site: SiteClient, site_url: str) -> list[GroupLane]:
    """One for each mode, two for AUTO, a durable subscription, a gateway to another site and one from there.

    Args:
        min_in_sync: of the group; where sends may be refused, all wait for answers.
        url: of the group.
        site: the other site.
        site_url: its URL.
    """
    found = [
        GroupLane("auto", mode=AcknowledgeMode.AUTO, rate=RATE),
        GroupLane("auto, listener", mode=AcknowledgeMode.AUTO, rate=RATE, listens=True, sends_later=True),
        GroupLane("dups_ok", mode=AcknowledgeMode.DUPS_OK, rate=RATE, sends_later=True),
        GroupLane("client", mode=AcknowledgeMode.CLIENT, rate=RATE),
        GroupLane("individual", mode=AcknowledgeMode.INDIVIDUAL, rate=RATE, sends_later=True),
        GroupLane("transacted", mode=AcknowledgeMode.TRANSACTED, rate=RATE),
        DurableGroupLane("durable subscription", mode=AcknowledgeMode.CLIENT, rate=RATE),
    ]
    for lane in found:
        lane.sends_later = lane.sends_later and min_in_sync == 1
    gateways = [
        GatewayLane(name, mode=AcknowledgeMode.TRANSACTED, rate=RATE, site=site, url=to, is_outward=is_outward)
        for name, to, is_outward in (("to a site", site_url, True), ("from a site", url, False))
    ]
    return [*found, *gateways]
