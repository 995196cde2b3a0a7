"""How destinations are addressed at a broker that tells queues from topics by a prefix of the address."""

from __future__ import annotations

import attrs

from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope


@attrs.frozen
class Addresses:
    """Names with a prefix on the wire, and without one in the application.  Temporary destinations have none."""

    queue_prefix: str = ""
    topic_prefix: str = ""

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.queue_prefix or self.topic_prefix)

    def of(self, destination: Destination) -> str:
        """The address of a destination."""
        return self._prefix(destination) + destination.name

    def outward(self, envelope: Envelope) -> Envelope:
        """The message with addresses in place of names."""
        reply_to = envelope.reply_to
        return envelope._replace(
            destination=envelope.destination._replace(name=self.of(envelope.destination)),
            reply_to=None if reply_to is None else reply_to._replace(name=self.of(reply_to)),
        )

    def inward(self, envelope: Envelope) -> Envelope:
        """The message with names in place of addresses."""
        reply_to = envelope.reply_to
        return envelope._replace(
            destination=self._named(envelope.destination),
            reply_to=None if reply_to is None else self._named(reply_to),
        )

    def _named(self, address: Destination) -> Destination:
        return address._replace(name=address.name.removeprefix(self._prefix(address)))

    def _prefix(self, destination: Destination) -> str:
        if destination.kind is DestinationKind.QUEUE:
            return self.queue_prefix
        return self.topic_prefix if destination.kind is DestinationKind.TOPIC else ""
