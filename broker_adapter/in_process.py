"""The transport port over an engine in this process: ``embedded:PATH``, ``embedded:``, ``embedded:?memory=NAME``.

Theory of operation
    Every connection in the process that names the same directory, or the same engine in memory, shares one engine.  It
    is opened with the first of them and closed with the last one, or by whoever calls ``close_engine``.  While it is
    open, its gateways send, if it is a site.

    Asynchronous sends and settlements gather in an outbox, which the engine empties when it gets to it: one command
    for many of them.  All else is one call of the engine.  Messages are packed in the thread that sends them and
    decoded in the thread that reads them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from threading import get_ident
from typing import Any, cast
from uuid import uuid4

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter.answers import SendWindow, unanswered_send
from broker_adapter.config_file import read_policies
from broker_adapter.destination import Destination, DestinationKind, resolved
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.operations.regions import CHANGED_AT_ONCE, key_change
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.envelope import (
    AMQP_FORMAT,
    Envelope,
    annotated,
    pack,
    undecodable_dead_letter,
    unpack,
)
from broker_adapter.errors import (
    IllegalStateException,
    InvalidURLException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
    TransactionRolledBackException,
    copied,
)
from broker_adapter.gateways.senders import Connect, Senders
from broker_adapter.signals import uninterrupted
from broker_adapter.transport import (
    Credentials,
    Delivery,
    EventDelivery,
    EventSink,
    EventsSpec,
    Failed,
    LinkLost,
    LinkSink,
    LinkSpec,
    OnSettled,
    Peer,
    RegionChange,
    SenderSpec,
    Sink,
    TransportEvent,
)
from broker_adapter.urls.url import EmbeddedURL
from broker_adapter.version import PRODUCT, own_version

#: What the engine can do, in the capabilities of AMQP.
CAPABILITIES = frozenset({"ANONYMOUS-RELAY", "SHARED-SUBS", "DELAYED_DELIVERY"})
#: What a named tuple does, without the call of a function of Python.
_new = tuple.__new__


class EngineLease:
    """The right to use the engine of a URL; it stays open until the last lease is given back.

    Args:
        url: where the engine keeps its store, and its options.
        connect: returns what its gateways connect with to another site; None: they do not send for this lease.

    Attributes:
        broker: the engine.
        is_released: whether it was given back.

    Raises:
        StoreException, StoreLockedException: it cannot be opened.
        IllegalStateException: it is open in this process with other options.
    """

    def __init__(self, url: EmbeddedURL, connect: Connect | None = None) -> None:
        path = None if url.path is None else os.path.realpath(url.path)
        self._key: _Key = path, url.memory
        self.is_released = False
        self._entry: _Shared | None = None
        try:
            self.broker = uninterrupted(partial(self._take, url, connect))
        except BaseException:  # a handler of a signal may have raised while the engine was opened
            self.release()
            raise

    def _take(self, url: EmbeddedURL, connect: Connect | None) -> Broker:
        with _registry_lock:
            if self.is_released:
                raise IllegalStateException("the engine was given back before it was opened")
            entry = _registry.get(self._key)
            if entry is None:
                entry = _registry[self._key] = _Shared(Broker(url.engine, self._key[0], _policies(url)), url.config)
            else:
                _check_options(url, entry)
            if connect is not None and url.engine.site and entry.senders is None:
                entry.senders = Senders(entry.broker, connect)
                entry.senders.start()
            entry.users += 1
            self._entry = entry
            return entry.broker

    def release(self) -> None:
        """Give the engine back; legal twice.  The last one closes the engine, and what it has in memory is gone."""
        uninterrupted(self._release)

    def close_engine(self) -> None:
        """Close the engine, whoever else has a lease: their connections fail.  For an engine in memory of a test."""
        uninterrupted(self._close_engine)

    def _close_engine(self) -> None:
        with _registry_lock:
            if _registry.get(self._key) is self._entry:
                del _registry[self._key]
        if self._entry is not None:
            self._entry.close()
        self.broker.tell_failure()

    def _release(self) -> None:
        with _registry_lock:
            entry = self._entry
            if self.is_released or entry is None or _registry.get(self._key) is not entry:
                self.is_released = True
                return
            self.is_released = True
            entry.users -= 1
            if entry.users == 0:
                del _registry[self._key]
                entry.close()


class _Shared:
    """An engine, its file of configuration, the senders of its gateways, and the number of its users."""

    def __init__(self, broker: Broker, config: str | None) -> None:
        self.broker = broker
        self.config = config
        self.senders: Senders | None = None
        self.users = 0

    def close(self) -> None:
        if self.senders is not None:
            self.senders.stop()
        self.broker.close()


#: The directory of an engine, or None, and its name.
_Key = tuple[str | None, str | None]
_registry: dict[_Key, _Shared] = {}
_registry_lock = threading.Lock()


def _policies(url: EmbeddedURL) -> Policies | None:
    if url.config is None:
        return None
    try:
        return Policies(url.engine, read_policies(url.config))
    except ValueError as error:
        raise InvalidURLException(str(error)) from error


def _check_options(url: EmbeddedURL, entry: _Shared) -> None:
    given = [(name, getattr(url.engine, name), getattr(entry.broker.settings, name)) for name in url.engine_options]
    if url.config is not None:
        given.append(("config", url.config, entry.config))
    for name, asked, used in sorted(given):
        if asked != used:
            raise IllegalStateException(
                f"the engine of {url} is open in this process with {name}={used!r}, so it cannot be used with"
                f" {name}={asked!r}; give the same options to every connection of it, or close the others first"
            )


def _after_fork() -> None:
    """A child has no engine thread, and must not touch its parent's store."""
    global _registry_lock
    _registry_lock = threading.Lock()
    for entry in _registry.values():
        entry.broker.disown(
            IllegalStateException(
                "this engine belongs to the process that this one was forked from; connect after the fork, to a"
                " directory of its own or to a server"
            )
        )
        _inherited.append(entry.broker)  # kept, so that nothing closes the parent's files
    _registry.clear()


_inherited: list[Broker] = []
os.register_at_fork(after_in_child=_after_fork)


class InProcessTransport:
    """One connection to the engine in this process.

    Args:
        url: which engine.
        decode_amqp: decodes a message that came from an AMQP client of the same engine.
        connect: returns what gateways of the engine connect with to another site; None: they do not send.
        epoch: what this connection's deliveries carry.
        commit_prefix: names the client in commit ids.
    """

    def __init__(
        self,
        url: EmbeddedURL,
        decode_amqp: Callable[[bytes], Envelope],
        connect: Connect | None = None,
        *,
        epoch: int = 0,
        commit_prefix: str | None = None,
    ) -> None:
        self._url = url
        self._decode_amqp = decode_amqp
        self._connect = connect
        self._epoch = epoch
        self._commit_prefix = commit_prefix or str(uuid4())
        self._window = SendWindow(url.client.send_window_messages)
        self._lease: EngineLease | None = None
        self._broker: Broker = cast(Broker, None)
        self._client = 0
        self._client_id = ""
        self._events_link: int | None = None
        self._error: JMSException | None = IllegalStateException("the connection is not open yet")
        self._lock = threading.RLock()
        self._closed = False
        self._next_link = 1
        self._senders: dict[int, Destination | None] = {}
        self._consumers: dict[int, int] = {}  #: link → the engine's number; kept for late settlements
        self._detached: set[int] = set()  #: of these, the links that are closed
        self._sessions: dict[int, int] = {}  #: link → its session's number
        #: sends, as tuples (destination, message, callback, link), and settlements, as lists
        self._outbox: deque[Any] = deque()
        self._deferred = c.DeferredCommands(self._take_outbox)
        self._is_collecting = False
        self._submitting = False
        self._taken: deque[_Batch] = deque()  #: sends that a cycle has taken since the last answer
        self._batches: deque[_Batch] = deque()  #: those before, which have no answer; only used as one comes
        self._unregister_listener: Callable[[], None] = _nothing
        self._listener: Callable[[TransportEvent], None] = _nothing_heard

    def __repr__(self) -> str:
        return f"<InProcessTransport embedded:{self._url.path or ''}, client {self._client}>"

    # The connection.

    def open(self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None) -> Peer:
        """See :meth:`broker_adapter.transport.Transport.open`.  A process that may open the directory may connect."""
        return uninterrupted(partial(self._open, credentials, listener, timeout))

    def _open(
        self, credentials: Credentials, listener: Callable[[TransportEvent], None], timeout: float | None
    ) -> Peer:
        with self._lock:
            if self._lease is not None or self._closed:
                raise IllegalStateException("the connection was opened before")
            own = self._url.client.connect_timeout_seconds
            lease = EngineLease(self._url, self._connect)
            lease.broker.learn_format(AMQP_FORMAT, self._decode_amqp)
            try:
                self._client = lease.broker.call(c.Connect(credentials.client_id), own if timeout is None else timeout)
            except BaseException:
                lease.release()
                raise
            if self._closed:  # a close() that was interrupted meanwhile does not wait for this
                self._leave(lease, own)
                raise IllegalStateException("the connection was closed as it opened")
            self._lease = lease
            self._broker = lease.broker
            self._listener = listener
            self._error = None

        def failed(error: JMSException) -> None:
            self._error = error
            self._window.close(error)
            if not self._closed:
                listener(Failed(error))

        self._unregister_listener = lease.broker.on_failure(failed)
        self._client_id = credentials.client_id or f"holdfast-{uuid4()}"
        return Peer(
            PRODUCT,
            own_version(),
            self._client_id,
            is_holdfast=True,
            capabilities=CAPABILITIES,
        )

    def close(self, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.close`."""
        # The handler of a signal may have interrupted this thread as it held the lock: it is taken here, and not in the
        # thread apart.  Where a handler has raised in the middle of this, the next call goes on.
        self._closed = True
        with self._lock:
            lease = self._lease
        self._error = IllegalStateException("the connection is closed")
        self._window.close(self._error)
        self._unregister_listener()
        if lease is None or lease.is_released:
            return
        own = self._url.client.close_timeout_seconds
        limit = own if timeout is None else min(own, timeout)
        if get_ident() in lease.broker.callback_threads:
            # A callback cannot wait for the engine that calls it.
            threading.Thread(target=self._leave, args=(lease, limit), name="holdfast-close").start()
        else:
            uninterrupted(partial(self._leave, lease, limit))

    def _leave(self, lease: EngineLease, limit: float) -> None:
        try:
            lease.broker.call(c.Disconnect(self._client), limit, self._deferred)
        except JMSException:
            pass  # an engine that is gone takes nothing from a close
        finally:
            lease.release()

    # Links.

    def end_session(self, session: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.end_session`."""
        self._usable_to_wait()
        self._call(c.EndSession(self._commit_session(session)), timeout)
        for link in [link for link, of_session in list(self._sessions.items()) if of_session == session]:
            consumer = self._consumers.get(link)
            if consumer is not None:
                self._call(c.Detach(consumer, give_back=True), timeout)
                self._remove_link(link)
            else:
                self.detach(link, timeout)
        return True

    def attach(self, spec: LinkSpec, sink: LinkSink, timeout: float | None) -> int:
        """See :meth:`broker_adapter.transport.Transport.attach`."""
        broker = self._usable_to_wait()
        limit = self._request_limit(timeout)
        with self._lock:
            link = self._next_link
            self._next_link += 1
        if isinstance(spec, SenderSpec):
            destination = None if spec.destination is None else resolved(spec.destination)
            if destination is not None:
                broker.call(c.Declare(destination), limit)
            self._senders[link] = destination
        elif isinstance(spec, EventsSpec):
            deliver = self._event_sink(link, cast(EventSink, sink))
            client = self._client, self._client_id, spec.timeout_ms, spec.window, deliver
            broker.call(e.ConnectDurable(*client, conflation=spec.conflation), limit)
            self._events_link = link
        else:
            if sink is None:
                raise IllegalStateException("a receiver's link needs a sink")
            self._consumers[link] = broker.call(
                c.Attach(
                    self._client,
                    spec.destination,
                    self._sink(link, cast(Sink, sink)),
                    spec.subscription,
                    spec.selector,
                    spec.no_local,
                    spec.presettled or spec.browse,
                    spec.browse,
                    exclusive=spec.exclusive,
                    keep_order=spec.keep_order,
                    ended=partial(self._ended, link),
                ),
                limit,
            )
        self._sessions[link] = spec.session
        return link

    def _ended(self, link: int, error: JMSException) -> None:
        """The engine has ended a consumer; in its cycle."""
        self._remove_link(link)
        if not self._closed:
            self._listener(LinkLost(link, error, link))

    def _sink(self, link: int, sink: Sink) -> c.EngineSink:
        epoch, decode = self._epoch, self._decode

        def deliver(handouts: Sequence[c.Handout]) -> None:
            sink(
                [
                    Delivery(
                        _new(DeliveryTag, (epoch, link, number)),
                        (form, payload, annotations),
                        decode,
                        count,
                        position,
                        partial(self._take_in_hand, link, number) if suspect else None,
                    )
                    for number, position, count, form, payload, annotations, suspect in handouts
                ]
            )

        return deliver

    def _event_sink(self, link: int, sink: EventSink) -> Callable[[Sequence[Any]], None]:
        def deliver(handouts: Sequence[Any]) -> None:
            found = []
            for each in handouts:
                if isinstance(each, e.EventHandout):
                    interests = [(int(interest.kind), interest.text) for interest in each.interests]
                    payload = each.format, each.payload, None
                    queries = [(name, int(operation)) for name, operation in each.queries]
                    of_key = each.position, each.region, int(each.operation), each.key
                    found.append(EventDelivery(*of_key, interests, queries, each.is_history, payload, self._decode))
                elif isinstance(each, e.MarkerHandout):
                    found.append(EventDelivery(each.position))
                else:
                    self._events_link = None
                    self._ended(link, ResourceAllocationException(each.reason))
            if found and self._events_link == link:
                sink(found)

        return deliver

    def _take_in_hand(self, link: int, number: int) -> bool:
        """See :attr:`broker_adapter.transport.Delivery.take_in_hand`."""
        consumer = self._consumers.get(link)
        if consumer is None or get_ident() in self._usable().callback_threads:  # a callback, which cannot wait
            return True
        return bool(self._call(c.TakeInHand(consumer, number), None))

    def _decode(self, stored: tuple[int, bytes, dict[str, Any] | None]) -> Envelope:
        form, payload, annotations = stored
        try:
            envelope = self._decode_amqp(payload) if form == AMQP_FORMAT else unpack(payload)
        except MessageFormatException as error:
            return undecodable_dead_letter(payload, annotations or {}, error)
        return annotated(envelope, annotations) if annotations else envelope

    def detach(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.detach`."""
        self._usable_to_wait()
        consumer = self._consumers.get(link)
        if link == self._events_link:
            self._events_link = None
            self._call(e.LeaveDurable(self._client, keep=True), timeout)
            self._remove_link(link)
        elif consumer is None:
            self._remove_link(link)
        elif link not in self._detached:
            holds = self._call(c.Detach(consumer), timeout)
            self._detached.add(link)  # only now: where the handler of a signal has raised, the next call does it
            if not holds:
                self._remove_link(link)  # it holds nothing that could be settled
        return True

    def _remove_link(self, link: int) -> None:
        self._senders.pop(link, None)
        self._consumers.pop(link, None)
        self._detached.discard(link)
        self._sessions.pop(link, None)

    def unsubscribe(self, name: str, timeout: float | None, session: int | None = None) -> None:
        """See :meth:`broker_adapter.transport.Transport.unsubscribe`."""
        self._usable_to_wait()
        self._call(c.Unsubscribe(self._client, name), timeout)

    def declare_temporary(
        self, kind: DestinationKind, timeout: float | None, session: int | None = None
    ) -> Destination:
        """See :meth:`broker_adapter.transport.Transport.declare_temporary`."""
        command = c.DeclareTemporary(self._client, kind)
        destination: Destination = self._usable_to_wait().call(command, self._request_limit(timeout))
        return destination

    def delete_temporary(self, destination: Destination, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.delete_temporary`."""
        self._usable_to_wait()
        self._call(c.DeleteTemporary(self._client, destination), timeout)

    # Receiving.

    def credit(self, link: int, messages: int) -> None:
        """See :meth:`broker_adapter.transport.Transport.credit`."""
        broker = self._usable()
        consumer = self._consumers.get(link)
        if consumer is not None:
            broker.submit(c.Credit(consumer, messages))

    def drain(self, link: int, timeout: float | None) -> bool:
        """See :meth:`broker_adapter.transport.Transport.drain`."""
        self._usable_to_wait()
        consumer = self._consumers.get(link)
        if consumer is None or link in self._detached:
            raise IllegalStateException(f"link {link} is closed")
        self._call(c.Drain(consumer), timeout)
        return True

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """See :meth:`broker_adapter.transport.Transport.settle`."""
        self._usable()
        self._outbox.append(settlements if type(settlements) is list else list(settlements))
        self._flush()

    def confirm(
        self,
        timeout: float | None,
        session: int | None = None,
        link: int | None = None,
        *,
        outlasts_loss: bool = True,
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.confirm`."""
        self._usable_to_wait()
        self._call(c.ResolveCommit(c.CommitId("", 0)), timeout)  # what was handed over before it is done

    # Sending.

    def send(self, link: int, envelope: Envelope, on_settled: OnSettled | None, timeout: float | None) -> None:
        """See :meth:`broker_adapter.transport.Transport.send`."""
        broker = self._usable()
        destination, message = self._message(link, envelope)
        limit = self._url.client.send_timeout_seconds if timeout is None else timeout
        if on_settled is None:
            try:
                errors = self._call(c.Enqueue(self._client, destination, (message,)), limit)
            except OperationTimedOutException as error:
                why = error.reason.partition(": ")[2]  # the engine waits for room on the disk
                text = unanswered_send(limit, timeout)
                raise OperationTimedOutException(f"{text}: {why}" if why else text) from error
            if errors is not None:
                raise errors[0]
            return
        self._window.enter(limit, waits=get_ident() not in broker.callback_threads)
        self._outbox.append((destination, message, on_settled, link))
        self._flush()

    def commit(
        self,
        session: int,
        commit_number: int,
        sends: Sequence[tuple[int, Envelope]],
        settlements: Sequence[Settlement],
        timeout: float | None,
        changes: Sequence[RegionChange] = (),
    ) -> None:
        """See :meth:`broker_adapter.transport.Transport.commit`."""
        self._usable_to_wait()
        refusal: str | None = None
        parts: list[e.ChangeKeys] = []
        if any(settlement.tag.epoch != self._epoch for settlement in settlements):
            refusal = "deliveries of an earlier connection are stale"
        else:
            closed = next((link for link, _ in sends if link not in self._senders), None)
            refusal = None if closed is None else f"link {closed} is closed"
            try:
                for region, of_region in groupby(changes, itemgetter(0)):
                    rows = [key_change(each.key, each.change, each.payload) for each in of_region]
                    firsts = range(0, len(rows), CHANGED_AT_ONCE)
                    parts += [e.ChangeKeys(region, rows[first : first + CHANGED_AT_ONCE]) for first in firsts]
            except JMSException as error:
                refusal = error.reason
        if refusal is not None:
            self.settle([Settlement(tag, Outcome.MODIFIED) for tag, _ in settlements])
            raise TransactionRolledBackException(f"nothing was committed: {refusal}")
        settled = [(self._consumers.get(link, -1), number, outcome) for (_, link, number), outcome in settlements]
        command = c.Commit(
            self._client,
            c.CommitId(self._commit_session(session), commit_number),
            [self._message(link, envelope) for link, envelope in sends],
            settled,
            changes=parts,
        )
        self._call(command, timeout)

    def _commit_session(self, session: int) -> str:
        """Return what the ids of a session's commits name it."""
        return f"{self._commit_prefix}/{session}"

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """See :meth:`broker_adapter.transport.Transport.request`."""
        broker = self._usable_to_wait()
        if self._outbox:
            broker.submit(self._deferred)
        ask = partial(broker.request, operation, arguments, self._request_limit(timeout), client=self._client)
        return uninterrupted(ask)

    def _message(self, link: int, envelope: Envelope) -> tuple[Destination, c.NewMessage]:
        try:
            destination = self._senders[link]
        except KeyError:
            raise IllegalStateException(f"link {link} is closed") from None
        payload = pack(envelope)
        limit = self._broker.settings.max_message_bytes
        if len(payload) > limit:
            raise MessageFormatException(
                f"message of {len(payload)} bytes is larger than the limit of {limit} bytes (option max_message_bytes)"
            )
        return destination or resolved(envelope.destination), c.from_envelope(payload, envelope)

    # The outbox.

    def _call(self, command: c.Command, timeout: float | None) -> Any:
        """Carry out a command after all that this thread has handed over before.

        That may still lie in the outbox although another thread has said that it is to be taken: it may not have come
        to tell the engine yet.
        """
        return self._broker.call(command, self._request_limit(timeout), self._deferred if self._outbox else None)

    def _flush(self) -> None:
        if (
            not self._is_collecting or self._submitting
        ):  # else a signal handler may wait for a submission that it stopped
            self._is_collecting = self._submitting = True
            try:
                self._broker.submit(self._deferred)
            except BaseException:  # a signal handler raised here: no submission may be under way
                self._is_collecting = False
                raise
            finally:
                self._submitting = False

    def _take_outbox(self) -> list[c.Command]:
        """Take what has gathered, as few commands as its order allows.  In the engine's thread."""
        self._is_collecting = False  # before the outbox is emptied: what comes from here on asks for its own turn
        commands: list[c.Command] = []
        outbox, consumers, epoch = self._outbox, self._consumers, self._epoch
        target: Destination | None = None
        messages: list[c.NewMessage] = []
        batch = _Batch()
        settled: tuple[int, Outcome] | None = None
        numbers: list[int] = []
        while outbox:
            item = outbox.popleft()
            if type(item) is tuple:
                destination, message, on_settled, link = item
                if destination != target:
                    target, messages, batch = destination, [], _Batch()
                    self._taken.append(batch)
                    commands.append(c.Enqueue(self._client, destination, messages, partial(self._confirm, batch)))
                messages.append(message)
                batch.callbacks.append(on_settled)
                batch.links.append(link)
                settled = None
                continue
            target = None
            for (of_epoch, link, number), outcome in item:
                if of_epoch != epoch or link not in consumers:
                    continue
                if settled != (link, outcome):
                    settled, numbers = (link, outcome), []
                    commands.append(c.Settle(consumers[link], numbers, outcome))
                numbers.append(number)
        return commands

    def _confirm(self, batch: _Batch, result: Any) -> None:
        """The engine has answered a batch: one at a time, perhaps while a cycle takes more from the outbox."""
        if batch.is_answered:
            return  # a failure of the engine is reported to all callers once more
        self._window.leave(len(batch.callbacks))
        batch.errors = [result] * len(batch.callbacks) if isinstance(result, JMSException) else result
        batch.is_answered = True
        batches, taken = self._batches, self._taken
        while taken:
            batches.append(taken.popleft())
        if batches[0] is batch:
            batches.popleft()
            batch.tell()
            if not batches or not any(each.is_answered for each in batches):
                return
        # Something is held back: what was sent after it on the same link is not told before it.
        waiting: set[int] = set()
        for _ in range(len(batches)):
            each = batches.popleft()
            if each.is_answered and waiting.isdisjoint(each.links):
                each.tell()
            else:
                if each.is_answered:
                    each = each.without_those_that_may_be_told(waiting)
                waiting.update(each.links)
                batches.append(each)

    def _usable(self) -> Broker:
        if self._error is not None:
            raise copied(self._error)
        return self._broker

    def _usable_to_wait(self) -> Broker:
        broker = self._usable()
        broker.check_may_wait()
        return broker

    def _request_limit(self, timeout: float | None) -> float:
        return self._url.client.request_timeout_seconds if timeout is None else timeout


class _Batch:
    """Sends of one command of the engine, in order, and what their senders are to be told."""

    __slots__ = ("callbacks", "errors", "is_answered", "links")

    def __init__(self) -> None:
        self.callbacks: list[OnSettled] = []
        self.links: list[int] = []
        self.errors: Sequence[JMSException | None] | None = None
        self.is_answered = False

    def tell(self) -> None:
        """Call back."""
        if self.errors is None:
            for callback in self.callbacks:
                callback(None)
        else:
            for callback, error in zip(self.callbacks, self.errors, strict=True):
                callback(error)

    def without_those_that_may_be_told(self, waiting: set[int]) -> _Batch:
        """Call back the sends of links that do not wait; returns the others."""
        told, rest = _Batch(), _Batch()
        errors: tuple[list[JMSException | None], list[JMSException | None]] = ([], [])
        for index, link in enumerate(self.links):
            is_waiting = link in waiting
            part = rest if is_waiting else told
            part.links.append(link)
            part.callbacks.append(self.callbacks[index])
            errors[is_waiting].append(None if self.errors is None else self.errors[index])
        told.errors, rest.errors = errors
        rest.is_answered = True
        told.tell()
        return rest


def _nothing_heard(_event: TransportEvent) -> None:
    pass


def _nothing() -> None:
    pass
