"""Opens a connection, notices its loss, and restores it.

Theory of operation
    The inner transport is one network connection, and ends with it.  When it is lost, a thread of its own, alive only
    meanwhile, asks the rules (:mod:`broker_adapter.failover.rules`) for the next attempt: it opens a new inner
    transport and restores everything that the lost one had (:mod:`broker_adapter.failover.reattach`).  Then
    calls continue.

    Deliveries carry the epoch of their connection.  Each loss and each failed attempt to restore begins a new one, so
    the inner transport ignores what is settled late.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import attrs

from broker_adapter.errors import (
    ConnectionLostException,
    IllegalStateException,
    JMSException,
    JMSSecurityException,
    copied,
)
from broker_adapter.failover.current import CurrentTransport
from broker_adapter.failover.failures import as_lost, without_thread
from broker_adapter.failover.inner import Identification, Inner, Make
from broker_adapter.failover.links import LinkTable
from broker_adapter.failover.reattach import Reattacher
from broker_adapter.failover.rules import Abandoned, Action, Announced, AttemptFailed, GiveUp, State, Try
from broker_adapter.failover.unanswered import Send, UnansweredSends
from broker_adapter.mechanisms import Trust
from broker_adapter.transport import (
    BrokerAnnounced,
    Credentials,
    Failed,
    Interrupted,
    LinkLost,
    Peer,
    Refresh,
    Restored,
    Restoring,
    Server,
    TransportEvent,
)
from broker_adapter.urls.url import FailoverURL

_log = logging.getLogger(f"holdfast.{__package__}")

#: Attempts after which the log says again that the connection is away.
_WARN_EACH: Final = 10


class Connector:
    """Keeps one connection connected.  See the module's theory of operation."""

    def __init__(
        self,
        url: FailoverURL,
        make: Make,
        refresh: Refresh | None,
        current: CurrentTransport,
        links: LinkTable,
        unanswered: UnansweredSends,
        reattacher: Reattacher,
    ) -> None:
        self._url = url
        self._make = make
        self._refresh = refresh
        self._current = current
        self._rules = current.rules
        self._watches = self._rules.method == "failover_exchange" or url.client.redundancy > 0
        self._links = links
        self._unanswered = unanswered
        self._reattacher = reattacher
        self._identification = Identification(trust=Trust(url.addresses, url.failover.trusted_hosts))
        self._credentials = Credentials()
        self._epoch = 0
        self._lost_at = 0.0
        self._logged_redirect: str | None = None  #: why the last redirect failed, as the log says it

    # Opening and closing.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """Try each address once, and again as the options say.

        Args:
            credentials: who connects.
            listener: gets the events of the connection.
            timeout: longest time for all attempts, in seconds; None: each has ``connect_timeout_seconds``.

        Returns:
            What is known of the broker.

        Raises:
            JMSException: no attempt has succeeded.
        """
        current = self._current
        with current.lock:
            if current.state is not State.CONNECTING or current.last is not None:
                raise IllegalStateException("the connection was opened before")
        self._credentials = credentials
        current.listener = listener
        deadline = None if timeout is None else current.clock() + timeout
        action = self._rules.start(current.clock())
        while True:
            try:
                inner, peer = self._attempt(action, deadline)
                if self._connected(inner, peer, None):
                    return peer
                inner.close(0)
                raise current.broken or ConnectionLostException("the connection was lost again at once")
            except JMSException as error:
                if current.is_closed() or (deadline is not None and current.clock() >= deadline):
                    raise
                with current.lock:
                    if current.is_closed():
                        raise
                    following = self._rules.process(AttemptFailed(error), current.clock())
                    goes_on = isinstance(following, Try) and (deadline is None or following.at < deadline)
                    if not goes_on:
                        self._rules.process(Abandoned(), current.clock())
                        final = following.error if isinstance(following, GiveUp) else _with_redirect(following, error)
                        current.fail(final)
                if isinstance(following, Try) and goes_on:
                    self._log_redirect()
                    action = following
                    continue
                raise copied(final) from final.__cause__

    def _attempt(self, action: Try, deadline: float | None) -> tuple[Inner, Peer]:
        """Open a new inner transport at the instant of the rules; raises where that fails, or at a close."""
        current = self._current
        with current.lock:
            while not current.is_closed() and (wait := action.at - current.clock()) > 0:
                current.changed.wait(min(wait, threading.TIMEOUT_MAX))
        if action.fresh_credentials and self._refresh is not None:
            username, password = self._refreshed(self._refresh)
            self._credentials = attrs.evolve(self._credentials, username=username, password=password)
        with current.lock:
            if current.is_closed():
                raise IllegalStateException("the connection is closed")
            inner = self._make(action.address, self._epoch, self._identification)
            current.begin(inner)
            self._links.clear_closed_early()
        left = None if deadline is None else max(0.0, deadline - current.clock())
        try:
            return inner, inner.open(self._credentials, partial(self._on_event, inner), left)
        except BaseException:
            inner.close(0)
            raise

    @staticmethod
    def _refreshed(refresh: Refresh) -> tuple[str | None, str | None]:
        try:
            username, password = refresh()
        except Exception as error:
            raise JMSSecurityException(f"fresh credentials could not be had: {error!r}") from error
        return username, password

    def _connected(self, inner: Inner, peer: Peer, event: TransportEvent | None) -> bool:
        """Let calls use an inner transport; returns False where it was lost again already."""
        current = self._current
        with current.events_lock:
            with current.lock:
                if not current.connect(inner, peer):
                    return False
                interrupted = self._links.attach_restored()
                self._announced(peer.servers, peer.is_group)
            if event is not None:
                current.listener(event)
            if self._watches:
                current.listener(BrokerAnnounced(peer.servers, peer.redundancy))
            for link, error in interrupted:
                if link.error is error:  # else the broker has closed it again, and it is being attached again already
                    self._reattacher.reattach(inner, link, error)
        # Not under the lock of events: a send may wait for a place, which the thread that tells of events makes.
        self._unanswered.resend_late()
        if self._watches:
            with suppress(JMSException):  # it is lost again
                inner.watch()
        return True

    def close(self, timeout: float | None) -> None:
        """Close the connection.  Never waits for a network that is away.

        Args:
            timeout: longest wait for the broker, in seconds; None: ``close_timeout_seconds``.
        """
        current = self._current
        with current.lock:
            inner = current.last
            if current.is_closed():
                if inner is not None:  # the handler of a signal may have raised before this was done
                    inner.close(0)
                return
            was_connected = current.connected is not None
            current.close()
            self._links.detach_all()
            unsent = self._unanswered.take_all()
        for send in unsent:
            send.on_settled(current.error)
        if inner is not None:
            inner.close(timeout if was_connected else 0)

    # Events of the inner transport, in its thread.

    def _on_event(self, inner: Inner, event: TransportEvent) -> None:
        if isinstance(event, Failed):
            self._on_lost(inner, event.error)
        elif isinstance(event, LinkLost):
            self._reattacher.closed_by_broker(inner, event)
        elif isinstance(event, BrokerAnnounced):
            current = self._current
            with current.events_lock:
                with current.lock:
                    if inner is not current.connected:
                        return
                    self._announced(event.servers)
                current.listener(event)

    def _on_lost(self, inner: Inner, error: JMSException) -> None:
        current = self._current
        with current.events_lock:
            with current.lock:
                if inner is not current.last:
                    return
                if current.state is not State.CONNECTED:
                    current.broken = error
                    current.changed.notify_all()
                    return
                self._lost_at = current.clock()
                address = self._rules.address
                action = current.connection_lost(error, self._lost_at)
                self._links.detach_all()
                current.last_error = error = _with_redirect(action, error)
                unsent: list[Send] = []
                if isinstance(action, GiveUp):
                    unsent = self._fail(action.error)
                else:
                    self._epoch += 1
            if isinstance(action, GiveUp):
                self._report_failure(action.error, unsent)
                return
            current.listener(Interrupted(as_lost(error)))
        assert isinstance(action, Try)
        _log.warning("! the connection to %s is lost: %s", address, error)
        self._logged_redirect = self._rules.redirect_failure  # it is in the error
        try:
            threading.Thread(target=self._restore, args=(action,), name="holdfast-failover", daemon=True).start()
        except RuntimeError as failure:  # the process has as many threads as it may
            error = without_thread("the connection is lost, and cannot be restored", failure)
            with current.events_lock:
                with current.lock:
                    if current.is_closed():
                        return
                    self._rules.process(Abandoned(), current.clock())
                    unsent = self._fail(error)
                self._report_failure(error, unsent)

    def _fail(self, error: JMSException) -> list[Send]:
        """Under the lock: the connection has failed; returns the sends that fail with it."""
        self._current.fail(error)
        return self._unanswered.take_all()

    def _report_failure(self, error: JMSException, unsent: Sequence[Send]) -> None:
        for send in unsent:
            send.on_settled(error)
        self._current.listener(Failed(error))

    def _announced(self, servers: Sequence[Server], is_group: bool = False) -> None:
        """Under the lock: the broker says where it can be reached."""
        here = self._rules.address
        addresses = []
        for each in servers:
            amqp = here.amqp if each.hostname is None else attrs.evolve(here.amqp, vhost=each.hostname)
            tls = here.tls if each.tls is None else each.tls
            if tls or not here.tls or self._url.failover.allow_insecure_redirects:
                addresses.append(attrs.evolve(here, host=each.host, port=each.port, tls=tls, amqp=amqp))
        self._rules.process(Announced(addresses, is_group), self._current.clock())

    def _log_redirect(self) -> None:
        """Log why a redirect failed, once for each reason."""
        failure = self._rules.redirect_failure
        if failure != self._logged_redirect and failure is not None:
            _log.warning("! %s", failure)
        self._logged_redirect = failure

    # Restoring the connection, in a thread of its own.

    def _restore(self, action: Try) -> None:
        current = self._current
        while True:
            inner: Inner | None = None
            error: JMSException
            try:
                inner, peer = self._attempt(action, None)
                current.peer = peer
                current.listener(Restoring(peer, inner.request, self._identification.token))
                self._reattacher.restore(inner)
                away = current.clock() - self._lost_at
                event = Restored(self._epoch, peer, str(action.address), self._rules.attempts, away)
                if self._connected(inner, peer, event):
                    _log.info("= the connection is restored: %s, after %.3f s", event.address, away)
                    return
                raise current.broken or ConnectionLostException("the connection was lost again at once")
            except JMSException as failure:
                error = failure
            except Exception as failure:  # a fault here must not leave every call waiting
                _log.exception("! restoring the connection failed unexpectedly")
                if inner is not None and inner is current.connected:
                    return  # it is restored, and what failed came behind that
                error = ConnectionLostException(f"restoring the connection failed unexpectedly: {failure!r}")
                error.__cause__ = failure
            if inner is not None:
                inner.close(0)
            with current.events_lock:
                with current.lock:
                    if current.is_closed():
                        return
                    following = self._rules.process(AttemptFailed(error), current.clock())
                    current.last_error = error = _with_redirect(following, error)
                    # Deliveries of this attempt, if there were any, are as stale as those before it.
                    self._epoch += 1
                    unsent = self._fail(following.error) if isinstance(following, GiveUp) else []
                if isinstance(following, GiveUp):
                    self._report_failure(following.error, unsent)
                    return
            assert isinstance(following, Try)
            self._log_redirect()
            if self._rules.attempts % _WARN_EACH == 0:
                _log.warning("! the connection is still away after %d attempts: %s", self._rules.attempts, error)
            action = following


def _with_redirect(action: Action, error: JMSException) -> JMSException:
    """An error with what the rules know of its redirect."""
    return action.error or error if isinstance(action, Try) else error
