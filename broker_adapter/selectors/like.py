"""Patterns of ``LIKE`` in selectors: ``_`` stands for any character, ``%`` for any number of them; pure.

Theory of operation
    A pattern falls into *parts* at its ``%``.  The first part is anchored at the start of the text and the last at its
    end; each part between them is searched for from left to right.  The first place that fits is as good as any later
    one, so no part is searched for twice and nothing is tried again.

    A part between two ``%`` is cut down before it is searched for.  A part of ``_`` alone needs no search: it only asks
    for that many more characters ahead of the next part.  ``_`` at either end of a part move its place, and what is
    left (the *core*) begins and ends with a literal character.  A core without ``_`` is found by ``str.find``, in time
    linear in pattern and text.

    A core with ``_`` inside is found by its longest literal run: ``str.find`` gives the places of the run, and the core
    is compared at each.  A text in which the run is frequent and the core is not, makes that cost the product of both
    lengths.  So for long texts *steps* are counted, about one for each character that is passed or compared, and the
    search ends without a result at a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

#: Longest text, in characters, that is searched without counting steps.  Its cost is limited by its length and the
#: length of the pattern.
SHORT_TEXT: Final = 512
#: Steps that it costs to examine one candidate, beside one for each character of the core.
CANDIDATE_STEPS: Final = 64


#: Part of a pattern; None stands for ``_``.
_Characters = list[str | None]


class _Part(NamedTuple):
    """What stands between two ``%``, where it is more than ``_`` alone."""

    before: int  #: how many ``_`` are ahead of its core, those of parts without one included
    core: str | re.Pattern[str]  #: what stands between its first and its last literal character
    length: int  #: of the core
    run: str  #: the longest literal in the core
    run_at: int  #: where in the core the run begins
    after: int  #: how many ``_`` it ends with


#: Whether a text fits, at a cost of so many steps; None where these were not enough to tell.
Fits = Callable[[str, int], bool | None]


def like(pattern: str, escape: str | None = None) -> Fits:
    """A function that says whether a pattern fits the whole of a text.

    Args:
        pattern: the text behind ``LIKE``.
        escape: the character that takes their meaning from ``_`` and ``%``; None: there is none.

    Returns:
        A function of the text and of the steps that it may cost; any thread may call it.  It returns None where so many
        steps were not enough to tell.  Texts of up to ``SHORT_TEXT`` characters cost none.

    Raises:
        ValueError: nothing stands behind the last escape character.
    """
    parts = _split(pattern, escape)
    if len(parts) == 1:
        whole = _compiled(parts[0])
        return lambda text, steps: whole.fullmatch(text) is not None
    middle: list[_Part] = []
    any_ones = 0
    for part in parts[1:-1]:
        if set(part) - {None}:
            middle.append(_part([*[None] * any_ones, *part]))
            any_ones = 0
        else:
            any_ones += len(part)
    return _fitting(parts[0], tuple(middle), any_ones, parts[-1])


def _fitting(first: _Characters, middle: tuple[_Part, ...], left_over: int, last: _Characters) -> Fits:
    """The parts of a pattern put together; ``left_over`` characters have to be ahead of the last one."""
    head, head_length, tail, tail_length = _core(first), len(first), _core(last), len(last)
    # In short texts: characters ahead of a part, what finds it, its length with the characters behind.
    by_text = [(part.before, part.core, part.length + part.after) for part in middle if isinstance(part.core, str)]
    by_search = [(part.before, _searching(part.core), part.length + part.after) for part in middle]
    has_gaps = len(by_text) < len(middle)

    def ends(text: str, stop: int) -> bool:
        return text.endswith(tail) if isinstance(tail, str) else tail.match(text, stop) is not None

    def fits(text: str, steps: int) -> bool | None:
        if head and not (text.startswith(head) if isinstance(head, str) else head.match(text)):
            return False
        stop = len(text) - tail_length
        end = head_length
        if stop > SHORT_TEXT:
            return ends(text, stop) and _fits_long(middle, text, end, stop - left_over, steps)
        if has_gaps:
            for before, search, length in by_search:
                found = search(text, end + before, stop)
                if found is None:
                    return False
                end = found.start() + length
        else:
            for before, run, length in by_text:
                place = text.find(run, end + before, stop)
                if place < 0:
                    return False
                end = place + length
        return end + left_over <= stop and (not tail or ends(text, stop))

    return fits


def _fits_long(middle: tuple[_Part, ...], text: str, end: int, stop: int, steps: int) -> bool | None:
    """Return whether these parts are found in the text from ``end`` to ``stop``; None where it takes more steps to
    tell.
    """
    for before, core, length, run, run_at, after in middle:
        start = end + before
        behind = length - run_at - len(run)
        while True:
            place = text.find(run, start + run_at, stop - behind)
            steps -= max((place if place >= 0 else stop) - start, 0) + len(run)
            if steps < 0:
                return None
            if place < 0:
                return False
            start = place - run_at
            if isinstance(core, str):
                break
            steps -= CANDIDATE_STEPS + length
            if steps < 0:
                return None
            if core.match(text, start) is not None:
                break
            start += 1
        end = start + length + after
    return end <= stop


def _split(pattern: str, escape: str | None) -> list[_Characters]:
    """The parts between ``%``, as characters; None stands for ``_``."""
    parts: list[_Characters] = [[]]
    escaped = False
    for character in pattern:
        if escaped or character not in ("%", "_", escape):
            parts[-1].append(character)
            escaped = False
        elif character == escape:
            escaped = True
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None)
    if escaped:
        raise ValueError("nothing stands behind the last escape character")
    return parts


def _compiled(part: _Characters) -> re.Pattern[str]:
    """All of its matches have the same length, so at one place it is compared once, from left to right."""
    return re.compile("".join("." if each is None else re.escape(each) for each in part), re.DOTALL)


def _searching(core: str | re.Pattern[str]) -> Callable[[str, int, int], re.Match[str] | None]:
    return (re.compile(re.escape(core)) if isinstance(core, str) else core).search


def _core(part: _Characters) -> str | re.Pattern[str]:
    """Return what is compared with a text at one place: by itself where there is no ``_`` in it."""
    text = "".join(each for each in part if each is not None)
    return text if len(text) == len(part) else _compiled(part)


def _part(part: _Characters) -> _Part:
    literals = [index for index, each in enumerate(part) if each is not None]
    before, after = literals[0], len(part) - 1 - literals[-1]
    core = part[before : len(part) - after]
    runs = [(0, "")]
    for index, each in enumerate(core):
        if each is None:
            runs.append((index + 1, ""))
        else:
            at, run = runs[-1]
            runs[-1] = at, run + each
    run_at, run = max(runs, key=lambda each: len(each[1]))
    return _Part(before, _core(core), len(core), run, run_at, after)
