"""Who wants an event of a region: found by an index, whatever the number of clients.

Theory of operation
    Clients of a region that have the same set of interests are one audience (:mod:`audience`): for an event it is
    enough to know the audiences.  Ten thousand clients that want all keys of a region are one audience, and a put costs
    what it costs for one of them.

    Each distinct interest has the list of the audiences that have it.  An event's audiences are those of its key's
    interest, those of all keys, and those of each distinct expression and selector that matches.  Which expressions
    match a key is remembered for the keys used last.  Selectors may take long: the caller asks them, in slices of time
    (:mod:`broker_adapter.engine.rules.matching`).  An audience is named once, however many of its interests match.

    What a selector or query says of an event is stored with the event, once for each distinct text: when the event is
    dispatched, the value that its key had is gone.

    To compile an expression or a selector may take a tenth of a second, and a client may have thousands: that is done
    ahead of the engine's thread (``prepared``), and here only at a start.

    The numbers of audiences are stored with the events, so they are given once only, and never to another set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from broker_adapter.engine.regions.audience import Audience, OwnAudience
from broker_adapter.engine.regions.interests import ALL_KEYS, Expression, Interest, InterestKind, Prepared, compiled
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.selectors.language import Selector

#: Distinct regular expressions of a region: each is asked of each key that is not remembered.
MOST_EXPRESSIONS: Final = 1000
#: Distinct selectors and queries of a region: each is asked of each event, and of the value before.
MOST_SELECTORS: Final = 1000
#: One client may have this part of both, the half, so that it leaves some to the others.
CLIENTS_PART: Final = 2
#: Keys of a region of which it is remembered which expressions match.
REMEMBERED_KEYS: Final = 10_000

#: What the clients of an audience want that may be shared.
Interests = frozenset[Interest]


def check_numbers(interests: Iterable[Interest], part: int = 1) -> None:
    """Check that the clients of a region may have these interests together.

    Args:
        interests: of all clients, or of one.
        part: which part of the numbers of a region they may have; ``CLIENTS_PART`` for one client.

    Raises:
        ResourceAllocationException: they are more distinct expressions, or selectors and queries.
    """
    whose = "all clients of a region together have" if part == 1 else "one client has, in a region,"
    listed = [each for each in interests if each.kind > InterestKind.ALL_KEYS]
    if len({each for each in listed if each.kind == InterestKind.EXPRESSION}) > MOST_EXPRESSIONS // part:
        raise ResourceAllocationException(
            f"{whose} no more than {MOST_EXPRESSIONS // part} different regular expressions:"
            " name the keys, or use one expression for several"
        )
    selectors = {(each.kind, each.text) for each in listed if each.kind != InterestKind.EXPRESSION}
    if len(selectors) > MOST_SELECTORS // part:
        raise ResourceAllocationException(
            f"{whose} no more than {MOST_SELECTORS // part} different selectors and queries:"
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
        self._audiences: dict[int, Audience] = {}
        self._shared: dict[Interests, Audience] = {}
        self._by_interest: dict[Interest, list[Audience]] = {}
        self._expressions: dict[Interest, Expression] = {}
        #: key → the expressions that match it, of the keys used last, the least recently used first
        self._matching: OrderedDict[str, tuple[Interest, ...]] = OrderedDict()

    @property
    def audiences(self) -> Collection[Audience]:
        """Those that get events."""
        return self._audiences.values()

    def audience(self, interests: Interests) -> Audience:
        """The audience that clients with these interests share, at least one; it is made where there is none."""
        found = self._shared.get(interests)
        if found is None:
            found = Audience(self._new_number(), self.region, interests)
            self.add(found)
        return found

    def own_audience(self, interests: Iterable[Interest]) -> OwnAudience:
        """A new audience for one client alone."""
        found = OwnAudience(self._new_number(), self.region, interests)
        self.add(found)
        return found

    def add(self, audience: Audience) -> None:
        """Let an audience get events."""
        self._audiences[audience.id] = audience
        if not isinstance(audience, OwnAudience):
            self._shared[frozenset(audience.interests)] = audience
        audience.compiled = self._expressions
        for question in audience.questions:
            self._ask(audience, question)

    def change(self, audience: OwnAudience, more: Iterable[Interest], ended: Iterable[Interest], head: int) -> None:
        """Let an audience get other events than before, from the one behind ``head`` on."""
        asked, no_longer = audience.change(more, ended, head)
        for question in asked:
            self._ask(audience, question)
        for question in no_longer:
            self._ask_no_longer(audience, question)

    def _ask(self, audience: Audience, question: Interest) -> None:
        """An event for which this is true is for an audience."""
        self._by_interest.setdefault(question, []).append(audience)
        known = self._known(question.kind)
        if known is not None and question not in known:
            known[question] = self.prepared.get(question) or compiled(question)
            if known is self._expressions:
                self._matching.clear()

    def _ask_no_longer(self, audience: Audience, question: Interest) -> None:
        having = self._by_interest[question]
        having.remove(audience)
        if having:
            return
        del self._by_interest[question]
        known = self._known(question.kind)
        if known is not None:
            del known[question]
            if known is self._expressions:
                self._matching.clear()

    def _known(self, kind: InterestKind) -> dict[Interest, Any] | None:
        """Return where what an interest of a kind asks is noted; None: it asks nothing."""
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
        asking = [each for each in interests if each.kind > InterestKind.ALL_KEYS]
        if asking:
            check_numbers((*asking, *self._expressions, *self.selectors, *self.queries))

    def drop(self, audience: Audience) -> None:
        """Forget an audience, which no client needs any more."""
        if self._audiences.pop(audience.id, None) is None:
            return
        if not isinstance(audience, OwnAudience):
            del self._shared[frozenset(audience.interests)]
        for question in audience.questions:
            self._ask_no_longer(audience, question)

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
            data = key.encode()
            known = self._expressions.items()
            found = matching[key] = tuple(
                [each for each, asks in known if asks.low <= data <= asks.high and asks.match(data) is not None]
            )
            if len(matching) > REMEMBERED_KEYS:
                matching.popitem(last=False)
        else:
            matching.move_to_end(key)
        return found
