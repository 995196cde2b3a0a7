"""Who wants an event of a region: found by an index, whatever the number of clients.

Theory of operation
    Clients of a region that have the same set of interests are one :class:`Audience`: for an event it is enough to know
    the audiences.  Ten thousand clients that want all keys of a region are one audience, and a put costs what it costs
    for one of them.

    Each distinct interest has the list of the audiences that have it.  An event's audiences are those of its key's
    interest, those of all keys, and those of each distinct expression and selector that matches.  Which expressions
    match a key is remembered for the keys used last.  Selectors may take long: the caller asks them, in slices of time
    (:mod:`broker_adapter.engine.matching`).  An audience is named once, however many of its interests match.

    What a selector or query says of an event is stored with the event, once for each distinct text: when the event is
    dispatched, the value that its key had is gone.

    To compile an expression or a selector may take a tenth of a second, and a client may have thousands: that is done
    ahead of the engine's thread (``prepared``), and here only at a start.

    The numbers of audiences are stored with the events, so they are given once only, and never to another set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.regions.event_records import Answer, Operation
from broker_adapter.engine.regions.interests import (
    ALL_KEYS,
    Interest,
    InterestKind,
    Prepared,
    compiled,
    digest,
    expression,
)
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.selectors.language import Selector

#: Distinct regular expressions of a region: each is asked of each key that is not remembered.
MOST_EXPRESSIONS: Final = 1000
#: Distinct selectors and queries of a region: each is asked of each event, and of the value before.
MOST_SELECTORS: Final = 1000
#: Keys of a region of which it is remembered which expressions match.
REMEMBERED_KEYS: Final = 10_000

Interests = frozenset[Interest]


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
        is_by_key: whether that is asked of its key alone.
        postings: how many postings it has had.
        events: how many events it has got since the engine was started.
        belonging: how many clients belong to it now.
        members: these, and those that have events queued from when they did.
        live: of these, the clients that get events as they come.
        check_at: once it has got so many, it is looked at whether a member's queue is too long.
        passed: up to this position all members have processed what they got by it, as was seen last.
    """

    __slots__ = (
        "_asked",
        "_expressions",
        "belonging",
        "check_at",
        "events",
        "id",
        "interests",
        "is_by_key",
        "live",
        "members",
        "passed",
        "postings",
        "questions",
        "region",
    )

    def __init__(self, number: int, region: int, interests: Interests) -> None:
        self.id = number
        self.region = region
        self.interests = interests
        self.is_by_key = not any(each.is_asked for each in interests)
        has_names = not self.is_by_key and any(each.name for each in interests)
        self.questions = frozenset(each.question for each in interests) if has_names else interests
        self.postings = 0
        self.events = 0
        self.belonging = 0
        self.check_at = 0
        self.members: dict[Any, None] = {}
        self.live: dict[Any, None] = {}
        self.passed = 0
        self._expressions: list[tuple[Interest, Callable[[str], bool]]] | None = None  #: None: not looked up yet
        self._asked: dict[bytes, list[Interest]] | None = None  #: the same

    def take_expressions(self, known: Mapping[Interest, Callable[[str], bool]]) -> None:
        """Take its regular expressions from those that its region has compiled."""
        wanted = sorted(each for each in self.interests if each.kind is InterestKind.EXPRESSION)
        self._expressions = [(each, known[each]) for each in wanted]

    def matched(self, key: str, answers: Iterable[Answer] = ()) -> Matched:
        """Which of its interests an event matches; all of these are empty where it is for others only.

        Args:
            key: of the event.
            answers: of the selectors and queries that are true of it.
        """
        if self._expressions is None:  # it gets nothing any more, since a start
            wanted = [each for each in self.interests if each.kind is InterestKind.EXPRESSION]
            self.take_expressions({each: expression(each.text) for each in wanted})
        if self._asked is None:
            self._asked = {}
            for each in self.interests:
                if each.is_asked:
                    self._asked.setdefault(digest(each.question), []).append(each)
        found = [each for each in (Interest(InterestKind.KEY, key), ALL_KEYS) if each in self.interests]
        found += [each for each, matches in self._expressions or () if matches(key)]
        queries: list[tuple[str, Operation]] = []
        if self._asked:
            for of, operation in answers:
                for each in self._asked.get(of, ()):
                    if each.kind is InterestKind.QUERY:
                        queries.append((each.name, operation))
                    else:
                        found.append(each)
        return Matched(sorted(found), sorted(queries))

    def __repr__(self) -> str:
        return f"<Audience {self.id}: {', '.join(sorted(each.label for each in self.interests))}>"


def check_numbers(interests: Iterable[Interest]) -> None:
    """Whether the clients of a region may have these interests together.

    Raises:
        ResourceAllocationException: they are more distinct expressions, or selectors and queries, than a region has.
    """
    listed = [each for each in interests if each.kind > InterestKind.ALL_KEYS]
    if len({each for each in listed if each.kind == InterestKind.EXPRESSION}) > MOST_EXPRESSIONS:
        raise ResourceAllocationException(
            f"all clients of a region together have no more than {MOST_EXPRESSIONS} different regular expressions:"
            " name the keys, or use one expression for several"
        )
    if len({(each.kind, each.text) for each in listed if each.kind != InterestKind.EXPRESSION}) > MOST_SELECTORS:
        raise ResourceAllocationException(
            f"all clients of a region together have no more than {MOST_SELECTORS} different selectors and queries:"
            " name the keys, or ask in the program what is different"
        )


class Routing:
    """The audiences of one region.

    Args:
        region: number of the region.
        new_number: gives the number of a new audience.

    Attributes:
        selectors: the distinct selectors that are to be asked of each event.
        queries: the distinct queries that are to be asked of the old and of the new value, without their names.
        prepared: what new interests ask, where it was made ahead.
    """

    def __init__(self, region: int, new_number: Callable[[], int]) -> None:
        self.region = region
        self.selectors: dict[Interest, Selector] = {}
        self.queries: dict[Interest, Selector] = {}
        self.prepared: Prepared = {}
        self._new_number = new_number
        self._audiences: dict[Interests, Audience] = {}
        self._by_interest: dict[Interest, list[Audience]] = {}
        self._expressions: dict[Interest, Callable[[str], bool]] = {}
        #: key → the expressions that match it, of the keys used last, the least recently used first
        self._matching: OrderedDict[str, tuple[Interest, ...]] = OrderedDict()

    @property
    def audiences(self) -> Collection[Audience]:
        """Those that get events."""
        return self._audiences.values()

    def audience(self, interests: Interests) -> Audience:
        """The audience with these interests, of which there is at least one; it is made where there is none."""
        found = self._audiences.get(interests)
        if found is None:
            found = Audience(self._new_number(), self.region, interests)
            self.add(found)
        return found

    def add(self, audience: Audience) -> None:
        """Let an audience get events."""
        self._audiences[audience.interests] = audience
        for interest in audience.questions:
            self._by_interest.setdefault(interest, []).append(audience)
            if interest.kind is InterestKind.KEY:
                continue
            known = self._known(interest.kind)
            if known is not None and interest not in known:
                known[interest] = self.prepared.get(interest) or compiled(interest)
                if interest.kind is InterestKind.EXPRESSION:
                    self._matching.clear()
        audience.take_expressions(self._expressions)

    def _known(self, kind: InterestKind) -> dict[Interest, Any] | None:
        """Where what an interest of a kind asks is noted; None: it asks nothing."""
        if kind is InterestKind.EXPRESSION:
            return self._expressions
        if kind is InterestKind.SELECTOR:
            return self.selectors
        return self.queries if kind is InterestKind.QUERY else None

    def check_room(self, interests: Iterable[Interest]) -> None:
        """Whether a region may have these as well.

        Raises:
            ResourceAllocationException: they are more distinct expressions, or selectors and queries, than it may have.
        """
        check_numbers((*interests, *self._expressions, *self.selectors, *self.queries))

    def drop(self, audience: Audience) -> None:
        """Forget an audience, which no client needs any more."""
        if self._audiences.get(audience.interests) is not audience:
            return
        del self._audiences[audience.interests]
        for interest in audience.questions:
            having = self._by_interest[interest]
            having.remove(audience)
            if not having:
                del self._by_interest[interest]
                if interest.kind is InterestKind.KEY:
                    continue
                self.selectors.pop(interest, None)
                self.queries.pop(interest, None)
                if self._expressions.pop(interest, None) is not None:
                    self._matching.clear()

    def wanting(self, key: str, selected: Iterable[Interest] = ()) -> Sequence[Audience]:
        """The audiences that want an event, each once.

        Args:
            key: of the event.
            selected: those of ``selectors`` and ``queries`` that are true of it.

        Returns:
            A sequence that must not be changed.
        """
        by_interest = self._by_interest
        interests = [ALL_KEYS, Interest(InterestKind.KEY, key), *selected]
        if self._expressions:
            interests += self._matching_expressions(key)
        parts = [by_interest[each] for each in interests if each in by_interest]
        if len(parts) < 2:
            return parts[0] if parts else ()
        return list(dict.fromkeys([audience for part in parts for audience in part]))

    def _matching_expressions(self, key: str) -> tuple[Interest, ...]:
        matching = self._matching
        found = matching.get(key)
        if found is None:
            found = matching[key] = tuple([each for each, matches in self._expressions.items() if matches(key)])
            if len(matching) > REMEMBERED_KEYS:
                matching.popitem(last=False)
        else:
            matching.move_to_end(key)
        return found
