"""Parts of texts for people."""

from __future__ import annotations

from broker_adapter.wording import counted


def test_one_is_singular_and_every_other_number_is_plural() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    verb = ("is", "are")
    assert [counted(number, "consumer", verb) for number in (1, 2)] == ["1 consumer is", "2 consumers are"]
