"""How many messages a consumer holds ahead: the rule, by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.receiving.window import Window


class Consumer:
    """Uses messages at a given pace, and asks again as ``Prefetch`` does."""

    def __init__(self) -> None:
        self.window = Window()
        self.now = 1000.0
        self.asked = 1  #: for how many messages so far
        self.requests = 1
        self.finished = 0
        self._used = 0

    def use(self, messages: int, seconds: float) -> Consumer:
        """So many, each of which takes so long."""
        for _ in range(messages):
            assert self.finished < self.asked, "it would never get another message"
            self.now += seconds
            self.finished += 1
            self._used += 1
            if self._used >= self.window.step:
                more = self.window.refill(self._used, self.now)
                assert more >= 0
                self.asked += more
                self.requests += more > 0
                self._used = 0
        return self

    @property
    def ahead(self) -> int:
        """What it holds at most."""
        return self.asked - self.finished


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (0.0, 500),
        (1 / 50_000, 500),
        (1 / 1024, 500),
        (1 / 512, 256),
        (1 / 128, 64),
        (1 / 64, 32),
        (1 / 8, 4),
        (1 / 4, 2),
        (1 / 2, 1),
        (1.0, 1),
        (60.0, 1),
    ],
)
def test_a_window_is_half_a_second_of_work(seconds: float, size: int) -> None:
    consumer = Consumer().use(2000, seconds)
    assert consumer.window.size == size
    assert consumer.ahead <= size


@pytest.mark.parametrize(
    ("messages", "size"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (512, 500)]
)
def test_a_fast_consumer_has_as_much_ahead_as_it_has_used(messages: int, size: int) -> None:
    assert Consumer().use(messages, 1 / 50_000).window.size == size


def test_the_first_message_says_nothing_about_the_pace() -> None:
    consumer = Consumer().use(1, 0.0)
    assert (consumer.window.size, consumer.ahead) == (1, 1)


def test_a_fast_consumer_asks_once_for_half_of_a_window() -> None:
    consumer = Consumer().use(1000, 1 / 50_000)
    before = consumer.requests
    consumer.use(10_000, 1 / 50_000)
    assert consumer.requests - before == 40


@pytest.mark.parametrize("seconds", [1 / 64, 1 / 8, 10.0])
def test_a_slow_consumer_asks_message_by_message(seconds: float) -> None:
    consumer = Consumer().use(100, seconds)
    assert consumer.window.step == 1


def test_a_consumer_that_becomes_slow_asks_for_nothing_until_it_holds_little() -> None:
    consumer = Consumer().use(1000, 1 / 50_000)
    held = consumer.ahead
    asked = consumer.asked
    consumer.use(held - 10, 1 / 8)
    assert consumer.window.size <= 16
    assert consumer.asked - asked <= 16
    assert consumer.use(50, 1 / 8).window.size == 4


def test_a_window_grows_again_after_a_pause() -> None:
    consumer = Consumer().use(1000, 1 / 50_000)
    for _ in range(20):
        consumer.use(1, 3600.0)
    consumer.use(1000, 1 / 50_000)
    assert consumer.window.size == 500


@pytest.mark.parametrize(("seconds", "size"), [(0.0, 500), (0.001, 500), (1 / 8, 4), (1.0, 1)])
@pytest.mark.parametrize("round_trip", [0.001, 0.3, 1.0, 5.0])
def test_the_time_that_a_consumer_waits_for_messages_is_no_work(seconds: float, size: int, round_trip: float) -> None:
    consumer = Consumer()
    for _ in range(2_000):
        consumer.now += round_trip
        consumer.window.waited(round_trip)
        consumer.use(1, seconds)
    assert consumer.window.size == pytest.approx(size, abs=1)


def test_messages_in_bursts_leave_a_window_no_larger_than_two_of_them() -> None:
    consumer = Consumer()
    for _ in range(50):
        consumer.use(1, 10.0).use(9, 0.0)
        assert consumer.window.size <= 20


@given(st.lists(st.tuples(st.integers(1, 600), st.sampled_from([0.0, 1e-5, 1e-3, 0.01, 0.1, 1.0, 100.0])), max_size=30))
def test_no_pace_starves_a_consumer_or_gives_it_more_than_the_limit(work: list[tuple[int, float]]) -> None:
    consumer = Consumer()
    for messages, seconds in work:
        consumer.use(messages, seconds)
        assert 1 <= consumer.window.step <= consumer.window.size <= 500
        assert 1 <= consumer.ahead <= consumer.window.size
