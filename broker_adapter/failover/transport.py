"""A transport around a transport: restores the connection, and all that hung on it.

Theory of operation
    The inner transport is one network connection, and ends with it.  When it is lost, the world stops: calls that need
    the network wait for the restore, as long as their deadlines allow.  A thread of its own, alive only meanwhile, asks
    the rules (:mod:`broker_adapter.failover.rules`) for the next attempt; it opens a new inner transport, makes
    temporary destinations again, attaches all links (a hundred at a time cost one round trip), and sends again what had
    no answer.  Then the world goes on.

    Links have a number here that stays, and one in the inner transport that does not.  Deliveries carry the epoch of
    their connection, so what is settled late is ignored below.

    *Sends* without an answer are kept in the order in which they were made, and are sent again in that order before
    anything new.  They carry their identity, by which our own engine knows those that it has already; for other brokers
    they are marked, since one may become a second message.

    *Commits* are never sent again.  One that was under way when the connection went is resolved by its id, against the
    same store; where that cannot be, it is in doubt.

    *Browsers* do not come back: what they would show next is not known.

    A link that the broker closes while the connection lives is attached again by a thread of its own, with the pauses
    of reconnecting.

    Locks: ``_lock`` guards the rules, the tables and what is unsent, and is never held while anything waits.
    ``_telling`` is held while the listener hears an event, so that it hears them in the order in which they happened;
    it comes before ``_lock``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import random as chance
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import attrs

from ack_modes import Outcome, Settlement
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.envelope import Envelope
from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ResourceAllocationException,
    StoreException,
    TransactionInDoubtException,
    TransactionRolledBackException,
    copied,
)
from broker_adapter.failover.inner import Identification, Inner, Make
from broker_adapter.failover.links import NO_LINK, Attachment, Link, LinkState, LinkTable
from broker_adapter.failover.rules import (
    Abandoned,
    Action,
    Announced,
    AttemptFailed,
    Close,
    Connected,
    GiveUp,
    Lost,
    Reconnect,
    State,
    Try,
)
from broker_adapter.mechanisms import Trust
from broker_adapter.signals import Condition
from broker_adapter.transport import (
    Credentials,
    Failed,
    Interrupted,
    LinkInterrupted,
    LinkLost,
    LinkRestored,
    OnSettled,
    Peer,
    ReceiverSpec,
    Refresh,
    Restored,
    Restoring,
    SenderSpec,
    Server,
    ServersAnnounced,
    Sink,
    TransportEvent,
)
from broker_adapter.urls.url import FailoverURL

_log = logging.getLogger(f"holdfast.{__package__}")
_T = TypeVar("_T")

#: Property of a message that was sent again to a broker that cannot tell whether it has it.
RESENT_PROPERTY: Final = "JMS_HOLDFAST_RESENT"
#: Attempts after which the log says again that the connection is away.
_WARN_EACH: Final = 10
#: Links, or temporary destinations, that are asked for at once when a connection is restored.
_AT_ONCE: Final = 100
#: Arguments by which a repeated request is known again.
_REPETITION: Final = ("request_id", "request_run")


_ATTACHED: Final = LinkState.ATTACHED


class _Send:
    """A message on its way, until its answer is there."""

    __slots__ = ("abandoned", "attachment", "envelope", "link", "on_settled", "owner", "serial")

    def __init__(
        self,
        owner: FailoverTransport,
        link: Link,
        attachment: Attachment,
        envelope: Envelope,
        on_settled: OnSettled,
        serial: int,
    ) -> None:
        self.owner = owner
        self.link = link
        self.attachment = attachment  #: of the link, by which it was last sent
        self.envelope = envelope
        self.on_settled = on_settled
        self.serial = serial
        self.abandoned = False  #: nobody waits for it any more

    def __call__(self, error: JMSException | None) -> None:
        """The inner transport has an answer, or is lost."""
        if error is None or not self.owner.keep(self):
            self.on_settled(error)


class FailoverTransport:
    """One connection, as far as its user sees.  See the module's theory of operation."""

    def __init__(
        self,
        url: FailoverURL,
        make: Make,
        *,
        refresh: Refresh | None = None,
        random: Callable[[], float] = chance.random,
    ) -> None:
        """A connection that is not open yet.

        Args:
            url: where to connect, and how to come back.
            make: makes an inner transport.
            refresh: asked once for fresh credentials where a login is refused; None: nobody is.
            random: a number from 0 to below 1 at each call.
        """
        self._url = url
        self._make = make
        self._refresh = refresh
        self._rules = Reconnect(url.addresses, url.failover, random, may_refresh=refresh is not None)
        self._identification = Identification(trust=Trust(url.addresses, url.failover.trusted_hosts))
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._telling = threading.RLock()
        self._error: JMSException | None = None
        self._credentials = Credentials()
        self._listener: Callable[[TransportEvent], None] = lambda _event: None
        self._inner: Inner | None = None  #: the last one that was made
        self._connected: Inner | None = None  #: the same while the connection is there, else None
        self._broken: JMSException | None = None  #: why the inner transport was lost while things were restored
        self._peer: Peer | None = None
        self._epoch = 0
        self._lost_at = 0.0
        self._last_error: JMSException | None = None  #: while it is away: why it was lost, or not restored lately
        self._told_redirect: str | None = None  #: what the log says of the last redirect that came to nothing
        self._next_serial = itertools.count(1).__next__
        self._links = LinkTable()
        self._link = self._links.get
        self._temporaries: dict[Destination, None] = {}
        self._unsent: list[_Send] = []

    def __repr__(self) -> str:
        return f"<FailoverTransport {self._rules.state.name} at {self._rules.address}, {len(self._links)} links>"

    @property
    def state(self) -> State:
        """Where the connection stands."""
        return self._rules.state

    # Opening and closing.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """See :meth:`broker_adapter.transport.Transport.open`.

        Tries each address once, and again as the options say.  ``timeout`` is for all of it; None: each attempt has
        ``connect_timeout_seconds``.
        """
        with self._lock:
            if self._rules.state is not State.CONNECTING or self._inner is not None:
                raise IllegalStateException("the connection was opened before")
        self._credentials = credentials
        self._listener = listener
        deadline = None if timeout is None else time.monotonic() + timeout
        action = self._rules.start(time.monotonic())
        while True:
            try:
                inner, peer = self._attempt(action, deadline)
                if self._serve(inner, peer, None):
                    return peer
                raise self._broken or ConnectionLostException("the connection was lost again at once")
            except JMSException as error:
                if self._is_closed() or (deadline is not None and time.monotonic() >= deadline):
                    raise
                with self._lock:
                    if self._is_closed():
                        raise
                    following = self._rules.process(AttemptFailed(error), time.monotonic())
                    goes_on = isinstance(following, Try) and (deadline is None or following.at < deadline)
                    if not goes_on:
                        self._rules.process(Abandoned(), time.monotonic())
                        self._error = following.error if isinstance(following, GiveUp) else _told(following, error)
                if isinstance(following, Try) and goes_on:
                    self._tell_redirect()
                    action = following
                    continue
                assert self._error is not None
                raise copied(self._error) from self._error.__cause__

    def _is_closed(self) -> bool:
        return self._rules.state is State.CLOSED

    def _attempt(self, action: Try, deadline: float | None) -> tuple[Inner, Peer]:
        """Open a new inner transport when it is time to; raises where that does not work, or somebody closes."""
        with self._lock:
            while self._rules.state is not State.CLOSED and (wait := action.at - time.monotonic()) > 0:
                self._changed.wait(min(wait, threading.TIMEOUT_MAX))
        if action.fresh_credentials and self._refresh is not None:
            username, password = self._refreshed(self._refresh)
            self._credentials = attrs.evolve(self._credentials, username=username, password=password)
        with self._lock:
            if self._rules.state is State.CLOSED:
                raise IllegalStateException("the connection is closed")
            inner = self._make(action.address, self._epoch, self._identification)
            self._inner, self._broken = inner, None
            self._links.clear_closed_early()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        peer = inner.open(self._credentials, partial(self._on_event, inner), left)
        if self._rules.method == "failover_exchange":
            try:
                peer = attrs.evolve(peer, servers=inner.watch_servers(left) or peer.servers)
            except JMSException as error:
                if inner.is_lost:
                    raise
                _log.warning("! %s does not tell of changes of its list of servers: %s", action.address, error)
        return inner, peer

    @staticmethod
    def _refreshed(refresh: Refresh) -> tuple[str | None, str | None]:
        try:
            username, password = refresh()
        except Exception as error:
            raise JMSSecurityException(f"fresh credentials could not be had: {error!r}") from error
        return username, password

    def _serve(self, inner: Inner, peer: Peer, news: TransportEvent | None) -> bool:
        """Let the world go on with this inner transport; returns False where it was lost again already."""
        with self._telling:
            with self._lock:
                if self._broken is not None or inner.is_lost or self._rules.state in (State.CLOSED, State.FAILED):
                    return False
                self._peer = peer
                self._rules.process(Connected(), time.monotonic())
                self._connected = inner
                self._last_error = None
                interrupted = self._links.attach_restored()
                self._announced(peer.servers)
                self._changed.notify_all()
            if news is not None:
                self._listener(news)
            for link, closed in interrupted:
                if link.error is closed:  # else the broker closed it again, which has it mended
                    self._mend(inner, link, closed)
        return True

    def close(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.close`.  Never waits for a network that is away."""
        with self._lock:
            if self._rules.state is State.CLOSED:
                inner = self._inner
                if inner is not None:  # the handler of a signal may have raised before this was done
                    inner.close(0)
                return
            was_connected = self._rules.state is State.CONNECTED
            self._rules.process(Close(), time.monotonic())
            self._connected = None
            self._links.detach_all()
            self._error = IllegalStateException("the connection is closed")
            inner = self._inner
            unsent, self._unsent = self._unsent, []
            self._changed.notify_all()
        for send in unsent:
            send.on_settled(self._error)
        if inner is not None:
            inner.close(timeout if was_connected else 0)

    # News of the inner transport, in its thread.

    def _on_event(self, inner: Inner, event: TransportEvent) -> None:
        if isinstance(event, Failed):
            self._on_lost(inner, event.error)
        elif isinstance(event, LinkLost):
            self._on_link_lost(inner, event)
        elif isinstance(event, ServersAnnounced):
            with self._lock:
                if inner is self._inner:
                    self._announced(event.servers)

    def _on_lost(self, inner: Inner, error: JMSException) -> None:
        with self._telling:
            with self._lock:
                if inner is not self._inner:
                    return
                if self._rules.state is not State.CONNECTED:
                    self._broken = error
                    self._changed.notify_all()
                    return
                self._lost_at = time.monotonic()
                address = self._rules.address
                action = self._rules.process(Lost(error), self._lost_at)
                self._connected = None
                self._links.detach_all()
                self._last_error = error = _told(action, error)
                self._changed.notify_all()
                unsent: list[_Send] = []
                if isinstance(action, GiveUp):
                    unsent = self._fail(action.error)
                else:
                    self._epoch += 1
            if isinstance(action, GiveUp):
                self._tell_failed(action.error, unsent)
                return
            self._listener(Interrupted(_as_lost(error)))
        assert isinstance(action, Try)
        _log.warning("! the connection to %s is lost: %s", address, error)
        self._told_redirect = self._rules.redirect_failure  # the error tells it
        try:
            threading.Thread(target=self._restore, args=(action,), name="holdfast-failover", daemon=True).start()
        except RuntimeError as failure:  # the process has as many threads as it may
            error = _without_thread("the connection is lost, and cannot be restored", failure)
            with self._telling:
                with self._lock:
                    if self._is_closed():
                        return
                    self._rules.process(Abandoned(), time.monotonic())
                    unsent = self._fail(error)
                self._tell_failed(error, unsent)

    def _fail(self, error: JMSException) -> list[_Send]:
        """Under the lock: the connection is gone for good; returns the sends that have to be told."""
        self._error = error
        self._changed.notify_all()
        unsent, self._unsent = self._unsent, []
        return unsent

    def _tell_failed(self, error: JMSException, unsent: Sequence[_Send]) -> None:
        for send in unsent:
            send.on_settled(error)
        self._listener(Failed(error))

    def _announced(self, servers: Sequence[Server]) -> None:
        """Under the lock: the broker says where it can be reached."""
        here = self._rules.address
        addresses = []
        for each in servers:
            amqp = here.amqp if each.hostname is None else attrs.evolve(here.amqp, vhost=each.hostname)
            tls = here.tls if each.tls is None else each.tls
            if tls or not here.tls or self._url.failover.allow_insecure_redirects:
                addresses.append(attrs.evolve(here, host=each.host, port=each.port, tls=tls, amqp=amqp))
        self._rules.process(Announced(addresses), time.monotonic())

    def _tell_redirect(self) -> None:
        """Log why a redirect came to nothing, once for each reason."""
        failure = self._rules.redirect_failure
        if failure != self._told_redirect and failure is not None:
            _log.warning("! %s", failure)
        self._told_redirect = failure

    # Restoring the connection, in a thread of its own.

    def _restore(self, action: Try) -> None:
        while True:
            inner: Inner | None = None
            error: JMSException
            try:
                inner, peer = self._attempt(action, None)
                self._peer = peer
                self._listener(Restoring(peer, inner.request, self._identification.token))
                self._restore_links(inner)
                away = time.monotonic() - self._lost_at
                news = Restored(self._epoch, peer, str(action.address), self._rules.attempts, away)
                if self._serve(inner, peer, news):
                    _log.info("= the connection is restored: %s, after %.3f s", news.address, away)
                    return
                raise self._broken or ConnectionLostException("the connection was lost again at once")
            except JMSException as failure:
                error = failure
            except Exception as failure:  # a fault of ours must not leave everybody waiting for ever
                _log.exception("! restoring the connection failed unexpectedly")
                error = ConnectionLostException(f"restoring the connection failed unexpectedly: {failure!r}")
                error.__cause__ = failure
            if inner is not None:
                inner.close(0)
            with self._telling:
                with self._lock:
                    if self._rules.state is State.CLOSED:
                        return
                    following = self._rules.process(AttemptFailed(error), time.monotonic())
                    self._last_error = error = _told(following, error)
                    # Deliveries of this attempt, if there were any, are as stale as those before it.
                    self._epoch += 1
                    unsent = self._fail(following.error) if isinstance(following, GiveUp) else []
                if isinstance(following, GiveUp):
                    self._tell_failed(following.error, unsent)
                    return
            assert isinstance(following, Try)
            self._tell_redirect()
            if self._rules.attempts % _WARN_EACH == 0:
                _log.warning("! the connection is still away after %d attempts: %s", self._rules.attempts, error)
            action = following

    def _restore_links(self, inner: Inner) -> None:
        """Make everything again on a new inner transport; links that the broker refuses are left interrupted.

        Raises:
            JMSException: the connection was lost again.
        """
        with self._lock:
            temporaries = list(self._temporaries)
            self._links.detach_all()
            links = self._links.detached()
        for destinations in _batches(temporaries):
            inner.restore_temporaries(destinations, None)
        for batch in _batches(links):
            self._attach_all_again(inner, batch)
        self._send_again(inner)

    def _attach_all_again(self, inner: Inner, links: Sequence[Link]) -> None:
        """Attach these; those that the broker refuses are left interrupted.

        Raises:
            JMSException: the connection was lost again, or the broker does not answer.
        """
        outcomes = inner.attach_all([(each.spec, each.sink) for each in links], None)
        for link, outcome in zip(links, outcomes, strict=True):
            if isinstance(outcome, JMSException):
                if inner.is_lost or isinstance(outcome, OperationTimedOutException):
                    raise outcome
                with self._lock:
                    self._links.interrupt(link, outcome)
                continue
            with self._lock:
                registered = self._links.register(link, (inner, outcome))
                closed = self._links.take_closed_early(outcome)
                if registered and closed is not None:
                    self._links.interrupt(link, closed)
            if not registered:
                inner.detach(outcome, None)  # closed meanwhile

    def _attach_again(self, inner: Inner, link: Link) -> Attachment:
        attachment = inner, inner.attach(link.spec, link.sink, None)
        with self._lock:
            registered = self._links.register(link, attachment)
        if not registered:
            inner.detach(attachment[1], None)  # closed meanwhile
        return attachment

    def _send_again(self, inner: Inner) -> None:
        """Send what had no answer, in the order in which it was sent at first.

        Raises:
            ConnectionLostException: the connection was lost again.
        """
        while sends := self._taken(lambda send: send.link.state is LinkState.REATTACHED):
            for send in sends:
                self._resend(send)
            if inner.is_lost:
                raise ConnectionLostException("the connection was lost again")

    def _taken(self, wanted: Callable[[_Send], bool]) -> list[_Send]:
        """Take these out of what is not sent yet, in the order in which they were sent at first."""
        with self._lock:
            taken = [send for send in self._unsent if wanted(send)]
            self._unsent = [send for send in self._unsent if not wanted(send)]
        return sorted(taken, key=lambda send: send.serial)

    def _resend(self, send: _Send) -> None:
        link = send.link
        if send.abandoned:
            return
        with self._lock:
            registered, attachment = self._links.is_registered(link), link.attachment
            if registered and attachment is None:
                self._unsent.append(send)  # lost again meanwhile
                return
        if not registered or attachment is None:
            send.on_settled(IllegalStateException(f"link {link.number} is closed"))
            return
        send.attachment = attachment
        envelope = send.envelope
        peer = self._peer
        if peer is None or not peer.rejects_duplicates:
            properties = {**(envelope.properties or {}), RESENT_PROPERTY: True}
            envelope = envelope._replace(properties=properties)
        inner, number = attachment
        try:
            inner.send(number, envelope, send, None)
        except JMSException as error:
            send(error)

    # A link that the broker closed.

    def _on_link_lost(self, inner: Inner, event: LinkLost) -> None:
        with self._telling:
            with self._lock:
                if inner is not self._inner:
                    return
                link = self._links.closed_by_broker(event.link, event.error)
                if link is None:
                    return
                if self._rules.state is not State.CONNECTED:
                    self._links.interrupt(link, event.error)
                    return
            self._mend(inner, link, event.error)

    def _mend(self, inner: Inner, link: Link, error: JMSException) -> None:
        """Attach a link again that the broker closed or refused, or tell that it is gone."""
        with self._telling:
            with self._lock:
                if not self._links.is_registered(link) or inner is not self._inner:
                    return
                tag_link = self._links.detach(link)
                self._links.interrupt(link, error)
            if link.browses or self._rules.method == "nofailover" or isinstance(error, _LASTING):
                self._lose(link, error)
                return
            self._listener(LinkInterrupted(link.number, error, tag_link))
        attach = partial(self._attach_patiently, inner, link)
        try:
            threading.Thread(target=attach, name="holdfast-failover-link", daemon=True).start()
        except RuntimeError as failure:  # the process has as many threads as it may
            self._lose(link, _without_thread("the link is lost, and cannot be attached again", failure))

    def _attach_patiently(self, inner: Inner, link: Link) -> None:
        with self._lock:
            if not self._is_interrupted(inner, link) or link.error is None:
                return
            if link.rules is None:
                link.rules = Reconnect(self._url.addresses[:1], self._url.failover, chance.random)
                link.rules.start(0.0)
                link.rules.process(Connected(), -math.inf)  # until now it held
            rules, closed, now = link.rules, link.error, time.monotonic()
        # Where it was closed as soon as it was attached, it does not count as attached.
        action = rules.process(Lost(closed) if rules.state is State.CONNECTED else AttemptFailed(closed), now)
        while isinstance(action, Try):
            with self._lock:
                while self._is_interrupted(inner, link) and (wait := action.at - time.monotonic()) > 0:
                    self._changed.wait(wait)
                if not self._is_interrupted(inner, link):
                    return  # closed, or restored together with the connection
            try:
                attachment = self._attach_again(inner, link)
            except JMSException as error:
                if inner.is_lost:
                    return
                if isinstance(error, _LASTING):
                    self._lose(link, error)
                    return
                with self._lock:
                    if self._is_interrupted(inner, link):
                        link.error = error
                action = rules.process(AttemptFailed(error), time.monotonic())
                continue
            self._link_restored(link, attachment)
            return
        assert isinstance(action, GiveUp)
        self._lose(link, action.error)

    def _is_interrupted(self, inner: Inner, link: Link) -> bool:
        return (
            inner is self._connected
            and link.state in (LinkState.INTERRUPTED, LinkState.REATTACHED)
            and self._links.is_registered(link)
        )

    def _link_restored(self, link: Link, attachment: Attachment) -> None:
        # What is sent meanwhile waits: the link counts as interrupted until everything older has gone.
        inner, number = attachment
        while sends := self._taken(lambda send: send.link is link):
            for send in sends:
                self._resend(send)
            if inner.is_lost or link.attachment is not attachment:
                return  # it is restored together with the connection, or was closed again
        with self._telling:
            with self._lock:
                if inner is not self._connected or link.attachment is not attachment:
                    return
                closed_again = self._links.take_closed_early(number)
                if closed_again is None:
                    self._links.attach(link)
                    if link.rules is not None:
                        link.rules.process(Connected(), time.monotonic())
                self._changed.notify_all()
            if closed_again is None:
                self._listener(LinkRestored(link.number))
                return
        self._mend(inner, link, closed_again)

    def _lose(self, link: Link, error: JMSException) -> None:
        """A link is gone for good."""
        with self._telling:
            with self._lock:
                if not self._links.is_registered(link):
                    return
                unsent = self._forget([link])
            for send in unsent:
                send.on_settled(error)
            self._listener(LinkLost(link.number, error))

    # Waiting for the restore.

    def _serving(self, deadline: float | None, what: str) -> Inner:
        """The inner transport, once there is one that works.

        Raises:
            OperationTimedOutException: the connection was not restored in time.
            JMSException: the connection is closed, or gone for good.
        """
        inner = self._connected
        if inner is not None:
            return inner
        return self._wait_for(lambda: self._rules.state is State.CONNECTED, deadline, what)

    def _wait_for(
        self, condition: Callable[[], bool], deadline: float | None, what: str, link: Link | None = None
    ) -> Inner:
        with self._lock:
            while True:
                if self._rules.state in (State.CLOSED, State.FAILED, State.CONNECTING):
                    raise copied(self._error or IllegalStateException("the connection is not open yet"))
                if condition():
                    assert self._inner is not None
                    return self._inner
                if self._inner is not None and self._inner.in_callback():
                    raise IllegalStateException(f"{what} cannot wait in a callback of the transport")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    if link is not None and self._rules.state is State.CONNECTED:
                        raise _out_of_time(f"{what}: its link was not attached again in time", link.error)
                    raise _out_of_time(f"{what}: the connection was not restored in time", self._last_error)
                self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))

    def _past(self, inner: Inner, deadline: float | None, what: str) -> None:
        """Wait until it is known here that an inner transport was lost."""
        self._wait_for(lambda: self._connected is not inner, deadline, what)

    def _wait_until_told(self, inner: Inner, deadline: float) -> None:
        """Wait until the listener has heard of the loss of an inner transport, so that what comes next is after it."""
        with contextlib.suppress(JMSException):
            self._past(inner, deadline, "the news of the loss")
        if self._telling.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._telling.release()

    def _repeated(self, what: str, timeout: float | None, act: Callable[[Inner, float | None], _T]) -> _T:
        """Do something that may be done again where the connection is lost in the middle of it."""
        limit = self._url.client.request_timeout_seconds if timeout is None else timeout
        deadline = time.monotonic() + limit
        ends = 0
        while True:
            inner = self._serving(deadline, what)
            try:
                return act(inner, max(0.0, deadline - time.monotonic()))
            except JMSException as error:
                if not inner.is_lost:
                    raise
                ends += _says_why(error)
                if ends >= _MOST_ENDS:
                    raise type(error)(
                        f"{what} failed: the broker ended the connection {ends} times meanwhile: {error.reason}",
                        error_code=error.error_code,
                    ) from error
            self._past(inner, deadline, what)

    def _usable(self) -> Inner:
        """The inner transport; raises ConnectionLostException where the network is away."""
        inner = self._connected
        if inner is not None:
            return inner
        if self._rules.state is State.RECONNECTING:
            raise ConnectionLostException("the connection is lost, and is being restored")
        raise copied(self._error or IllegalStateException("the connection is not open yet"))

    def _require_usable(self) -> None:
        """Raises where the connection is closed, or gone for good, or a callback asks for what may wait."""
        if self._rules.state not in (State.CONNECTED, State.RECONNECTING):
            raise copied(self._error or IllegalStateException("the connection is not open yet"))
        if self._inner is not None and self._inner.in_callback():
            raise IllegalStateException("a callback of the transport cannot call what waits")

    # Links.

    def end_session(self, session: int, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.end_session`.  Returns at once while the network is away."""
        self._require_usable()
        with self._lock:
            unsent = self._forget(self._links.of_session(session))
            inner = self._connected
        _tell_closed(unsent)
        self._leave(inner, lambda there: there.end_session(session, timeout))

    def attach(self, spec: SenderSpec | ReceiverSpec, sink: Sink | None, timeout: float | None) -> int:
        """See :meth:`broker_adapter.transport.Transport.attach`."""
        number = self._links.new_number()

        def attach(inner: Inner, left: float | None) -> int:
            attachment = inner, inner.attach(spec, sink, left)
            link = Link(number, spec, sink, LinkState.ATTACHED, attachment)
            with self._lock:
                if inner is not self._connected:
                    raise ConnectionLostException("the connection was lost meanwhile")
                self._links.add(link)
                closed = self._links.take_closed_early(attachment[1])
            if closed is not None:
                self._mend(inner, link, closed)
            return number

        return self._repeated("attaching", timeout, attach)

    def detach(self, link: int, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.detach`.  Returns at once while the network is away."""
        self._require_usable()
        with self._lock:
            record = self._links.get(link)
            if record is None:
                return
            attachment = record.attachment
            unsent = self._forget([record])
            inner = self._connected
        _tell_closed(unsent)
        if attachment is None:
            return
        number = attachment[1]
        try:
            self._leave(inner, lambda there: there.detach(number, timeout))
        except JMSException:
            raise
        except BaseException:  # the handler of a signal: the next call detaches it
            with self._lock:
                if inner is not None and inner is self._connected:
                    self._links.add(record)
            raise

    def _forget(self, links: Sequence[Link]) -> list[_Send]:
        """Under the lock: links end; returns their sends that are not sent again any more."""
        self._links.remove(links)
        self._changed.notify_all()
        unsent = [send for link in links for send in self._unsent if send.link is link]
        self._unsent = [send for send in self._unsent if send.link not in links]
        return unsent

    @staticmethod
    def _leave(inner: Inner | None, act: Callable[[Inner], None]) -> None:
        """Tell the broker that something has ended; where the network is away, it has ended all the same."""
        if inner is None:
            return
        try:
            act(inner)
        except JMSException:
            if not inner.is_lost:
                raise

    def unsubscribe(self, name: str, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.unsubscribe`."""
        asked = False

        def unsubscribe(inner: Inner, left: float | None) -> None:
            nonlocal asked
            try:
                before, asked = asked, True
                inner.unsubscribe(name, left)
            except InvalidDestinationException:
                if not before:
                    raise
                # The first request was carried out, and its answer was lost.

        self._repeated(f"unsubscribing {name!r}", timeout, unsubscribe)

    def declare_temporary(self, kind: DestinationKind, timeout: float | None) -> Destination:
        """See :meth:`broker_adapter.transport.Transport.declare_temporary`.  It comes back with the connection."""

        def declare(inner: Inner, left: float | None) -> Destination:
            destination = inner.declare_temporary(kind, left)
            with self._lock:
                if inner is not self._connected:
                    raise ConnectionLostException("the connection was lost meanwhile")
                self._temporaries[destination] = None
            return destination

        return self._repeated("declaring a temporary destination", timeout, declare)

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.delete_temporary`.  At once where the network is away."""
        self._require_usable()
        with self._lock:
            if destination not in self._temporaries:
                raise InvalidDestinationException(
                    f"{destination.name!r} is no temporary destination of this connection"
                )
            if self._links.has_consumer(destination):
                raise IllegalStateException(f"temporary destination {destination.name!r} has a consumer")
            inner = self._connected
        with suppress(InvalidDestinationException):  # it was ours, and the broker did not make it again after a loss
            self._leave(inner, lambda there: there.delete_temporary(destination, timeout))
        with self._lock:
            self._temporaries.pop(destination, None)

    # Receiving.

    def credit(self, link: int, messages: int) -> None:
        """See :meth:`broker_adapter.transport.Transport.credit`.  While the network is away there is nothing to let."""
        inner = self._connected
        if inner is None:
            if self._rules.state is not State.RECONNECTING:
                self._usable()  # raises
            return
        record = self._link(link)
        if record is None:
            return
        attachment = record.attachment
        if attachment is None:
            return
        try:
            inner.credit(attachment[1], messages)
        except JMSException:
            if not inner.is_lost:
                raise

    def drain(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.drain`."""
        inner = self._usable()
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
                raise _as_lost(error) from error
            raise

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """See :meth:`broker_adapter.transport.Transport.settle`."""
        self._usable().settle(settlements)

    def confirm(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.confirm`."""
        self._repeated("the acknowledgement", timeout, lambda inner, left: inner.confirm(left))

    # Sending.

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.send`.  It is sent again where the connection is lost."""
        limit = self._url.client.send_timeout_seconds if timeout is None else timeout
        if on_settled is not None:
            # The way of nearly every message, without what is only needed in an outage.
            record = self._link(link)
            if record is not None:
                attachment = record.attachment
                if attachment is not None and record.state is _ATTACHED:
                    inner, number = attachment
                    send = _Send(self, record, attachment, envelope, on_settled, self._next_serial())
                    try:
                        inner.send(number, envelope, send, timeout)
                        return
                    except JMSException:
                        if not inner.is_lost and record.attachment is attachment:
                            raise
            self._send(link, envelope, on_settled, time.monotonic() + limit)
            return
        self._require_usable()
        deadline = time.monotonic() + limit
        answer = _Answer()
        send = self._send(link, envelope, answer, deadline)
        if not answer.wait(deadline - time.monotonic()):
            send.abandoned = True  # it is not sent again
            raise _out_of_time(f"the send had no answer within {limit:g} s", self._last_error)
        if answer.error is not None:
            raise copied(answer.error)

    def _send(self, link: int, envelope: Envelope, on_settled: OnSettled, deadline: float) -> _Send:
        while True:
            self._serving(deadline, "the send")
            record = self._attached(link, deadline, "the send")
            attachment = record.attachment
            if attachment is None or record.state is not _ATTACHED:
                continue  # lost meanwhile
            inner, number = attachment
            send = _Send(self, record, attachment, envelope, on_settled, self._next_serial())
            try:
                inner.send(number, envelope, send, max(0.0, deadline - time.monotonic()))
                return send
            except JMSException:
                if inner.is_lost:
                    self._past(inner, deadline, "the send")
                elif record.attachment is attachment:
                    raise

    def _attached(self, number: int, deadline: float, what: str) -> Link:
        """A link, once it is attached."""
        link = self._link(number)
        if link is not None and link.error is not None:
            self._wait_for(partial(self._is_settled, link), deadline, what, link)
            link = self._link(number)
        if link is None or link.state is LinkState.ENDED:
            raise IllegalStateException(f"link {number} is closed")
        return link

    def _is_settled(self, link: Link) -> bool:
        return link.error is None or not self._links.is_registered(link)

    def keep(self, send: _Send) -> bool:
        """A send has failed: returns whether that is because its connection or link was lost, so it is sent again."""
        with self._lock:
            link = send.link
            attachment = link.attachment
            lost = send.attachment[0].is_lost or attachment is not send.attachment
            if not lost or send.abandoned or self._rules.state in (State.CLOSED, State.FAILED):
                return False
            if self._rules.method == "nofailover" or not self._links.is_registered(link):
                return False
            if link.state is not _ATTACHED or attachment is None or attachment[0].is_lost:
                self._unsent.append(send)
                return True
        # It came to what was lost after something new had taken its place.  What its producer sent since may be ahead
        # of it; the engine takes identities in any order.
        self._resend(send)
        return True

    # Commits and requests.

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.commit`.

        One that was under way when the connection was lost is resolved by its id once it is restored.
        """
        limit = self._url.client.request_timeout_seconds if timeout is None else timeout
        deadline = time.monotonic() + limit
        used = [] if self._inner is None else [self._inner]
        try:
            self._commit(session, commit_number, sends, settlements, (deadline - limit, deadline), used)
        except JMSException:
            for inner in used:
                if inner.is_lost:
                    self._wait_until_told(inner, deadline)  # or one loss would roll back the next transaction as well
            raise

    def _commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        times: tuple[float, float],
        used: list[Inner],
    ) -> None:
        """Between two instants; ``used`` gets the inner transports that it is carried out on."""
        began, deadline = times
        try:
            inner = self._serving(deadline, "the commit")
        except OperationTimedOutException as error:
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        used.append(inner)
        peer = self._peer
        try:
            mapped = []
            for number, envelope in sends:
                link = self._link(number)
                if link is None or link.state is not _ATTACHED:
                    link = self._attached(number, deadline, "the commit")
                attachment = link.attachment
                mapped.append((NO_LINK if attachment is None else attachment[1], envelope))
        except OperationTimedOutException as error:
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        except IllegalStateException as error:
            # What they were received by has let go of them.
            inner.settle([Settlement(tag, Outcome.MODIFIED) for tag, _ in settlements])
            raise TransactionRolledBackException(f"nothing was committed: {error.reason}") from error
        try:
            inner.commit(session, commit_number, mapped, settlements, max(0.0, deadline - time.monotonic()))
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
        self._resolve(session, commit_number, inner, peer, doubt, began, deadline)

    def _resolve(
        self,
        session: int,
        commit_number: int,
        inner: Inner,
        peer: Peer | None,
        doubt: TransactionInDoubtException,
        began: float,
        deadline: float,
    ) -> None:
        if peer is None or peer.store is None:
            raise doubt
        done: bool | None = None
        while True:
            try:
                self._past(inner, deadline, "resolving it")
                inner = self._serving(deadline, "resolving it")
            except JMSException as error:
                raise TransactionInDoubtException(f"{doubt.reason}; {error.reason}") from error
            if self._peer is None or self._peer.store != peer.store:
                raise TransactionInDoubtException(
                    f"{doubt.reason}; the broker that is connected now has another store, and cannot tell"
                )
            try:
                now = time.monotonic()
                done = inner.resolve_commit(session, commit_number, now - began, max(0.0, deadline - now))
                break
            except JMSException as error:
                if not inner.is_lost:
                    raise TransactionInDoubtException(f"{doubt.reason}; {error.reason}") from error
        if done is None:
            raise TransactionInDoubtException(f"{doubt.reason}; the broker does not remember")
        if not done:
            raise TransactionRolledBackException("nothing was committed: the connection was lost before it was done")

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """See :meth:`broker_adapter.transport.Transport.request`.

        It is asked again where the connection is lost.  Our own server knows it again by its id and run, those that
        the caller has given or others, and what is not the same when it is carried out twice is carried out once.
        """
        given = {name: value for name, value in arguments.items() if value is not None or name not in _REPETITION}
        request_id = str(uuid4())
        first_run: str | None = None

        def ask(inner: Inner, left: float | None) -> Any:
            nonlocal first_run
            peer = self._peer
            if peer is None or peer.run is None:
                return inner.request(operation, arguments, left)
            first_run = first_run or peer.run
            return inner.request(operation, {"request_id": request_id, "request_run": first_run, **given}, left)

        return self._repeated(f"request {operation!r}", timeout, ask)


def _told(action: Action, error: JMSException) -> JMSException:
    """An error with what the rules know of its redirect."""
    return action.error or error if isinstance(action, Try) else error


def _without_thread(text: str, failure: RuntimeError) -> ResourceAllocationException:
    return ResourceAllocationException(f"{text}, for the process has no thread for that: {failure}")


def _out_of_time(text: str, last_error: JMSException | None) -> OperationTimedOutException:
    """The error of a wait that is over; ``last_error``: what there was to wait for."""
    if last_error is None:
        return OperationTimedOutException(text)
    error = OperationTimedOutException(f"{text}; the last error: {last_error.reason}")
    error.__cause__ = copied(last_error)
    return error


class _Answer:
    """The end of one send, for the thread that waits for it."""

    __slots__ = ("_arrived", "error")

    def __init__(self) -> None:
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self.error: JMSException | None = None

    def __call__(self, error: JMSException | None) -> None:
        self.error = error
        self._arrived.release()

    def wait(self, seconds: float) -> bool:
        """Whether the answer came in time."""
        return self._arrived.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))


#: Ends of the connection for a reason, in the middle of the same request, after which it is not repeated any more.
_MOST_ENDS: Final = 2
#: Refusals that another attempt would not change.
_LASTING: Final = (InvalidDestinationException, InvalidSelectorException, JMSSecurityException)


def _says_why(error: JMSException) -> bool:
    """Whether the broker has ended the connection for something that it was sent, and did not just go."""
    return error.error_code is not None and not isinstance(error, ConnectionLostException | StoreException)


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """As many at a time as are asked for without waiting for answers."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def _tell_closed(sends: Sequence[_Send]) -> None:
    error = ConnectionLostException("it was closed while the connection was away; the message may have been sent")
    for send in sends:
        send.on_settled(error)


def _as_lost(error: JMSException) -> ConnectionLostException:
    if isinstance(error, ConnectionLostException):
        return error
    lost = ConnectionLostException(f"the connection is lost: {error.reason}", error_code=error.error_code)
    lost.__cause__ = error
    return lost
