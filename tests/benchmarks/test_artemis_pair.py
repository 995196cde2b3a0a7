"""What the benchmark says of what clients saw over kills; no broker runs."""

from __future__ import annotations

import pytest

from benchmarks.artemis_pair import Seen, judged


def seen() -> Seen:
    """Four messages; the primary is killed at 2.0, and has ended at 2.1, as message 1 is under way."""
    return Seen(
        sent={0: 1.0, 1: 2.0, 2: 2.5, 3: 3.0},
        confirmed={0: 1.1, 1: 3.9, 2: 4.1, 3: 4.2},
        arrived=[(0, 1.1), (1, 4.0), (2, 4.2), (3, 4.3)],
        acknowledged={0: 1.2, 1: 4.1, 2: 4.25, 3: 4.4},
        kills=[(2.0, 2.1)],
    )


def test_a_takeover_lasts_from_the_signal_to_the_first_message_that_was_sent_after_the_kill() -> None:
    verdict = judged(seen())
    assert (verdict.lost, verdict.doubled) == ([], [])
    assert verdict.takeovers == [pytest.approx(2.2)]


def test_what_was_confirmed_and_never_came_is_lost() -> None:
    found = seen()
    found.arrived.remove((1, 4.0))
    assert judged(found).lost == [1]


def test_what_was_never_confirmed_and_never_came_is_not_lost() -> None:
    found = seen()
    found.arrived.remove((1, 4.0))
    del found.confirmed[1]
    assert judged(found).lost == []


def test_what_comes_again_after_its_acknowledgement_was_confirmed_is_doubled() -> None:
    found = seen()
    found.arrived.append((0, 4.5))
    assert judged(found).doubled == [0]


def test_what_comes_again_before_its_acknowledgement_was_confirmed_is_not_doubled() -> None:
    found = seen()
    found.arrived.insert(1, (0, 1.15))
    assert judged(found).doubled == []


def test_a_kill_after_which_nothing_comes_is_an_error() -> None:
    found = seen()
    found.kills.append((5.0, 5.1))
    with pytest.raises(ValueError, match="nothing came after a kill"):
        judged(found)
