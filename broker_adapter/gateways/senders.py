"""The senders of an engine: a thread for each gateway that is running, and one that starts them.

The rules are in :mod:`broker_adapter.gateways.sender`.  A sender is a client of the other site: its connection
is as any other one's, but it is not restored: the next attempt makes a new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
)
from broker_adapter.gateways.sender import Sender, batch_of, end_of, follows, has_more
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import Credentials, Transport

#: Returns a transport to the server that a URL names.
Connect = Callable[[str], Transport]
_log = logging.getLogger(f"holdfast.{__name__}")

#: Shortest time between two looks at what waits, in seconds: each commit may bring something.
_LOOK_SECONDS: Final = 0.01
#: Pause where even looking failed, in seconds.
_PAUSE_SECONDS: Final = 0.5
#: Longest wait for the engine, which may have to wait for the disk, in seconds.
_ENGINE_SECONDS: Final = 60.0
#: Longest wait for the end of a connection, in seconds.
_CLOSE_SECONDS: Final = 1.0
#: Longest wait for the threads as the server stops, in seconds.
_STOP_SECONDS: Final = 5.0


class Senders:
    """The senders of an engine.

    Args:
        broker: the engine; it is not closed with the senders.
        connect: returns a transport to the server that a URL names, which is not open yet, and not restored.
    """

    def __init__(self, broker: Broker, connect: Connect) -> None:
        self._broker = broker
        self._connect = connect
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._senders: dict[str, _SenderThread] = {}
        self._log = LimitedLog(_log)
        self._unregister: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._watch, name="holdfast-gateways", daemon=True)

    def __repr__(self) -> str:
        return f"<Senders {sorted(self._senders)}>"

    def start(self) -> None:
        """Start to send, and to follow which gateways are running."""
        self._unregister = self._broker.on_gateways(lambda _: self._woken.set())
        self._woken.set()
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more.  Legal twice.  Waits for a few seconds at most."""
        self._unregister()
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)
        for sender in self._senders.values():
            sender.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        for sender in self._senders.values():
            if not sender.is_connecting:
                sender.thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        """Start a thread for each gateway that begins to run, and wake those that there are."""
        while True:
            self._woken.wait()
            self._woken.clear()
            if self._stopping.is_set():
                return
            seconds = _LOOK_SECONDS
            try:
                self._look()
            except (JMSException, RuntimeError) as error:  # there may be no more threads
                if self._broker.failed is not None:
                    return
                self._log.write("look", "! the gateways could not be looked at, and are once more: %s", error)
                self._woken.set()
                seconds = _PAUSE_SECONDS
            self._stopping.wait(seconds)

    def _look(self) -> None:
        senders = self._senders
        with self._broker.reading() as reader:
            running = [name for name in reader.gateway_names() if reader.gateway(name).state == "running"]
            for name in [name for name, sender in senders.items() if sender.has_ended]:
                del senders[name]
            new = [name for name in running if name not in senders]
        for sender in senders.values():
            sender.wake.set()
        for name in new:
            sender = _SenderThread(self._broker, name, self._connect)
            sender.thread.start()
            senders[name] = sender


class _SenderThread:
    """The thread of one sender.

    Attributes:
        wake: set when there may be something to do.
        has_ended: whether it does nothing more; set while all other threads are kept out of the engine.
        is_connecting: whether it waits for the other site to let it in.  Once it is stopped, it does nothing more with
            the engine then.
    """

    def __init__(self, broker: Broker, name: str, connect: Connect) -> None:
        self._broker = broker
        self._name = name
        self._connect = connect
        self._rules = Sender(broker.settings.gateway_retry_seconds)
        self._transport: Transport | None = None
        self._url = ""
        self._remote_site = 0
        self._beside = ThreadPoolExecutor(1, f"holdfast-gateway-reader {name}")  # starts with the first backlog
        self._is_stopping = False
        self.wake = threading.Event()
        self.has_ended = self.is_connecting = False
        self.thread = threading.Thread(target=self._run, name=f"holdfast-gateway {name}", daemon=True)

    def stop(self) -> None:
        """End the thread; what is under way fails."""
        self._is_stopping = True
        self.wake.set()
        transport = self._transport
        if transport is not None:
            transport.close(0)

    def _run(self) -> None:
        try:
            while not (self._is_stopping or self.has_ended) and self._broker.failed is None:
                try:
                    if not self._turn():
                        return
                except JMSException as error:
                    self._failed(error)
                except Exception as error:
                    _log.exception("! gateway %r: unexpected error", self._name)
                    self._failed(JMSException(f"unexpected error {error!r}"))
        finally:
            self._disconnect()
            self._beside.shutdown()

    def _turn(self) -> bool:
        """Send a batch, or wait until one may be due; returns False where there is nothing to do for this thread."""
        found = self._look(sends=False)
        if found is None:
            return False
        record, messages, size = found
        now = time.monotonic()
        seconds = self._rules.seconds_until_due(record, messages, size, now)
        alert = self._rules.alert(record, now)
        if alert is not None:
            _log.warning("! gateway %r: %s", self._name, alert)
        if seconds is None or seconds > 0:
            self.wake.wait(seconds)
            self.wake.clear()
            return True
        remote = self._connected(record)
        if self._is_stopping or self._look(sends=True) is None:
            return False
        self._send(remote, record)
        return True

    def _look(self, *, sends: bool) -> tuple[GatewayRecord, int, int] | None:
        """Look at what waits; None: the gateway is not running any more, and this thread ends."""
        with self._broker.reading() as reader:
            try:
                found = reader.note_sender(self._name, sends=sends, trouble=self._rules.trouble)
            except InvalidDestinationException:
                found = None
            if found is None or found[0].state != "running":
                self.has_ended = True
                return None
        return found

    def _send(self, remote: Transport, record: GatewayRecord) -> None:
        """Send a batch, and the next ones while enough waits; each is read while the one before it is under way."""
        found = self._read(record, 0)
        if not found["entries"]:
            if found["through"]:
                self._end(found, None)
            else:
                self.wake.wait(_LOOK_SECONDS)  # what waited is gone
            return
        ending: Future[None] | None = None
        while True:
            ahead = self._beside.submit(self._read, record, found["through"]) if has_more(found) else None
            answer = self._hand_over(remote, found)
            if ending is not None:
                ending.result()
            if answer is None:
                return
            following = None if ahead is None else ahead.result()
            if following is None or not follows(record, found, answer, following) or not self._still_sends(record):
                self._end(found, answer)
                return
            ending = self._beside.submit(self._end, found, answer)
            found = {**following, "applied": answer["applied"]}

    def _still_sends(self, record: GatewayRecord) -> bool:
        """Return whether the gateway is running, and is what it was."""
        looked = self._look(sends=True)
        return looked is not None and looked[0].options == record.options

    def _read(self, record: GatewayRecord, after: int) -> dict[str, Any]:
        limits = {"max_messages": self._rules.max_messages, "max_bytes": record.batch_bytes}
        found: dict[str, Any] = self._ask("read_gateway", after=after, remote_site=self._remote_site, **limits)
        return found

    def _hand_over(self, remote: Transport, found: dict[str, Any]) -> dict[str, Any] | None:
        """Hand a batch over; returns the answer, or None where the next one is to be smaller."""
        try:
            answer: dict[str, Any] = remote.request("apply_batch", batch_of(found, self._broker.settings.site), None)
        except MessageFormatException as error:
            return self._rules.refused_whole(found, error)
        told = self._rules.applied(time.monotonic())
        if told is not None:
            _log.info("= gateway %r: %s", self._name, told)
        return answer

    def _end(self, found: dict[str, Any], answer: dict[str, Any] | None) -> None:
        self._ask("end_gateway_batch", **end_of(found, answer))

    def _ask(self, operation: str, **arguments: Any) -> Any:
        return self._broker.request(operation, {"name": self._name, **arguments}, _ENGINE_SECONDS)

    def _connected(self, record: GatewayRecord) -> Transport:
        """Return the connection to the other site; it is made where there is none, or one to somewhere else."""
        if self._transport is not None and self._url == record.url:
            return self._transport
        self._disconnect()
        if not self._broker.settings.site:
            raise IllegalStateException("this server has no site of its own (holdfast serve --site N)")
        transport = self._connect(record.url)
        self._transport, self._url = transport, record.url
        self.is_connecting = True
        try:
            transport.open(Credentials(), lambda _event: None, None)
            self._remote_site = transport.request("site", {}, None)
        finally:
            self.is_connecting = False
        return transport

    def _failed(self, error: JMSException) -> None:
        self._disconnect()
        if self._is_stopping:
            return
        told = self._rules.failed(error, time.monotonic())
        if told is not None:
            _log.warning("! gateway %r: %s", self._name, told)
        self.wake.clear()
        self.wake.wait(_LOOK_SECONDS)  # even looking may have failed

    def _disconnect(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(_CLOSE_SECONDS)
