"""Records of messages that were acknowledged, for tests of what is remembered of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ack_modes import DeliveryTag, Outcome, Settlement
from broker_adapter import Identity, JMSException
from sdk.acknowledgements import Acknowledgements, AckRecord, LostAcknowledgements, Source

SOURCE = Source("orders")


def record(number: int, source: Source = SOURCE, position: int | None = -1) -> AckRecord:
    return source, Identity("producer", 1, number), number if position == -1 else position, number % 3, f"ID:{number}"


def ignore(message_ids: list[str]) -> None:
    pytest.fail(f"no consumer has {message_ids}")


def tag(number: int, link: int = 1) -> DeliveryTag:
    return DeliveryTag(0, link, number)


def accept(session: Acknowledgements, *numbers: int, outcome: Outcome = Outcome.ACCEPTED) -> None:
    for number in numbers:
        session.delivered(tag(number), record(number))
        session.settled([Settlement(tag(number), outcome)])


def keys(lost: LostAcknowledgements, *numbers: int) -> list[bool]:
    return [lost.take(record(number)) for number in numbers]


class Told:
    """Answers as our own broker does; keeps what it was asked."""

    def __init__(self, *errors: JMSException) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._errors = list(errors)

    def request(self, operation: str, arguments: Mapping[str, Any], timeout: float | None) -> int:
        self.asked.append((operation, arguments.get("positions")))
        if self._errors:
            raise self._errors.pop(0)
        return 1
