"""The answers to messages that are sent together, for the thread that waits for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from broker_adapter import JMSException


class SendAnswers:
    """Keeps the answers of the broker; none wakes the thread that waits but the last one.

    Attributes:
        answered: the indices of the messages that have one; written by the transport's thread only.
        errors: of the messages that failed, by their index; the same.
    """

    def __init__(self, answered: Callable[[], None], wake: Callable[[], None]) -> None:
        """Nothing is sent yet.

        Args:
            answered: called with each answer.
            wake: called when all have come.
        """
        self.answered: list[int] = []
        self.errors: dict[int, JMSException] = {}
        self._sent = sys.maxsize
        self._on_answer = answered
        self._wake = wake

    def of(self, index: int) -> Callable[[JMSException | None], None]:
        """Return what is to be called with the answer to a message."""
        return partial(self._settled, index)

    def all_sent(self, count: int) -> None:
        """So many were sent, and no more are."""
        self._sent = count

    @property
    def is_complete(self) -> bool:
        """Whether all answers have come, after ``all_sent``."""
        return len(self.answered) >= self._sent

    def unanswered(self, sent: int) -> set[int]:
        """Those of the messages before this index that have no answer."""
        return set(range(sent)).difference(self.answered)

    def _settled(self, index: int, error: JMSException | None) -> None:
        if error is not None:
            self.errors[index] = error
        self._on_answer()
        self.answered.append(index)
        if len(self.answered) >= self._sent:
            self._wake()


def none_sent(error: JMSException, count: int) -> None:
    """Have an error say that none of so many messages was sent."""
    error.failures = dict.fromkeys(range(count), error)


def failed(errors: dict[int, JMSException], count: int) -> JMSException:
    """Return what the application is told where some messages of several failed: the error of the first one.

    Args:
        errors: by index of the message.
        count: how many messages there are.
    """
    first = min(errors)
    error = errors[first]
    if count > 1:
        error = type(error)(
            f"{len(errors)} of {count} messages failed; the first of them is message {first}: {error.reason}",
            error_code=error.error_code,
        )
    error.failures = dict(sorted(errors.items()))
    return error
