"""What is told of a listener's exception."""

from __future__ import annotations

import pytest

from ack_modes import Failure
from ack_modes.outcome import MAX_REASON_BYTES


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no room"), "ValueError: no room"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (SilentError(), "SilentError"),
        (ValueError("\ud800"), "ValueError: ?"),
    ],
)
def test_a_failure_names_the_type_and_the_text(error: BaseException, reason: str) -> None:
    assert Failure.of(error) == Failure(reason)


@pytest.mark.parametrize("text", ["x", "é", "\U0001f600"])
def test_a_long_text_is_cut_between_two_characters(text: str) -> None:
    reason = Failure.of(ValueError(text * 5_000)).reason
    assert MAX_REASON_BYTES - 4 < len(reason.encode()) <= MAX_REASON_BYTES
    assert ("ValueError: " + text * 5_000).startswith(reason)
