"""What the queues of an engine share: windows in memory, and what consumers may hold together."""

from __future__ import annotations

import pytest

from broker_adapter.engine.queues.memory import LEAST_UNSETTLED, LEAST_WINDOW, QueueMemory


class Queue:
    """Notes the consumers that it is to offer something to."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    def offer(self, consumer: str) -> None:
        self.offered.append(consumer)


def memory(window: int = 1000, most_together: int = 5000, max_in_hand: int = 100) -> QueueMemory[str, Queue]:
    return QueueMemory(window, most_together, max_in_hand)


@pytest.mark.parametrize(("queues", "window"), [(0, 1000), (1, 1000), (5, 1000), (10, 500), (100_000, LEAST_WINDOW)])
def test_queues_share_their_windows_but_each_has_a_least_one(queues: int, window: int) -> None:
    shared = memory()
    shared.share(queues)
    assert shared.window == window


def test_a_small_window_of_the_settings_is_not_made_larger() -> None:
    shared = memory(window=3)
    for queues in (1, 1_000_000):
        shared.share(queues)
        assert shared.window == 3


def test_a_consumer_may_hold_few_deliveries_while_all_together_hold_as_many_as_they_may() -> None:
    shared = memory(max_in_hand=100)
    for in_hand, most, left in ((99, 50, 50), (100, 50, LEAST_UNSETTLED), (150, 50, LEAST_UNSETTLED), (100, 4, 4)):
        shared.in_hand = in_hand
        assert shared.most_unsettled(most) == left


def test_room_that_becomes_free_is_offered_to_as_many_consumers_as_it_is_enough_for_in_their_order() -> None:
    shared = memory(max_in_hand=100)
    one, other = Queue(), Queue()
    shared.limited.update({"a": one, "b": other, "c": one})
    shared.in_hand = 100
    assert list(shared.unlimited()) == []
    shared.in_hand = 98
    assert list(shared.unlimited()) == [one, other]
    assert (one.offered, other.offered, list(shared.limited)) == (["a"], ["b"], ["c"])
    shared.in_hand = 0
    assert list(shared.unlimited()) == [one]
    assert not shared.limited
