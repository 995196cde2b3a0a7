"""Parts of texts for people."""

from __future__ import annotations

import pytest

from broker_adapter.wording import counted, in_seconds, most_similar, why_unencodable


def test_one_is_singular_and_every_other_number_is_plural() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    verb = ("is", "are")
    assert [counted(number, "consumer", verb) for number in (1, 2)] == ["1 consumer is", "2 consumers are"]


def test_seconds_are_written_without_noise() -> None:
    durations = (0.299998, 0.999991, 6.0, 1.25, 1_234_567.0, 0.0004, 0.0)
    assert [in_seconds(each) for each in durations] == ["0.3 s", "1 s", "6 s", "1.25 s", "1234567 s", "0.0004 s", "0 s"]


def test_a_text_that_is_not_valid_unicode_is_shown() -> None:
    with pytest.raises(UnicodeEncodeError) as raised:
        "a\ud800".encode()
    assert why_unencodable(raised.value) == "'a\\ud800' is not valid Unicode"
    assert why_unencodable(ValueError("too deep")) == "too deep"


def test_the_most_similar_name_is_told_where_one_is_similar() -> None:
    assert most_similar("prefech", ["queue", "prefetch"]) == "; the most similar one is 'prefetch'"
    assert most_similar("colour", ["queue", "prefetch"]) == ""
