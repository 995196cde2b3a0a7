"""What the selectors and queries of a region say of an event.

Theory of operation
    A selector may take long, so many of them are asked in *slices* of time (:mod:`matching`): of all messages that a
    request is about, the new ones and the old values, before anything is changed.  A request for which a slice is too
    short waits for the next cycle, with what was asked by then, and so do the requests behind it for the same region:
    the changes of a key stay in order.  The driver supplies them again with what the store has by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.commands.selection import RegionFields, selectors_at_once
from broker_adapter.engine.regions.event_records import Operation
from broker_adapter.engine.regions.interests import Interest, query_operation
from broker_adapter.engine.regions.routing import Routing
from broker_adapter.engine.rules.matching import Matching
from broker_adapter.selectors.language import Selector

#: A message that is asked about: key, format and payload.
Subject = tuple[str, int, bytes]


class EventAnswers:
    """Asks the selectors and queries of regions.

    Args:
        matching: asks a selector.
    """

    def __init__(self, matching: Matching) -> None:
        self._matching = matching

    def ask_ahead(
        self, routing: Routing, command: e.ChangeKeys, known: Mapping[str, tuple[int, bytes]], asked: e.Asked
    ) -> bool:
        """Ask what a request is about, as long as the slice of this decision lasts.

        Args:
            routing: of the region.
            command: the request.
            known: key → format and payload of its value, where this decision has changed it.
            asked: what was asked by now.

        Returns:
            Whether everything was asked.
        """
        matching = self._matching
        for subject, is_old in _subjects(command, known):
            answers = asked.setdefault(subject, {})
            if len(answers) >= len(routing.queries) + (0 if is_old else len(routing.selectors)):
                continue  # in an earlier slice; what was registered since then is asked in the end
            questions = [*routing.queries.items()] if is_old else [*routing.selectors.items(), *routing.queries.items()]
            left = [each for each in questions if each[0] not in answers]
            fields = self._fields(subject)
            at_once = selectors_at_once(len(subject[2]))
            for first in range(0, len(left), at_once):
                if matching.is_late():
                    return False
                for question, selector in left[first : first + at_once]:
                    answers[question] = matching.is_selected(selector, fields)
        return True

    def of(
        self, routing: Routing, operation: Operation, new: Subject, has_value: bool, old: Subject | None, asked: e.Asked
    ) -> dict[Interest, Operation]:
        """What an event is for each distinct selector and query that is true of it.

        Args:
            routing: of the region.
            operation: what happens to the key.
            new: the message of the event.
            has_value: whether that is the value of the key from then on.
            old: the value that it had; None: it had none.
            asked: what was asked by now; the rest is asked now.
        """
        is_true = self._is_true
        answers = {
            question: operation
            for question, selector in routing.selectors.items()
            if is_true(question, selector, new, asked)
        }
        for query, selector in routing.queries.items():
            found = query_operation(
                old is not None and is_true(query, selector, old, asked),
                has_value and is_true(query, selector, new, asked),
            )
            if found is not None:
                answers[query] = found
        return answers

    def _is_true(self, question: Interest, selector: Selector, subject: Subject, asked: e.Asked) -> bool:
        answers = asked.setdefault(subject, {})
        found = answers.get(question)
        if found is None:
            found = answers[question] = self._matching.is_selected(selector, self._fields(subject))
        return found

    def _fields(self, subject: Subject) -> RegionFields:
        key, message_format, payload = subject
        return RegionFields(self._matching.formats, message_format, payload, key)


def _subjects(command: e.ChangeKeys, known: Mapping[str, tuple[int, bytes]]) -> Iterator[tuple[Subject, bool]]:
    """The messages that a request is about, and whether each is only an old value."""
    seen = dict(known)
    for change in command.changes:
        old = seen.get(change.key, change.old)
        if old is not None:
            yield (change.key, *old), True
        message = change.message
        seen[change.key] = message.format, message.payload
        yield (change.key, message.format, message.payload), False
