"""Answers the requests of a client under test, in place of our own server."""

from __future__ import annotations

from typing import Any

from broker_adapter.amqp.events import LinkRemoteOpen, Terminus
from broker_adapter.amqp.management import ManagementAnswer, pack_answer, unpack_request
from broker_adapter.amqp.wire import MANAGEMENT_ADDRESS
from tests.broker_adapter.amqp.client.scripted_broker import Wired


class Manager:
    """Answers requests at the broker's management node."""

    def __init__(self, wired: Wired) -> None:
        self._wired = wired

    def requests(self) -> list[Any]:
        """All requests so far."""
        return [unpack_request(each.payload) for _, each in self._wired.broker.held]

    def answer(self, answer: ManagementAnswer) -> None:
        """Send an answer."""
        self.send(pack_answer(answer))

    def send(self, payload: bytes) -> None:
        """Send what may be no answer."""
        peer = self._wired.broker.peer
        (link,) = [
            event.link
            for event in self._wired.broker.of(LinkRemoteOpen)
            if event.is_sender and event.source == Terminus(MANAGEMENT_ADDRESS, expiry="session-end")
        ]
        peer.send(link, payload)
        self._wired.pump()
