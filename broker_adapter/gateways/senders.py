"""The senders of an engine: a thread for each gateway that is running, and one that starts them.

The rules are in :mod:`broker_adapter.gateways.sender`.  A sender is a client of the other site: its connection
is as any other one's, but it is not restored: the next attempt makes a new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.gateway_records import GatewayRecord
from broker_adapter.errors import (
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
    ResourceAllocationException,
)
from broker_adapter.gateways.bridge import Bridge
from broker_adapter.gateways.fetcher import Fetcher
from broker_adapter.gateways.sender import IN_FLIGHT, Sender
from broker_adapter.limited_log import LimitedLog
from broker_adapter.transport import Credentials
from broker_adapter.urls.url import parse_url
from broker_adapter.wording import in_seconds

#: Returns what connects to the server that a URL names.
Connect = Callable[[str], Bridge]
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
        connect: returns what connects to the server that a URL names; it is not open yet, and not restored.
    """

    def __init__(self, broker: Broker, connect: Connect) -> None:
        self._broker = broker
        self._connect = connect
        self._concerned: SimpleQueue[Sequence[str]] = SimpleQueue()  # names of gateways that are to be looked at
        self._stopping = threading.Event()
        self._senders: dict[str, _SenderThread] = {}
        self._log = LimitedLog(_log)
        self._unregister: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._watch, name="holdfast-gateways", daemon=True)

    def __repr__(self) -> str:
        return f"<Senders {sorted(self._senders)}>"

    def start(self) -> None:
        """Start to send, and to follow which gateways are running."""
        self._unregister = self._broker.on_gateways(self._concerned.put)
        with self._broker.reading(is_shown=False) as reader:
            self._concerned.put(reader.gateway_names())
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more.  Legal twice.  Waits for a few seconds at most."""
        self._unregister()
        self._stopping.set()
        self._concerned.put(())
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)
        for sender in self._senders.values():
            sender.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        for sender in self._senders.values():
            if not sender.is_connecting:
                sender.thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        """Start a thread for each gateway that begins to run, and wake those for which there may be something to do."""
        while True:
            names = {*self._concerned.get()}
            while not self._concerned.empty():
                names.update(self._concerned.get())
            if self._stopping.is_set():
                return
            seconds = _LOOK_SECONDS
            try:
                self._look(names)
            except (JMSException, RuntimeError) as error:  # there may be no more threads
                if self._broker.failed is not None:
                    return
                self._log.write("look", "! the gateways could not be looked at, and are once more: %s", error)
                self._concerned.put([*names])
                seconds = _PAUSE_SECONDS
            self._stopping.wait(seconds)

    def _look(self, names: set[str]) -> None:
        senders = self._senders
        with self._broker.reading(is_shown=False) as reader:
            running = [
                name for name in names.intersection(reader.gateway_names()) if reader.gateway(name).state == "running"
            ]
            for name in [name for name, sender in senders.items() if sender.has_ended]:
                del senders[name]
            new = [name for name in running if name not in senders]
        for name in names.intersection(senders):
            senders[name].wake.set()
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
        self._transport: Bridge | None = None
        self._fetcher: Fetcher | None = None
        self._url = ""
        self._remote_site = 0
        self._answer_seconds = 0.0  # longest wait for an answer
        self._waits_since = 0.0  # for the answer to the first batch under way
        self._answers: deque[Future[dict[str, Any]]] = deque()  # one for each batch under way
        self._is_stopping = False
        self.wake = threading.Event()
        self.has_ended = self.is_connecting = False
        self.thread = threading.Thread(target=self._run, name=f"holdfast-gateway {name}", daemon=True)

    def stop(self) -> None:
        """End the thread; what is under way fails."""
        self._is_stopping = True
        self.wake.set()
        transport = self._transport
        if transport is not None and self._fetcher is None:  # else the thread gives back first what came
            transport.close(0)

    def _run(self) -> None:
        try:
            while not (self._is_stopping or self.has_ended) and self._broker.failed is None:
                try:
                    self._turn()
                except JMSException as error:
                    self._failed(error)
                except Exception as error:
                    _log.exception("! gateway %r: unexpected error", self._name)
                    self._failed(JMSException(f"unexpected error {error!r}"))
        finally:
            self._disconnect()

    def _turn(self) -> None:
        """Send a batch that is due, else end one that was answered, else wait for one of both."""
        found = self._look(sends=False)
        if found is None:
            return
        record, messages, size = found
        now, seconds = time.monotonic(), None
        if record.fetches:
            self._fetch(record, now)
            return
        if self._answers and record.url != self._url:  # another site now: what is under way is sent there
            self._drop()
        if record.state == "running":
            seconds = self._rules.seconds_until_due(record, messages, size, now)
            alert = self._rules.alert(record, now)
            if alert is not None:
                _log.warning("! gateway %r: %s", self._name, alert)
        if seconds == 0.0:
            self._send(record, now)
        elif self._answers:
            self._end(now)
        else:
            self._wait(seconds)

    def _fetch(self, record: GatewayRecord, now: float) -> None:
        """Put what has come from the other end into the queues here; wait where nothing has."""
        seconds = self._rules.seconds_until_due(record, record.batch_messages, 0, now)
        if seconds:
            self._wait(seconds)
            return
        fetcher = self._fetcher
        if fetcher is None or fetcher.options != record.options:
            fetcher = self._fetching(record)
        if self._is_stopping or self._look(sends=True) is None:
            return
        try:
            count = fetcher.put()
        except JMSException as error:
            if fetcher.is_lost:
                raise
            self._note_failure(error)
            return
        if count:
            self._works(now)
        else:
            self._wait(None)

    def _fetching(self, record: GatewayRecord) -> Fetcher:
        """Return the consumers at the other end, which are made."""
        transport = self._new_connection(record)
        self._fetcher = fetcher = Fetcher(self._broker, self._name, record, transport.transport, self.wake.set)
        self.is_connecting = True
        try:
            fetcher.open()
        finally:
            self.is_connecting = False
        self._works(time.monotonic())
        return fetcher

    def _works(self, now: float) -> None:
        """Note that the other end has answered."""
        told = self._rules.works(now)
        if told is not None:
            _log.info("= gateway %r: %s", self._name, told)

    def _look(self, *, sends: bool) -> tuple[GatewayRecord, int, int] | None:
        """Look at what waits; None: nothing is under way, and nothing may be sent any more.

        Args:
            sends: whether a batch is to be sent.
        """
        is_under_way = bool(self._answers)
        with self._broker.reading() as reader:
            try:
                found = reader.note_sender(
                    self._name, sends=sends, is_under_way=is_under_way, trouble=self._rules.trouble
                )
            except InvalidDestinationException:
                found = None
            if found is None or (found[0].state != "running" and not is_under_way):
                self.has_ended = True
                return None
        return found

    def _send(self, record: GatewayRecord, now: float) -> None:
        """Send what is due."""
        remote = self._connected(record)
        if self._is_stopping or (looked := self._look(sends=True)) is None or looked[0].state != "running":
            return
        found = self._ask("read_gateway", remote_site=self._remote_site, **self._rules.limits(record))
        if (looked := self._look(sends=True)) is None or looked[0].options != record.options:
            return  # it may be for another site
        if not found["through"]:
            if self._answers:
                self._end(now)
            else:
                self._wait(_LOOK_SECONDS)  # what waited is gone
            return
        answer: Future[dict[str, Any]] = Future()
        batch = self._rules.batch_of(found, self._broker.settings.site, now)
        if not self._answers:
            self._waits_since = now
        self._answers.append(answer)
        if batch["positions"]:
            remote.begin_request("apply_batch", batch, partial(self._take_answer, answer))
        else:
            answer.set_result({})

    def _take_answer(self, answer: Future[dict[str, Any]], result: Any, error: JMSException | None) -> bool:
        """The other site has answered; called in the thread of the connection."""
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
        self.wake.set()
        return True

    def _end(self, now: float) -> None:
        """End the first batch under way, if it was answered; else wait."""
        answer = self._answers[0]
        if not answer.done():
            left = self._waits_since + self._answer_seconds - now
            if left <= 0:
                seconds = in_seconds(self._answer_seconds)
                raise OperationTimedOutException(f"the other site has not answered within {seconds}")
            self._wait(left)
            return
        try:
            ended = self._rules.answered(answer.result())
        except (MessageFormatException, ResourceAllocationException) as error:
            ended = self._rules.not_taken(error)
        self._answers.popleft()
        self._waits_since = now
        if ended is None:
            return
        self._works(now)
        self._ask("end_gateway_batch", url=self._url, **ended)

    def _wait(self, seconds: float | None) -> None:
        self.wake.wait(seconds)
        self.wake.clear()

    def _ask(self, operation: str, **arguments: Any) -> Any:
        return self._broker.request(operation, {"name": self._name, **arguments}, _ENGINE_SECONDS)

    def _connected(self, record: GatewayRecord) -> Bridge:
        """Return the connection to the other site; it is made where there is none, or one to somewhere else."""
        if self._transport is not None and self._url == record.url:
            return self._transport
        transport = self._new_connection(record)
        self._answer_seconds = parse_url(record.url).client.request_timeout_seconds
        self.is_connecting = True
        try:
            transport.open(Credentials(), lambda _event: None, None)
            self._remote_site = transport.request("site", {}, None)
            self._rules.most_under_way = IN_FLIGHT if transport.is_holdfast else 1
        finally:
            self.is_connecting = False
        return transport

    def _new_connection(self, record: GatewayRecord) -> Bridge:
        """Return a connection to the other site, which is not open yet, in place of the one there is."""
        self._disconnect()
        if not self._broker.settings.site:
            raise IllegalStateException("this server has no site of its own (holdfast serve --site N)")
        transport = self._connect(record.url)
        self._transport, self._url = transport, record.url
        return transport

    def _drop(self) -> None:
        """Await no answer any more."""
        self._disconnect()
        self._answers.clear()
        self._rules.forget()

    def _failed(self, error: JMSException) -> None:
        self._drop()
        self._note_failure(error)

    def _note_failure(self, error: JMSException) -> None:
        told = self._rules.failed(error, time.monotonic())
        if self._is_stopping:
            return
        if told is not None:
            _log.warning("! gateway %r: %s", self._name, told)
        self.wake.clear()
        self.wake.wait(_LOOK_SECONDS)  # even looking may have failed

    def _disconnect(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close(_CLOSE_SECONDS)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(_CLOSE_SECONDS)
