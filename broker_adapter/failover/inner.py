"""What failover needs of the transport that it restores: one network connection, which ends with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import uuid4

import attrs

from broker_adapter.destination import Destination
from broker_adapter.errors import JMSException
from broker_adapter.mechanisms import Trust
from broker_adapter.transport import (
    LinkSink,
    LinkSpec,
    RemoteTransport,
)
from broker_adapter.urls.url import AmqpURL

#: Ends the wait of another thread, which raises this error.
EndWait = Callable[[JMSException], None]


class Inner(RemoteTransport, Protocol):
    """What restoring needs of a transport beyond the port."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection was open, and is so no more."""

    def in_callback(self) -> bool:
        """Return whether the caller is a callback of the transport, which must not wait."""

    def confirm_until(self, begin: Callable[[EndWait], None], timeout: float | None) -> None:
        """``confirm``; ``begin`` is called first, with what ends the wait."""

    def attach_all(self, links: Sequence[tuple[LinkSpec, LinkSink]], timeout: float | None) -> list[int | JMSException]:
        """Attach links in this order, all in one round trip; the number of each, or why there is none."""

    def restore_temporaries(self, destinations: Sequence[Destination], timeout: float | None) -> None:
        """Make temporary destinations again that a lost connection had, all in one round trip."""

    def watch(self) -> None:
        """Ask the broker to tell what it announces, and each change: by ``BrokerAnnounced``.  Returns at once."""

    def resolve_commit(
        self, session: int, commit_number: int, age_seconds: float, timeout: float | None
    ) -> bool | None:
        """Return whether a commit of an earlier connection was done; None where the broker cannot tell."""


@attrs.frozen
class Identification:
    """What all connections that take one another's place have in common."""

    commit_prefix: str = attrs.field(factory=lambda: str(uuid4()))  #: names the client in commit ids
    token: str = attrs.field(factory=lambda: str(uuid4()), repr=False)  #: secret
    trust: Trust = attrs.field(factory=lambda: Trust(()))  #: what is known of brokers


#: Makes an inner transport: to this address, with this epoch.
Make = Callable[[AmqpURL, int, Identification], Inner]
