"""Sends that are carried out in parts, because their messages take too many places in queues for one commit.

:func:`split` cuts an ``Enqueue`` command in two.  The reply to the send is called once, when each part has its answer.
"""

from __future__ import annotations

from typing import Any

from broker_adapter.engine.commands import messaging as c
from broker_adapter.errors import JMSException


class _PartialAnswers:
    """The answer to a send that is carried out in parts, each of which has its own, whichever comes first."""

    def __init__(self, messages: int, reply: c.Reply) -> None:
        self._missing = messages
        self._results: dict[int, tuple[Any, int]] = {}
        self._reply = reply

    def answer(self, place: int, result: Any, messages: int) -> None:
        """The part of so many messages has its answer whose first one has this place in the send."""
        self._results[place] = result, messages
        self._missing -= messages
        if self._missing:
            return
        results = [self._results[place] for place in sorted(self._results)]
        if all(each is None for each, _ in results):
            self._reply(None)
            return
        errors: list[JMSException | None] = []
        for each, count in results:
            errors += each if isinstance(each, list) else [each] * count
        self._reply(errors)


class _Part:
    """Takes the answer to one part of a send.

    Attributes:
        parts: the answers to all of them.
        place: of its first message in the send, from 0 on.
    """

    __slots__ = ("_messages", "parts", "place")

    def __init__(self, parts: _PartialAnswers, place: int, messages: int) -> None:
        self.parts = parts
        self.place = place
        self._messages = messages

    def __call__(self, result: Any) -> None:
        self.parts.answer(self.place, result, self._messages)


def split(command: c.Enqueue, first: int) -> tuple[c.Enqueue, c.Enqueue]:
    """A send, or what is left of one, as two commands.

    Args:
        command: the send.
        first: how many messages the first command has.
    """
    one, other = command.messages[:first], command.messages[first:]
    reply = command.reply
    if reply is None:
        return command._replace(messages=one), command._replace(messages=other)
    whole = reply if isinstance(reply, _Part) else _Part(_PartialAnswers(len(command.messages), reply), 0, 0)
    return (
        command._replace(messages=one, reply=_Part(whole.parts, whole.place, len(one))),
        command._replace(messages=other, reply=_Part(whole.parts, whole.place + len(one), len(other))),
    )
