"""Clients of a region that want the same of it, and what of that an event matches.

Theory of operation
    An audience that clients share never changes: another set of interests is another audience.  That costs as much as
    the set has interests, and a client that names ten thousand keys one by one would pay it ten thousand times.  So a
    client with many of them has an audience of its own (:class:`OwnAudience`), to which interests are added and in
    which they end.

    What is queued keeps its meaning: of an interest that was added or has ended, the audience knows for which positions
    it held (:class:`Span`), and an event matches what held as it came.  The spans are stored, each in a record of its
    own.  As those that have ended add up, the client gets another audience (``can_change``), so what an interest costs
    does not depend on the number of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from broker_adapter.engine.regions.event_records import Answer, Operation
from broker_adapter.engine.regions.interests import ALL_KEYS, Interest, InterestKind, digest, expression

#: A client with more interests in a region that gets or loses one has an audience of its own.
MOST_SHARED: Final = 1000


class Matched(NamedTuple):
    """Which interests of an audience an event matches."""

    interests: Sequence[Interest]  #: all but queries, by kind and text
    queries: Sequence[tuple[str, Operation]]  #: the name of each query, and what the event is for it; by name


NOTHING: Final = Matched((), ())


class Audience:
    """Clients of a region that want the same of it.

    Attributes:
        id: its number, which no other audience of the engine had, has or will have.
        region: number of the region.
        interests: what its clients want.
        questions: what is asked of an event for that.
        gets_all: whether it gets each event of a key of which it has got one.
        postings: how many postings it has had.
        events: how many events it has got since the engine was started.
        compiled: the region's expressions, which it need not compile again.
        belonging: how many clients belong to it now.
        members: these, and those that have events queued from when they did.
        live: of these, the clients that get events as they come.
        check_at: once it has got so many, it is checked whether a member's queue is too long.
        passed: up to this position all members have processed what they got by it, as was seen last.
    """

    __slots__ = (
        "_asked",
        "_expressions",
        "belonging",
        "check_at",
        "compiled",
        "events",
        "gets_all",
        "id",
        "interests",
        "live",
        "members",
        "passed",
        "postings",
        "questions",
        "region",
    )

    def __init__(self, number: int, region: int, interests: AbstractSet[Interest]) -> None:
        self.id = number
        self.region = region
        self.interests = interests
        self.gets_all = not any(each.is_asked for each in interests)
        has_names = not self.gets_all and any(each.name for each in interests)
        self.questions: Collection[Interest] = (
            frozenset(each.question for each in interests) if has_names else interests
        )
        self.compiled: Mapping[Interest, Callable[[str], bool]] = {}
        self.postings = 0
        self.events = 0
        self.belonging = 0
        self.check_at = 0
        self.members: dict[Any, None] = {}
        self.live: dict[Any, None] = {}
        self.passed = 0
        self._expressions: list[tuple[Interest, Callable[[str], bool]]] | None = None  #: None: not looked up yet
        self._asked: dict[bytes, list[Interest]] = {}

    def matched(self, key: str, answers: Iterable[Answer] = (), position: int = 0) -> Matched:
        """Return which of its interests an event matches; all of these are empty where it is for others only.

        Args:
            key: of the event.
            answers: of the selectors and queries that are true of it.
            position: of the event.
        """
        if self._expressions is None:
            self._expressions = []
            for each in self._known():
                self._note(each)
        holds = self._holds
        found = [each for each in (Interest(InterestKind.KEY, key), ALL_KEYS) if holds(each, position)]
        found += [each for each, matches in self._expressions if matches(key) and holds(each, position)]
        queries: list[tuple[str, Operation]] = []
        if self._asked:
            for of, operation in answers:
                for each in self._asked.get(of, ()):
                    if not holds(each, position):
                        continue
                    if each.kind is InterestKind.QUERY:
                        queries.append((each.name, operation))
                    else:
                        found.append(each)
        return Matched(sorted(found), sorted(queries))

    def _known(self) -> Iterable[Interest]:
        """The interests that some position may match."""
        return self.interests

    def _holds(self, interest: Interest, position: int) -> bool:
        """Return whether it had an interest as an event came."""
        return interest in self.interests

    def _note(self, interest: Interest) -> None:
        """Note what an interest asks of an event, where it is more than its key, once the others are noted."""
        if self._expressions is None:
            return
        if interest.kind is InterestKind.EXPRESSION:
            self._expressions.append((interest, self.compiled.get(interest) or expression(interest.text)))
        elif interest.is_asked:
            self._asked.setdefault(digest(interest.question), []).append(interest)

    def __repr__(self) -> str:
        return f"<Audience {self.id}: {', '.join(sorted(each.label for each in self.interests))}>"


class Span(NamedTuple):
    """For which positions an interest held."""

    after: int  #: behind this one
    through: int | None = None  #: up to this one; None: it still does

    def holds(self, position: int) -> bool:
        """Return whether it held as an event came."""
        return self.after < position and (self.through is None or position <= self.through)


_ALWAYS: Final = Span(-1)


class OwnAudience(Audience):
    """An audience to which one client alone belongs, and which changes.

    Args:
        number: its number.
        region: number of the region.
        interests: those with which it was made.
        spans: of these and other ones, those that were added since, and those that have ended.

    Attributes:
        first: those with which it was made.
        spans: what was added since, and what has ended; what is not among these holds for all positions.
    """

    __slots__ = ("_counts", "_ended", "_wanted", "first", "spans")

    def __init__(
        self, number: int, region: int, interests: Iterable[Interest], spans: Mapping[Interest, Span] | None = None
    ) -> None:
        self.first = frozenset(interests)
        self.spans = dict(spans or {})
        self._ended = {each for each, span in self.spans.items() if span.through is not None}
        self._wanted = {*self.first, *self.spans} - self._ended
        super().__init__(number, region, self._wanted)
        self._counts = Counter([each.question for each in self._wanted])
        self.questions = self._counts.keys()
        self.gets_all = self.gets_all and not self._ended

    def can_change(self, more: Iterable[Interest], ended: Collection[Interest]) -> bool:
        """Return whether it can get these interests, and lose those; else its client needs another audience.

        One that has ended cannot come back, some are left, and not too many have ended.
        """
        if len(ended) >= len(self._wanted) or any(each in self._ended for each in more):
            return False
        return len(self._ended) + len(ended) <= max(MOST_SHARED, len(self._wanted))

    def change(
        self, more: Iterable[Interest], ended: Iterable[Interest], head: int
    ) -> tuple[list[Interest], list[Interest]]:
        """Get interests that it does not have, and lose some that it has, from the event behind ``head`` on.

        Returns:
            What is asked of an event from now on, and what is not any more.
        """
        counts, asked, no_longer = self._counts, [], []
        for each in more:
            self.spans[each] = Span(head)
            self._wanted.add(each)
            self._note(each)
            self.gets_all = self.gets_all and not each.is_asked
            question = each.question
            if not counts[question]:
                asked.append(question)
            counts[question] += 1
        for each in ended:
            self.spans[each] = self.spans.get(each, _ALWAYS)._replace(through=head)
            self._ended.add(each)
            self._wanted.discard(each)
            self.gets_all = False
            question = each.question
            counts[question] -= 1
            if not counts[question]:
                del counts[question]
                no_longer.append(question)
        return asked, no_longer

    def _known(self) -> Iterable[Interest]:
        return {*self._wanted, *self._ended}

    def _holds(self, interest: Interest, position: int) -> bool:
        span = self.spans.get(interest)
        return interest in self._wanted if span is None else span.holds(position)
