"""A transport around a transport: it restores the connection when that is lost, with its links and its sends.

Theory of operation
    The inner transport is one network connection, and ends with it.  While there is none, calls that need the network
    wait for the next one, as long as their deadlines allow, and calls that only end something return at once.

    ===================  =============================================================================
    ``connector``        opens the connection, notices its loss, and restores it
    ``current``          which inner transport carries the connection now, and how calls wait for it
    ``rules``            which address is tried when, and when to give up
    ``links``            the links, with a number that stays, and how each is attached
    ``reattach``         attaches links again, all of a connection or one that the broker has closed
    ``unanswered``       sends and requests without an answer, repeated after the restore
    ``commits``          commits, resolved by their id where the connection was lost in the middle
    ===================  =============================================================================

    *Browsers* are not restored: what they would show next is not known.
"""

from __future__ import annotations

import random as chance
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from ack_modes import Settlement
from broker_adapter.answers import Answer, unanswered_send
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    OperationTimedOutException,
    copied,
)
from broker_adapter.failover.commits import Commits
from broker_adapter.failover.connector import Connector
from broker_adapter.failover.current import CurrentTransport, SessionCall
from broker_adapter.failover.failures import as_lost, out_of_time
from broker_adapter.failover.inner import EndWait, Inner, Make
from broker_adapter.failover.links import Link, LinkState, LinkTable
from broker_adapter.failover.reattach import Reattacher
from broker_adapter.failover.rules import Reconnect, State
from broker_adapter.failover.unanswered import Send, UnansweredSends, repeated
from broker_adapter.refusals import consumed, not_own
from broker_adapter.transport import (
    Credentials,
    LinkSink,
    LinkSpec,
    OnSettled,
    Peer,
    Refresh,
    RegionChange,
    TransportEvent,
)
from broker_adapter.urls.url import FailoverURL

_T = TypeVar("_T")

_ATTACHED: Final = LinkState.ATTACHED
#: Arguments by which a server recognizes a repeated request.
_REPETITION: Final = ("request_id", "request_run")


class FailoverTransport:
    """One connection to its user, over several network connections.  See the module's theory of operation."""

    def __init__(
        self,
        url: FailoverURL,
        make: Make,
        *,
        refresh: Refresh | None = None,
        random: Callable[[], float] = chance.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A connection that is not open yet.

        Args:
            url: where to connect, and how to restore the connection.
            make: makes an inner transport.
            refresh: asked once for fresh credentials where a login is refused; None: the login fails.
            random: a number from 0 to below 1 at each call.
            clock: the time, in seconds of any steady clock.
        """
        self._send_timeout = url.client.send_timeout_seconds
        self._request_timeout = url.client.request_timeout_seconds
        self._clock = clock
        self._rules = Reconnect(url.addresses, url.failover, random, may_refresh=refresh is not None)
        self._current = CurrentTransport(self._rules, clock)
        self._links = LinkTable()
        self._unanswered = UnansweredSends(self._current, self._links)
        self._reattacher = Reattacher(self._current, self._links, self._unanswered, url, random)
        self._commits = Commits(self._current, self._links, self._reattacher)
        self._connector = Connector(url, make, refresh, self._current, self._links, self._unanswered, self._reattacher)
        # Bound here, since each message needs them.
        self._link = self._links.get
        self._serials = self._unanswered.serials

    def __repr__(self) -> str:
        return f"<FailoverTransport {self._rules.state.name} at {self._rules.address}, {len(self._links)} links>"

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._rules.state

    # The connection.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """See :meth:`broker_adapter.transport.Transport.open`.

        Tries each address once, and again as the options say.  ``timeout`` is for all of it; None: each attempt has
        ``connect_timeout_seconds``.
        """
        return self._connector.open(credentials, listener, timeout)

    def close(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.close`.  Never waits for a network that is away."""
        self._connector.close(timeout)

    # Links.

    def end_session(self, session: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.end_session`.  Returns at once while the network is away."""
        self._current.require_usable()
        with self._current.lock:
            links = self._links.of_session(session)
            inner = self._current.connected or _inner_of(links)
            unsent = self._remove(links)
            self._current.end_session(session)
        _fail_closed(unsent)
        return self._leave(inner, lambda there: there.end_session(session, timeout))

    def attach(self, spec: LinkSpec, sink: LinkSink, timeout: float | None) -> int:
        """See :meth:`broker_adapter.transport.Transport.attach`."""
        number = self._links.new_number()
        call, calls = SessionCall(spec.session), self._current.calls

        def attach(inner: Inner, left: float) -> int:
            attachment = inner, inner.attach(spec, sink, left)
            link = Link(number, spec, sink, LinkState.ATTACHED, attachment)
            with self._current.lock:
                self._require_connected(inner)
                if not call.is_over:
                    self._links.add(link)
                closed = self._links.take_closed_early(attachment[1])
            if call.is_over:
                self._leave(inner, lambda there: there.detach(attachment[1], timeout))
                raise call.error(f"attaching {spec}")
            if closed is not None:
                self._reattacher.reattach(inner, link, closed)
            return number

        try:
            calls[call] = None
            return self._again(f"attaching {spec}", timeout, attach, call)
        finally:
            calls.pop(call, None)

    def detach(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.detach`.  Returns at once while the network is away."""
        current = self._current
        current.require_usable()
        with current.lock:
            record = self._links.get(link)
            if record is None:
                return False
            attachment = record.attachment
            inner = current.connected or _inner_of([record])
            unsent = self._remove([record])
            current.end_consumer(link)
        _fail_closed(unsent)
        if attachment is None:
            return False
        number = attachment[1]
        try:
            return self._leave(inner, lambda there: there.detach(number, timeout))
        except JMSException:
            raise
        except BaseException:  # the handler of a signal: the next call detaches it
            with current.lock:
                if inner is not None and inner is current.connected:
                    self._links.add(record)
            raise

    def _remove(self, links: Sequence[Link]) -> list[Send]:
        """Under the lock: links end; returns their sends that are not sent again any more."""
        self._links.remove(links)
        self._current.changed.notify_all()
        return self._unanswered.take_of(links)

    @staticmethod
    def _leave(inner: Inner | None, act: Callable[[Inner], object]) -> bool:
        """Tell the broker that something has ended; without a network it has ended as well.

        Returns:
            Whether the broker has answered.
        """
        if inner is None:
            return False
        try:
            act(inner)
        except JMSException:
            if not inner.is_lost:
                raise
            return False
        return True

    def _require_connected(self, inner: Inner) -> None:
        """Under the lock: raises where an inner transport is lost, and with it what it has just made."""
        if inner is not self._current.connected:
            raise ConnectionLostException("the connection was lost meanwhile")

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        """See :meth:`broker_adapter.transport.Transport.unsubscribe`."""
        asked = False

        def unsubscribe(inner: Inner, left: float) -> None:
            nonlocal asked
            try:
                before, asked = asked, True
                inner.unsubscribe(name, left)
            except InvalidDestinationException:
                if not before:
                    raise
                # The first request was carried out, and its answer was lost.

        self._repeated(f"unsubscribing {name!r}", timeout, unsubscribe, session)

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        """See :meth:`broker_adapter.transport.Transport.declare_temporary`.  It is restored with the connection."""

        def declare(inner: Inner, left: float) -> Destination:
            destination = inner.declare_temporary(kind, left)
            with self._current.lock:
                self._require_connected(inner)
                self._reattacher.temporaries[destination] = None
            return destination

        return self._repeated("declaring a temporary destination", timeout, declare, session)

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.delete_temporary`.  At once where the network is away."""
        current, temporaries = self._current, self._reattacher.temporaries
        current.require_usable()
        with current.lock:
            if destination not in temporaries:
                raise not_own(destination)
            if self._links.has_consumer(destination):
                raise consumed(destination)
            inner = current.connected
        with suppress(InvalidDestinationException):  # it was ours, and the broker did not make it again after a loss
            self._leave(inner, lambda there: there.delete_temporary(destination, timeout))
        with current.lock:
            temporaries.pop(destination, None)

    # Receiving.

    def credit(self, link: int, messages: int) -> None:
        """See :meth:`broker_adapter.transport.Transport.credit`.  Without effect while the network is away."""
        inner = self._current.connected
        if inner is None:
            if self._rules.state is not State.RECONNECTING:
                self._current.usable()  # raises
            return
        record = self._link(link)
        attachment = None if record is None else record.attachment
        if attachment is None:
            return
        try:
            inner.credit(attachment[1], messages)
        except JMSException:
            if not inner.is_lost:
                raise

    def drain(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.drain`."""
        inner = self._current.usable()
        record = self._links.get(link)
        if record is None:
            raise IllegalStateException(f"link {link} is closed")
        attachment = record.attachment
        if attachment is None:
            raise ConnectionLostException("the link is lost, and is being attached again")
        try:
            return inner.drain(attachment[1], timeout)
        except OperationTimedOutException:
            raise
        except JMSException as error:
            if inner.is_lost or record.error is not None:
                raise as_lost(error) from error
            raise

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """See :meth:`broker_adapter.transport.Transport.settle`."""
        inner = self._current.connected or self._current.usable()
        try:
            inner.settle(settlements)
        except JMSException as error:
            if inner.is_lost and not isinstance(error, ConnectionLostException):
                raise as_lost(error) from error
            raise

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.confirm`."""
        call, calls = SessionCall(session, link), self._current.calls

        def confirm(inner: Inner, left: float) -> None:
            inner.confirm_until(begin, left)

        def begin(end_wait: EndWait) -> None:
            with self._current.lock:
                if link is not None and self._link(link) is None:
                    call.end("the consumer")
                if call.is_over:
                    raise call.error("the acknowledgement")
                call.end_wait = end_wait

        try:
            calls[call] = None
            if outlasts_loss:
                self._again("the acknowledgement", timeout, confirm, call)
                return
            inner = self._current.usable()
            try:
                confirm(inner, self._request_timeout if timeout is None else timeout)
            except JMSException as error:
                if inner.is_lost and not call.is_over:
                    raise as_lost(error) from error
                raise
        finally:
            calls.pop(call, None)

    # Sending.

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.send`.  It is sent again where the connection is lost."""
        if on_settled is not None:
            # Nearly every message is sent here, without what only an outage needs.
            record = self._link(link)
            if record is not None:
                attachment = record.attachment
                if attachment is not None and record.state is _ATTACHED:
                    inner, number = attachment
                    send = Send(self._unanswered, record, attachment, envelope, on_settled, next(self._serials))
                    try:
                        inner.send(number, envelope, send, timeout)
                        return
                    except JMSException:
                        if not inner.is_lost and record.attachment is attachment:
                            raise
            limit = self._send_timeout if timeout is None else timeout
            self._send(link, envelope, on_settled, self._clock() + limit)
            return
        self._current.require_usable()
        limit = self._send_timeout if timeout is None else timeout
        deadline = self._clock() + limit
        answer = Answer()
        send = self._send(link, envelope, answer.settled, deadline)
        if not answer.arrives(deadline - self._clock()):
            send.abandoned = True  # it is not sent again
            raise out_of_time(unanswered_send(limit, timeout), self._current.last_error)
        if answer.error is not None:
            raise copied(answer.error)

    def _send(self, link: int, envelope: Envelope, on_settled: OnSettled, deadline: float) -> Send:
        """Send once the connection is there and the link is attached."""
        while True:
            record = self._link(link)
            attachment = None if record is None else record.attachment
            if record is None or attachment is None or record.state is not _ATTACHED:
                self._wait_until_connected(link, deadline)
                self._reattacher.wait_until_attached(link, deadline, "the send")
                continue
            inner, number = attachment
            send = Send(self._unanswered, record, attachment, envelope, on_settled, next(self._serials))
            try:
                inner.send(number, envelope, send, max(0.0, deadline - self._clock()))
                return send
            except JMSException:
                if inner.is_lost:
                    if self._clock() >= deadline:
                        raise
                    self._current.wait_until_lost(inner, deadline, "the send")
                elif record.attachment is attachment:
                    raise

    def _wait_until_connected(self, link: int, deadline: float) -> None:
        """Wait with a send until the connection is there, or the link is closed."""
        current = self._current
        current.wait_for(lambda: current.connected is not None or self._link(link) is None, deadline, "the send")

    # Commits and requests.

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.commit`.

        One that was under way when the connection was lost is resolved by its id once it is restored.
        """
        limit = self._request_timeout if timeout is None else timeout
        self._commits.commit(session, commit_number, sends, settlements, limit, changes)

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """See :meth:`broker_adapter.transport.Transport.request`.

        It is asked again where the connection is lost.  Our own server recognizes it by its id and run, those that the
        caller has given or others, and what is not the same when it is carried out twice is carried out once.
        """
        given = {name: value for name, value in arguments.items() if value is not None or name not in _REPETITION}
        request_id = str(uuid4())
        first_run: str | None = None

        def ask(inner: Inner, left: float) -> Any:
            nonlocal first_run
            peer = self._current.peer
            if peer is None or peer.run is None:
                return inner.request(operation, arguments, left)
            first_run = first_run or peer.run
            return inner.request(operation, {"request_id": request_id, "request_run": first_run, **given}, left)

        return self._repeated(f"request {operation!r}", timeout, ask)

    def begin_request(
        self, operation: str, arguments: Mapping[str, Any], done: Callable[[Any, JMSException | None], bool]
    ) -> None:
        """See :meth:`broker_adapter.transport.RemoteTransport.begin_request`.

        It is not asked again where the connection is lost: ``done`` gets the error.
        """
        self._current.usable().begin_request(operation, arguments, done)

    def _repeated(
        self,
        what: str,
        timeout: float | None,
        act: Callable[[Inner, float], _T],
        session: int | None = None,
    ) -> _T:
        """Do something that is done again where the connection is lost in the middle of it, for a session or none."""
        call, calls = SessionCall(session), self._current.calls
        try:
            calls[call] = None
            return self._again(what, timeout, act, call)
        finally:
            calls.pop(call, None)

    def _again(self, what: str, timeout: float | None, act: Callable[[Inner, float], _T], call: SessionCall) -> _T:
        return repeated(self._current, what, self._request_timeout if timeout is None else timeout, act, call)


def _inner_of(links: Iterable[Link]) -> Inner | None:
    """The inner transport that some of these links are attached to again, where it does not count as connected yet."""
    return next((each.attachment[0] for each in links if each.attachment is not None), None)


def _fail_closed(sends: Sequence[Send]) -> None:
    error = ConnectionLostException("it was closed while the connection was away; the message may have been sent")
    for send in sends:
        send.on_settled(error)
