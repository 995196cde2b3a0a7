"""The commands of ``holdfast`` for messages: send, receive, browse."""

from __future__ import annotations

import argparse
import io
import json
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from uuid import uuid4

from ack_modes import Outcome, Settlement
from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, checked_name
from broker_adapter.envelope import (
    DEAD_LETTER_EXCEPTION,
    DEAD_LETTER_QUEUE,
    DEAD_LETTER_REASON,
    BodyKind,
    Envelope,
)
from broker_adapter.errors import (
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    OperationTimedOutException,
)
from broker_adapter.server.cli.json_lines import as_json, from_json
from broker_adapter.server.cli.terminal import output_errors, printable, printable_lines
from broker_adapter.server.cli.tools import UNDECODED, connected, destination_of, say, warn
from broker_adapter.transport import (
    Delivery,
    Failed,
    LinkLost,
    OnSettled,
    ReceiverSpec,
    SenderSpec,
    Subscription,
    Transport,
    TransportEvent,
)
from broker_adapter.wording import counted

#: Messages that a tool asks for ahead.
_PREFETCH: Final = 100


def send(options: argparse.Namespace) -> int:
    """Send texts, or messages as JSON, and wait for their answers."""
    texts = iter(options.body) if options.body else _lines()
    properties: dict[str, Any] = dict(options.property)
    destination = destination_of(options)
    answers = _Answers()
    with connected(options, makes_store=True) as (transport, settings):
        link = transport.attach(SenderSpec(1, destination), None, None)
        with answers.told_on_failure(settings.send_timeout_seconds):
            for text in (text for text in texts for _ in range(options.count)):
                now_ms = epoch_ms()
                if options.json_line:
                    envelope = from_json(text, destination)
                else:
                    envelope = Envelope(destination, BodyKind.TEXT, text)
                expires_at_ms = envelope.expires_at_ms if options.ttl is None else now_ms + round(options.ttl * 1000)
                envelope = envelope._replace(
                    properties={**(envelope.properties or {}), **properties} or None,
                    message_id=f"ID:{uuid4()}",
                    sent_at_ms=now_ms,
                    expires_at_ms=expires_at_ms,
                    deliver_at_ms=None if options.delay is None else now_ms + round(options.delay * 1000),
                    priority=envelope.priority if options.priority is None else options.priority,
                    persistent=envelope.persistent and not options.non_persistent,
                )
                on_settled = answers.expected()
                try:
                    transport.send(link, envelope, on_settled, None)
                except JMSException as error:
                    on_settled(error)
                    raise
            sent = answers.wait(settings.send_timeout_seconds)
    say(json.dumps({"sent": sent}) if options.json else f"sent {sent} to {destination.name}")
    return 0


def _lines() -> Iterator[str]:
    """The lines of the standard input."""
    stream = sys.stdin
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")  # so that the line can be told
    try:
        for number, line in enumerate(stream, 1):
            if UNDECODED.search(line):
                raise ValueError(
                    f"line {number} of the standard input is not {stream.encoding.upper()}, the encoding of the locale;"
                    " convert the input (iconv), or say which encoding it has ($PYTHONIOENCODING)"
                )
            yield line.rstrip("\n")
    except OSError as error:
        raise OSError(
            f"the standard input cannot be read: {error.strerror}; give the texts as arguments, or as lines of input"
        ) from error


class _Answers:
    """Sends that wait for their answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent = 0
        self._answered = 0
        self._confirmed = 0
        self._unconfirmed: set[int] = set()  #: numbers of messages, from 1 on
        self._error: JMSException | None = None

    def expected(self) -> OnSettled:
        """One more is on its way; returns what its answer is told to."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._sent += 1
            self._unconfirmed.add(self._sent)
            return partial(self._settled, self._sent)

    def _settled(self, number: int, error: JMSException | None) -> None:
        with self._changed:
            self._answered += 1
            if error is None:
                self._confirmed += 1
                self._unconfirmed.discard(number)
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self, seconds: float) -> int:
        """Wait for all answers; returns how many were sent, or raises the first refusal."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._answered >= self._sent, seconds):
                raise OperationTimedOutException(
                    f"{self._sent - self._answered} of {counted(self._sent, 'message')} had no answer within"
                    f" {seconds:g} s"
                )
            if self._error is not None:
                raise self._error
            return self._sent

    @contextmanager
    def told_on_failure(self, seconds: float) -> Iterator[None]:
        """Yield where sending fails, say which messages were confirmed, so that these are not sent again."""
        try:
            yield
        except BaseException as error:
            with suppress(JMSException):
                self.wait(seconds if isinstance(error, Exception) else 0)
            with self._changed:
                if self._sent:
                    warn(self._text())
            raise

    def _text(self) -> str:
        first = min(self._unconfirmed, default=self._sent + 1)
        behind = self._confirmed - (first - 1)
        if self._confirmed == 0:
            told = f"none of {counted(self._sent, 'message')} was confirmed"
        else:
            verb = "was" if self._confirmed == 1 else "were"
            ahead = "" if first == 1 else "the first" if first == 2 else f"the first {first - 1}"
            later = f"{behind} behind message {first}" if behind else ""
            which = " and ".join(part for part in (ahead, later) if part)
            told = f"{self._confirmed} of {counted(self._sent, 'message')} {verb} confirmed: {which}"
        return f"{told}; one that was not may have arrived all the same, unless it was refused"


#: What came and was not printed yet, or why nothing more comes.
_Waiting = queue.SimpleQueue[Delivery | JMSException]


def receive(options: argparse.Namespace) -> int:
    """Print messages as they come, and acknowledge each."""
    subscription = None
    if options.subscription is not None:
        if not options.topic:
            raise ValueError("--subscription is of a topic: give --topic as well")
        name = checked_name(options.subscription, "subscription")
        subscription = Subscription(name, durable=True, shared=True)
    elif options.topic and options.create:
        raise ValueError("--create makes a queue, or with --subscription a subscription; a topic needs none")
    waiting: _Waiting = queue.SimpleQueue()

    def listener(event: TransportEvent) -> None:
        if isinstance(event, Failed | LinkLost):
            waiting.put(event.error)

    def sink(deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            waiting.put(delivery)

    wanted = options.count
    shown = _Shown(options)
    with connected(options, listener) as (transport, _):
        # A topic is there while it has subscriptions, such as that of this command.
        is_made = options.create or (options.topic and subscription is None)
        missing = None if is_made else _missing(transport, destination_of(options), subscription)
        if missing is not None:
            warn(f"{missing}; --create makes it")
            return 1
        spec = ReceiverSpec(1, destination_of(options), selector=options.selector, subscription=subscription)
        link = transport.attach(spec, sink, None)
        asked = _PREFETCH if wanted is None else min(wanted, _PREFETCH)
        transport.credit(link, asked)
        with _rest_put_back(transport, link, waiting):
            while wanted is None or shown.count < wanted:
                try:
                    delivery = waiting.get(timeout=options.timeout)
                except queue.Empty:
                    break
                if isinstance(delivery, JMSException):
                    raise delivery
                transport.settle([Settlement(delivery.tag, _received(transport, shown, delivery))])
                if wanted is None or asked < wanted + shown.unreadable:
                    asked += 1
                    transport.credit(link, 1)
    if not options.json:
        print(f"received {shown.text}" if shown.unreadable else f"received {shown.count}", file=sys.stderr)
    return 0 if not shown.unreadable and (wanted is None or shown.count == wanted) else 1


def _received(transport: Transport, shown: _Shown, delivery: Delivery) -> Outcome:
    """Print a message; returns what becomes of it.  Where the output fails, its delivery has failed."""
    try:
        return Outcome.ACCEPTED if shown.add(delivery, "it was rejected: a dead letter") else Outcome.REJECTED
    except BaseException:
        transport.settle([Settlement(delivery.tag, Outcome.MODIFIED)])
        raise


@contextmanager
def _rest_put_back(transport: Transport, link: int, waiting: _Waiting) -> Iterator[None]:
    """Yield what was asked for ahead and not printed goes back as it was, whatever happens."""
    try:
        yield
    except JMSException:
        raise  # the connection or the link is lost, and with it what was asked for ahead
    except BaseException:
        with suppress(JMSException):
            _put_back(transport, link, waiting)
        raise
    _put_back(transport, link, waiting)


def _put_back(transport: Transport, link: int, waiting: _Waiting) -> None:
    transport.detach(link, None)
    left = [waiting.get() for _ in range(waiting.qsize())]
    transport.settle([Settlement(each.tag, Outcome.RELEASED) for each in left if isinstance(each, Delivery)])


def browse(options: argparse.Namespace) -> int:
    """Print the messages of a queue, and take nothing."""
    found: list[Delivery] = []
    shown = _Shown(options, explains=True)
    with connected(options) as (transport, _):
        spec = ReceiverSpec(1, Destination(options.destination), selector=options.selector, browse=True)
        link = transport.attach(spec, found.extend, None)
        while not shown.is_enough:
            transport.credit(link, _PREFETCH)
            transport.drain(link, None)
            for delivery in found:
                if shown.is_enough:
                    break
                shown.add(delivery, "it was skipped")
            if len(found) < _PREFETCH:
                break
            found.clear()
        missing = None if shown.count or shown.unreadable else _missing(transport, Destination(options.destination))
    if not options.json:
        print(shown.text, file=sys.stderr)
    if missing is not None:
        warn(missing)
    return 1 if shown.unreadable or missing is not None else 0


def _missing(transport: Transport, destination: Destination, subscription: Subscription | None = None) -> str | None:
    """Return what is said of a queue or a subscription that does not exist.

    None where it does, and where the broker does not tell.
    """
    named = {"destination": destination.name, "kind": "topic" if destination.is_topic else "queue"}
    try:
        transport.request("bounds", {**named, "subscription": subscription and subscription.name}, None)
    except InvalidDestinationException as error:
        return error.reason
    except JMSException:
        pass  # the user may not ask for that, or the broker is of another make
    return None


class _Shown:
    """The messages that were printed, and those that could not be read."""

    def __init__(self, options: argparse.Namespace, *, explains: bool = False) -> None:
        self._options = options
        self._explains = explains  #: whether a line under a dead letter says why it is one
        self.count = 0
        self.unreadable = 0

    @property
    def is_enough(self) -> bool:
        """Whether there are as many as were asked for."""
        return self._options.count is not None and self.count >= self._options.count

    @property
    def text(self) -> str:
        """How many there were, in words."""
        more = f", and {self.unreadable} that cannot be read" if self.unreadable else ""
        return f"{counted(self.count, 'message')}{more}"

    def add(self, delivery: Delivery, otherwise: str) -> bool:
        """Print a message; returns False where it cannot be read, which is told with what happens ``otherwise``."""
        try:
            text = as_json(delivery) if self._options.json else _as_text(delivery.envelope)
            if self._explains and not self._options.json:
                text += _why_dead(delivery.envelope)
        except MessageFormatException as error:
            self.unreadable += 1
            place = "a message" if delivery.position is None else f"the message at position {delivery.position}"
            warn(f"{place} cannot be read, and {otherwise}: {error}")
            return False
        _write(text)
        self.count += 1
        return True


def _write(text: str) -> None:
    with output_errors():
        print(text, flush=True)


def _as_text(envelope: Envelope) -> str:
    is_text = envelope.body_kind is BodyKind.TEXT
    return printable_lines(str(envelope.body)) if is_text else printable(repr(envelope.body))


def _why_dead(envelope: Envelope) -> str:
    """Return a line that says why a message is a dead letter, or has expired; empty where it is neither."""
    properties = envelope.properties or {}
    if DEAD_LETTER_REASON not in properties:
        return ""
    why = [str(properties[each]) for each in (DEAD_LETTER_REASON, DEAD_LETTER_EXCEPTION) if each in properties]
    source = f"from {properties[DEAD_LETTER_QUEUE]!r}: " if DEAD_LETTER_QUEUE in properties else ""  # or of a gateway
    return "\n" + printable(f"    {source}{'; '.join(why)}")
