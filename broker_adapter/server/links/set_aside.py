"""What becomes of a message that cannot be converted for its consumer: a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ack_modes import Outcome
from broker_adapter.destination import Destination
from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import MessageFormatException
from broker_adapter.server.links.consumer import Consumer
from broker_adapter.server.links.engine_calls import EngineCalls


class SetAside:
    """Sets messages of one connection aside.

    Args:
        calls: to the engine.
        log: writes a warning, whose kind comes first, unless there were too many of that kind.
    """

    def __init__(self, calls: EngineCalls, log: Callable[..., None]) -> None:
        self._calls = calls
        self._log = log

    def set_aside(
        self, consumer: Consumer, number: int, form: int, payload: bytes, error: MessageFormatException
    ) -> None:
        """Set a message aside that cannot be converted for the client.

        Args:
            consumer: for whom it was.
            number: the engine's number of the delivery.
            form: of the message.
            payload: the message as it is stored.
            error: why.
        """
        if not consumer.presettled:
            self._calls.defer(c.Settle(consumer.number, (number,), Outcome.REJECTED))
            return
        if consumer.browses:
            self._log("undecodable", "! a browser is not sent a message that cannot be decoded: %s", error.reason)
            return
        # The engine has dropped it already, and what it knew beside the payload.
        dead_letters = self._calls.settings_of(consumer.destination).dead_letter_queue
        self._log(
            "undecodable",
            "! a message for a consumer that settles nothing cannot be decoded, and goes into the queue %s: %s",
            *(dead_letters, error.reason),
        )
        calls = self._calls
        message = c.NewMessage(form, payload)
        calls.defer(
            c.Enqueue(calls.known_client, Destination(dead_letters), [message], calls.reply(self._on_set_aside))
        )

    def _on_set_aside(self, result: Any) -> None:
        error = result[0] if isinstance(result, (list, tuple)) else result
        if error is not None:
            self._log("undecodable", "! a message that cannot be decoded is lost, because it is refused: %s", error)
