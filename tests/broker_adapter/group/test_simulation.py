"""Random histories of groups hold what must hold; with a rule that is broken on purpose they do not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Set
from random import Random
from typing import Any

import attrs
import pytest

from broker_adapter.group.record import GroupRecord
from broker_adapter.group.reign import Reign
from broker_adapter.group.rules import Action, Node
from tests.broker_adapter.group.simulation import Simulation, failure

#: In CI the same ones each time.
FIRST = 0 if "CI" in os.environ else Random().randrange(1 << 32)
HISTORIES = 300 if "CI" in os.environ else 1000
#: A broken rule is found among so many; each of those below in one of a hundred or more.
SOON = 2000


def found(seeds: Iterable[int]) -> str:
    """The first violation."""
    for seed in seeds:
        _, _, error = failure(seed)
        if error:
            return f"seed {seed}: {error}"
    return ""


@pytest.mark.slow
def test_random_histories_hold_what_must_hold() -> None:
    confirmed = 0
    for seed in range(FIRST, FIRST + HISTORIES):
        _, releases, error = failure(seed)
        assert not error, f"seed {seed}"
        confirmed += releases
    assert confirmed > 20 * HISTORIES


def test_a_history_is_the_same_each_time() -> None:
    logs = []
    for _ in range(2):
        history = Simulation(4711)
        history.whole()
        logs.append({name: machine.log for name, machine in history.machines.items()})
    assert logs[0] == logs[1]
    assert len(next(iter(logs[0].values()))) > 20


Patch = Callable[..., None]


def counted_after_its_swap(patch: Patch) -> None:
    patch(Reign, "counted", lambda self: self.record.in_sync - {self._name})


def passed_over_before_its_swap(patch: Patch) -> None:
    counted, release = Reign.counted, Reign.release
    times: dict[int, float] = {}

    def early(self: Reign) -> Set[str]:
        return {each for each in counted(self) if self.is_up_to_date(each, times.get(id(self), 0.0))}

    def noting(self: Reign, now: float) -> int:
        times[id(self)] = now
        return release(self, now)

    patch(Reign, "counted", early)
    patch(Reign, "release", noting)


def added_without_what_was_released(patch: Patch) -> None:
    def in_sync(self: Reign, now: float) -> frozenset[str]:
        others = (self.record.in_sync | self._joining) - {self._name}
        return frozenset({self._name, *(each for each in others if self.is_up_to_date(each, now))})

    patch(Reign, "in_sync", in_sync)


def an_unknown_swap_is_taken_for_lost(patch: Patch) -> None:
    no_answer = Node.no_answer

    def forgetting(self: Node, now: float) -> list[Action]:
        if self.reign:
            self.reign._proposed = frozenset()
        return no_answer(self, now)

    patch(Node, "no_answer", forgetting)


def stands_without_being_in_sync(patch: Patch) -> None:
    may_stand = Node._may_stand
    patch(
        Node,
        "_may_stand",
        lambda self, record: may_stand(self, attrs.evolve(record, in_sync=record.in_sync | {self.name})),
    )


def stands_with_an_empty_store(patch: Patch) -> None:
    init = Node.__init__

    def unaware(self: Node, name: str, node: Any, writer: str, lsn: int | None, *rest: float) -> None:
        init(self, name, node, writer, lsn or 0, *rest)

    patch(Node, "__init__", unaware)


def goes_on_in_the_term_of_an_earlier_process(patch: Patch) -> None:
    take = Node._take

    def trusting(self: Node, record: GroupRecord, token: Any, now: float) -> None:
        if record.writer.startswith(f"{self.name}-"):
            record = attrs.evolve(record, writer=self._writer)
        take(self, record, token, now)

    patch(Node, "_take", trusting)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        counted_after_its_swap,
        passed_over_before_its_swap,
        added_without_what_was_released,
        an_unknown_swap_is_taken_for_lost,
        stands_without_being_in_sync,
        stands_with_an_empty_store,
        goes_on_in_the_term_of_an_earlier_process,
    ],
)
def test_a_broken_rule_is_found(broken: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch.setattr)
    assert "Traceback" not in (error := found(range(SOON)))
    assert "confirm" in error
