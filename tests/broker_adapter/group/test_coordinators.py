"""The coordinator in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from broker_adapter.group.coordinators import Found, MemoryCoordinator


def test_there_is_nothing_at_first() -> None:
    assert MemoryCoordinator().read() == Found(0, b"")


def test_a_swap_wins_where_the_value_is_the_one_that_was_read() -> None:
    coordinator = MemoryCoordinator()
    first = coordinator.swap(0, b"one")
    assert first is not None
    assert coordinator.read() == Found(first, b"one")
    second = coordinator.swap(first, b"two")
    assert second is not None
    assert second != first
    coordinator.close()
    assert coordinator.read() == Found(second, b"two")


def test_a_swap_loses_where_the_value_is_another_one() -> None:
    coordinator = MemoryCoordinator()
    first = coordinator.swap(0, b"one")
    assert first is not None
    assert coordinator.swap(0, b"other") is None
    second = coordinator.swap(first, b"one")
    assert coordinator.swap(first, b"other") is None, "the same bytes are another value"
    assert coordinator.read() == Found(second or 0, b"one")


def test_one_of_many_swaps_wins() -> None:
    coordinator = MemoryCoordinator()
    with ThreadPoolExecutor(8) as pool:
        won = [each for each in pool.map(lambda name: coordinator.swap(0, b"%d" % name), range(50)) if each]
    assert won == [1]
