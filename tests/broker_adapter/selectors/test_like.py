"""``LIKE``: against an evaluator that fills a table, and what a text may cost."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_adapter.selectors.like import CANDIDATE_STEPS, SHORT_TEXT, like

ENOUGH = 1_000_000_000


class CountingText(str):
    """A text that counts how often it is searched."""

    searches = 0

    def find(self, *arguments: object) -> int:  # type: ignore[override]
        self.searches += 1
        return super().find(*arguments)  # type: ignore[arg-type]


def by_table(pattern: str, text: str) -> bool:
    """Whether the pattern is like the text: which ends of the text each character of the pattern reaches."""
    reached = [True, *[False] * len(text)]
    for character in pattern:
        if character == "%":
            for index in range(len(text)):
                reached[index + 1] |= reached[index]
        else:
            fits = [character in ("_", each) for each in text]
            reached = [False, *(before and fit for before, fit in zip(reached[:-1], fits, strict=True))]
    return reached[-1]


@settings(max_examples=1000, deadline=None)
@example(pattern="%_%\n%", text="a\n")
@example(pattern="%a%_%", text="ba")
@example(pattern="%_%_%a_%_%b%__%", text="xxa__b__")
@given(pattern=st.text("ab_%\n", max_size=9), text=st.text("ab\n", max_size=9))
def test_a_short_text_is_like_what_the_table_says(pattern: str, text: str) -> None:
    assert like(pattern)(text, 0) is by_table(pattern, text)


def test_every_short_pattern_fits_the_texts_that_the_table_says() -> None:
    texts = ["".join(each) for size in range(5) for each in product("ab", repeat=size)]
    for size in range(6):
        for characters in product("ab_%", repeat=size):
            pattern = "".join(characters)
            fits = like(pattern)
            for text in texts:
                assert fits(text, 0) is by_table(pattern, text), (pattern, text)


@settings(max_examples=400, deadline=None)
@given(
    pattern=st.lists(st.sampled_from(["%", "_", "a", "b", "ab", "aba", "%_", "_a_", "__b"]), max_size=12).map("".join),
    unit=st.text("ab", min_size=1, max_size=5),
    ahead=st.text("ab", max_size=4),
    behind=st.text("ab", max_size=4),
)
def test_a_long_text_is_like_what_the_table_says(pattern: str, unit: str, ahead: str, behind: str) -> None:
    text = ahead + unit * (SHORT_TEXT // len(unit) + 20) + behind
    assert like(pattern)(text, ENOUGH) is by_table(pattern, text)


@pytest.mark.parametrize("length", range(SHORT_TEXT - 6, SHORT_TEXT + 8))
@pytest.mark.parametrize("pattern", ["%a_a%b", "a%_%a_b%_%__b", "%a%", "_%a_ab", "%ba_%", "%_b"])
def test_short_and_long_texts_do_not_differ(pattern: str, length: int) -> None:
    for text in ("a" * (length - 1) + "b", "ab" * (length // 2), "a" * (length // 2) + "b" * (length - length // 2)):
        assert like(pattern)(text, ENOUGH) is by_table(pattern, text)


@settings(max_examples=300, deadline=None)
@given(text=st.text("a!_%", max_size=5), pattern=st.text("a!_%", max_size=5))
def test_an_escape_takes_their_meaning_from_both_signs(text: str, pattern: str) -> None:
    escaped = "".join(f"!{each}" for each in pattern)
    assert like(escaped, "!")(text, 0) is (text == pattern)


@pytest.mark.parametrize(("pattern", "escape"), [("a!", "!"), ("%%", "%"), ("_", "_")])
def test_something_stands_behind_an_escape(pattern: str, escape: str) -> None:
    if pattern == "%%":
        assert like(pattern, escape)("%", 0) is True
        return
    with pytest.raises(ValueError, match="nothing stands behind"):
        like(pattern, escape)


# What it costs.

TEXT = "a" * 2_000_000


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("_" * 900, False),
        ("%" + "_" * 900, True),
        ("%" + "_" * 900 + "%", True),
        ("%" + "_" * 900 + "b%", False),
        ("%" + "_" * 900 + "a%", True),
        ("%b" + "_" * 900 + "%", False),
        ("%_" * 450, True),
        ("%a" * 450, True),
        ("%_a_" * 225 + "%b", False),
        ("%a" * 450 + "b%", False),
        ("_a" * 450 + "%", True),
        ("%" + "a_" * 450, True),
        ("%" + "a_" * 450 + "a%", True),
    ],
)
def test_a_pattern_costs_no_more_steps_than_pattern_and_text_have_characters(pattern: str, expected: bool) -> None:
    steps = len(pattern) + len(TEXT)
    assert like(pattern)(TEXT, steps) is expected


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=3), st.integers(0, 3)), max_size=6),
    unit=st.text("ab", min_size=1, max_size=5),
)
def test_only_signs_inside_of_a_part_cost_more_than_that(parts: list[tuple[int, str, int]], unit: str) -> None:
    pattern = "%".join("_" * before + core + "_" * after for before, core, after in parts)
    text = unit * 600
    assert like(pattern)(text, len(pattern) + len(text)) is by_table(pattern, text)


def test_a_part_that_nearly_fits_everywhere_ends_at_the_limit_of_steps() -> None:
    steps = 4_000_000
    text = CountingText(("a" * 100 + "b") * 20_000)
    assert like("%a" + "_a" * 449 + "_b%")(text, steps) is None
    assert 0 < text.searches <= steps // CANDIDATE_STEPS


def test_a_rare_run_makes_a_long_text_cheap() -> None:
    pattern = "%order_12345678_9%"
    assert like(pattern)(TEXT + "order-12345678-9" + TEXT, 2 * len(TEXT) + 200) is True
    assert like(pattern)(TEXT + "order-12345678-8" + TEXT, 2 * len(TEXT) + 200) is False


def test_the_limit_of_steps_holds_to_the_step() -> None:
    fits = like("%ab%")
    text = "a" * 1000
    assert fits(text, 1002) is False
    assert fits(text, 1001) is None
