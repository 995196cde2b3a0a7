"""Short words for driving regions and durable clients in tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest
from broker_adapter.engine.regions.key_records import Wanted
from tests.broker_adapter.engine.driving import WAIT, come_to_rest, connect, message


def make(broker: Broker, *regions: str) -> None:
    for region in regions:
        broker.call(e.MakeRegion(region), WAIT)


def change(broker: Broker, region: str, key: str, wanted: Wanted, body: object = b"", **fields: Any) -> Any:
    """(operation, version) of one change."""
    (answer,) = broker.call(e.ChangeKeys(region, [e.KeyChange(key, wanted, message(body, **fields))]), WAIT)
    return answer


def put(broker: Broker, region: str, key: str, body: object = b"", **fields: Any) -> int:
    """Put a value; returns the version."""
    version: int = change(broker, region, key, Wanted.PUT, body, **fields)[1]
    return version


class Desk:
    """A durable client.

    Attributes:
        pending: what it was told of its queue as it connected.
        got: what it has got on this connection.
    """

    def __init__(
        self,
        broker: Broker,
        client_id: str = "desk",
        timeout_ms: int | None = None,
        window: int = 100,
        conflation: str = "server",
        window_bytes: int | None = None,
    ) -> None:
        self.broker = broker
        self.client_id = client_id
        self.got: list[Any] = []
        self.connection = connect(broker)
        command = e.ConnectDurable(
            self.connection,
            client_id,
            timeout_ms,
            window,
            self.got.extend,
            conflation=conflation,
            window_bytes=window_bytes,
        )
        self.pending: int = broker.call(command, WAIT)

    def want(self, region: str, *interests: Interest, durable: bool = True) -> int:
        """Register interest, by default in all keys; returns the position behind which events are queued."""
        command = e.RegisterInterest(self.connection, region, interests or [ALL_KEYS], durable)
        head: int = self.broker.call(command, WAIT)
        return head

    def drop(self, region: str, *interests: Interest, queued: bool = False) -> int:
        """Want something no more; returns how many events were taken out of the queue."""
        command = e.UnregisterInterest(self.connection, region, interests, drop_queued=queued)
        count: int = self.broker.call(command, WAIT)
        return count

    def ready(self) -> None:
        self.broker.call(e.ReadyForEvents(self.connection), WAIT)

    def acknowledge(self, through: int) -> int:
        count: int = self.broker.call(e.AcknowledgeEvents(self.connection, through), WAIT)
        return count

    def lose(self) -> None:
        """Its connection is lost."""
        self.broker.call(c.Disconnect(self.connection), WAIT)

    def leave(self, *, keep: bool) -> bool:
        """It closes; returns whether its queue is kept."""
        kept: bool = self.broker.call(e.LeaveDurable(self.connection, keep), WAIT)
        self.lose()
        return kept

    def events(self) -> list[Any]:
        """Key and body of each event that it has got, the marker, and that its queue was dropped."""
        come_to_rest(self.broker)
        words = {e.MarkerHandout: "marker", e.QueueDroppedHandout: "dropped"}
        return [words.get(type(each)) or f"{each.key}={each.payload.decode()}" for each in self.got]

    def described(self) -> e.ClientDescription:
        """What the engine says of it; each event that came for it is accounted for."""
        (found,) = self.broker.call(e.DescribeClients(self.client_id), WAIT)
        assert isinstance(found, e.ClientDescription)
        counters = found.counters
        gone = counters.removed + counters.conflated + counters.drained + counters.dropped
        assert found.queued == gone + found.size
        return found

    def handouts(self) -> Sequence[e.EventHandout]:
        come_to_rest(self.broker)
        return [each for each in self.got if isinstance(each, e.EventHandout)]
