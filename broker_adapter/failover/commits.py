"""Commits over a connection that may be lost in the middle of one.

Theory of operation
    A commit is never sent again.  One that was under way when the connection was lost is resolved by its id once the
    connection is restored, against the same store; where that cannot be, it is in doubt.  One that was not sent before
    the connection was lost is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ack_modes import Outcome, Settlement
from broker_adapter.envelope import Envelope
from broker_adapter.errors import (
    IllegalStateException,
    JMSException,
    OperationTimedOutException,
    TransactionInDoubtException,
    TransactionRolledBackException,
)
from broker_adapter.failover.current import CurrentTransport, SessionCall
from broker_adapter.failover.inner import Inner
from broker_adapter.failover.links import LinkState, LinkTable
from broker_adapter.failover.reattach import Reattacher
from broker_adapter.transport import Peer, RegionChange

#: What the errors call the request for the end of a commit.
_ASKING: Final = "asking the broker whether it was committed"
_ATTACHED: Final = LinkState.ATTACHED
#: The number of a link in an inner transport that it is not attached by: no link has it.
_NO_LINK: Final = -(1 << 62)


class Commits:
    """The commits of a connection.  See the module's theory of operation."""

    def __init__(self, current: CurrentTransport, links: LinkTable, reattacher: Reattacher) -> None:
        self._current = current
        self._links = links
        self._reattacher = reattacher

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        limit: float,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """Commit within so many seconds.  See :meth:`broker_adapter.transport.Transport.commit`."""
        current = self._current
        began = current.clock()
        deadline = began + limit
        used = [] if current.last is None else [current.last]
        call = SessionCall(session)
        try:
            current.calls[call] = None
            self._commit(call, (session, commit_number), sends, settlements, changes, (began, deadline), used)
        except JMSException:
            for inner in used:
                if inner.is_lost:
                    # Otherwise the same loss would roll back the next commit as well.
                    current.wait_until_loss_is_announced(inner, deadline)
            raise
        finally:
            current.calls.pop(call, None)

    def _commit(
        self,
        call: SessionCall,
        commit: tuple[int, int],
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        changes: Sequence[RegionChange],
        times: tuple[float, float],
        used: list[Inner],
    ) -> None:
        """Commit (session, number) between two instants; ``used`` gets the inner transport that carries it out."""
        current, (began, deadline) = self._current, times
        try:
            inner = current.wait_until_connected(deadline, "the commit", call)
        except JMSException as error:
            if not call.is_over and not isinstance(error, OperationTimedOutException):
                raise
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        used.append(inner)
        peer = current.peer
        try:
            mapped = self._mapped(inner, sends, deadline)
        except OperationTimedOutException as error:
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        except IllegalStateException as error:
            # The links of the deliveries may be closed as well, so the deliveries have failed here.
            inner.settle([Settlement(tag, Outcome.MODIFIED) for tag, _ in settlements])
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        try:
            inner.commit(*commit, mapped, settlements, max(0.0, deadline - current.clock()), changes)
            return
        except TransactionInDoubtException as error:
            if not inner.is_lost:
                raise
            doubt = error
        except OperationTimedOutException:
            raise
        except JMSException as error:
            if not inner.is_lost or isinstance(error, TransactionRolledBackException):
                raise
            raise TransactionRolledBackException(
                f"nothing was committed: the connection was lost before: {error.reason}"
            ) from error
        self._resolve(call, commit, inner, peer, doubt, began, deadline)

    def _mapped(
        self, inner: Inner, sends: Sequence[tuple[int, Envelope]], deadline: float
    ) -> list[tuple[int, Envelope]]:
        """The messages with the numbers of their links in an inner transport."""
        mapped = []
        link_of = self._links.get
        for number, envelope in sends:
            link = link_of(number)
            if link is None or link.state is not _ATTACHED:
                link = self._reattacher.wait_until_attached(number, deadline, "the commit")
            attachment = link.attachment
            if attachment is None or attachment[0] is not inner:
                mapped.append((_NO_LINK, envelope))
            else:
                mapped.append((attachment[1], envelope))
        return mapped

    def _resolve(
        self,
        call: SessionCall,
        commit: tuple[int, int],
        inner: Inner,
        peer: Peer | None,
        doubt: TransactionInDoubtException,
        began: float,
        deadline: float,
    ) -> None:
        """Ask the broker, once the connection is restored, whether a commit was done.

        Args:
            call: of the session that commits.
            commit: the session, and the number that counts its commits.
            inner: the transport that the commit was sent by.
            peer: the broker that it was sent to.
            doubt: the error of the commit.
            began: when the commit began.
            deadline: until when the broker may answer.

        Raises:
            TransactionRolledBackException: it was not done.
            TransactionInDoubtException: the broker cannot tell, or has not answered in time.
        """
        if peer is None or peer.store is None:
            raise doubt
        current = self._current
        done: bool | None = None
        while True:
            try:
                current.wait_until_lost(inner, deadline, _ASKING, call)
                inner = current.wait_until_connected(deadline, _ASKING, call)
            except JMSException as error:
                there = current.connected
                if not call.is_over or there is None or there is inner:
                    raise TransactionInDoubtException(f"{doubt.reason}; {error.reason}") from error
                inner = there  # the session has ended, and the broker can be asked all the same
            if current.peer is None or current.peer.store != peer.store:
                raise TransactionInDoubtException(f"{doubt.reason}; the broker that is connected now has another store")
            try:
                now = current.clock()
                done = inner.resolve_commit(*commit, now - began, max(0.0, deadline - now))
                break
            except JMSException as error:
                if not inner.is_lost:
                    raise TransactionInDoubtException(f"{doubt.reason}; {error.reason}") from error
        if done is None:
            raise TransactionInDoubtException(f"{doubt.reason}; the broker does not remember")
        if not done:
            raise TransactionRolledBackException("nothing was committed: the connection was lost before it was done")
