"""Random histories of restarts, copies and clocks: nothing is settled that was not read."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.engine.records.layout import NEXT_RUN, encode_meta
from broker_adapter.engine.records.start_numbers import next_run, with_gaps
from broker_adapter.engine.store.starts import kept, links_of, links_to, new_run, text_of


class ModelStore:
    """A store as it is, with the messages at its positions, and with its starts as it notes them."""

    def __init__(self) -> None:
        self.messages: dict[int, int] = {}  #: position → a number that no other message has
        self.gone = 0  #: positions up to this one are settled
        self.starts: dict[int, tuple[str, int]] = {}  #: number → run, or "" where it is damaged; where it began
        self.noted: bytes | None = None  #: the number of the next start
        self.begun: tuple[str, int] | None = None  #: the start of the engine that runs; None: it does not run
        self.is_noted = False
        self.earlier: list[str] = []  #: what that engine has found

    @property
    def next(self) -> int:
        return len(self.messages) + 1

    def copy(self) -> ModelStore:
        made = ModelStore()
        made.messages, made.gone, made.starts = dict(self.messages), self.gone, dict(self.starts)
        made.noted = self.noted
        return made

    def begin(self, run: str) -> None:
        found = [(number, run) for number, (run, _) in sorted(self.starts.items())]
        self.begun, self.is_noted, self.earlier = (run, self.next), False, list(with_gaps(found, self.noted))

    def note(self) -> None:
        if not self.is_noted and self.begun is not None:
            number, _ = next_run(max(self.starts, default=0), self.noted)
            self.starts[number], self.noted = self.begun, encode_meta(NEXT_RUN, number + 1)
            self.is_noted = True

    def known(self) -> list[str]:
        assert self.begun is not None
        return [*self.earlier, self.begun[0]]

    def start(self, run: str) -> int:
        assert self.begun is not None
        return dict([*self.starts.values(), self.begun]).get(run, 1)  # 1: it was forgotten meanwhile


class ModelQuery:
    """What has read a store through a range, and remembers how far and where."""

    def __init__(self) -> None:
        self.seen: tuple[str, int, int] | None = None  #: text of links, first position, next position
        self.read: set[int] = set()
        self.lost = 0

    def is_kept(self, store: ModelStore) -> bool:
        """Whether the store says that what was seen is what it has."""
        assert self.seen is not None
        text, _, stop = self.seen
        return stop <= kept(links_of(text), store.known(), store.start, store.next)

    def settle(self, store: ModelStore) -> None:
        """Nobody asks for the run, so that the start of the engine may not be noted."""
        if self.seen is not None and self.is_kept(store):
            _, base, stop = self.seen
            for position in range(max(base, store.gone + 1), stop):
                assert store.messages[position] in self.read, f"{position} was not read"
            if stop > store.gone + 1:
                store.note()
                store.gone = stop - 1

    def go_on(self, store: ModelStore, renews: bool) -> None:
        """Ask what is there, which notes the start of the engine, and read it."""
        store.note()
        here = text_of(links_to(store.known(), store.start))
        if self.seen is not None and not self.is_kept(store):
            self.seen = None
            self.lost += 1
        elif self.seen is not None and renews:
            self.seen = here, *self.seen[1:]
        if self.seen is None:
            self.seen = here, store.gone + 1, store.gone + 1
        _, base, stop = self.seen
        self.read.update(store.messages[position] for position in range(stop, store.next))
        if store.next > stop:
            self.seen = here, base, store.next


@settings(max_examples=400)
@given(st.randoms(use_true_random=False), st.booleans())
def test_nothing_is_settled_that_was_not_read_whatever_becomes_of_the_store(chance: Random, is_one_store: bool) -> None:
    """Random histories of starts, copies, stores that are put back, clocks, starts that are forgotten or damaged."""
    stores = [ModelStore()]
    at, numbers = stores[0], iter(range(10**9))
    at.messages = {position: next(numbers) for position in range(1, chance.choice([1, 4]))}  # without a start
    queries = [ModelQuery(), ModelQuery()]
    loses_starts, has_lost = chance.random() < 0.5, False
    for _ in range(60):
        step = chance.choice(
            ["send", "send", "restart", "copy", "put back", "read", "read", "settle", "forget", "damage", "lose"]
        )
        if step == "restart" or at.begun is None:
            at.begin(new_run(chance.randrange(1000), str(next(numbers))))
        if step == "send":
            at.note()
            for _ in range(chance.randint(1, 3)):
                at.messages[at.next] = next(numbers)
        elif step == "copy" and not is_one_store:
            stores.append(at.copy())
        elif step == "put back" and not is_one_store:
            at.begun = None
            at = chance.choice(stores)
            at.begun = None
        elif step == "read":
            chance.choice(queries).go_on(at, chance.random() < 0.2)
        elif step == "settle":
            chance.choice(queries).settle(at)
        elif step in ("forget", "damage", "lose") and loses_starts and at.starts and chance.random() < 0.3:
            has_lost = True
            if step == "damage":
                at.starts[chance.choice(list(at.starts))] = "", 0
            elif step == "lose":
                del at.starts[chance.choice([max(at.starts), chance.choice(list(at.starts))])]
            elif len(at.starts) > 1:
                del at.starts[min(at.starts)]
            if step != "forget":
                at.begun = None
    assert has_lost or not is_one_store or not any(query.lost for query in queries), "nothing was lost"
