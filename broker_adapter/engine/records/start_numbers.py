"""The records of an engine's starts: the number of each, and which of them are remembered.  Pure.

Theory of operation
    The records of the starts ("runs") sort by their number, and each start has the next number.  So a number between
    two records that none has is that of a record that was lost: damaged, and moved into quarantine by a repair.  The
    store also notes the next number, in the same commit as the record.  Else the number of a last record that is lost
    would be given a second time, and no check would find that one is missing.

    A note that cannot be trusted does not say how many were given.  Then numbers are skipped, as if one were missing.
    Where the note is missing, the next number follows from the last record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from broker_adapter.engine.records.layout import NEXT_RUN, RUN_PREFIX, decode_meta, unpack_message_key
from broker_adapter.errors import StoreCorruptException

#: Starts of the engine that are remembered: so many, or less where they have more bytes, but always the last few.
KEPT_RUNS: Final = 1000
KEPT_RUN_BYTES: Final = 1024 * 1024
ALWAYS_KEPT_RUNS: Final = 32
#: Numbers of starts that are skipped where it is not known which ones were given.
SKIPPED_RUNS: Final = 1 << 16


class Next(NamedTuple):
    """The number of the next start."""

    number: int
    is_sure: bool  #: False: the note of it is damaged


def number_of(key: bytes) -> int:
    """The number of a start whose record has this key."""
    number: int = unpack_message_key(key[len(RUN_PREFIX) :])[0]
    return number


def next_run(last: int, noted: bytes | None) -> Next:
    """The number of the next start: none that was given before.

    Args:
        last: the highest number that a record has; 0: there is none.
        noted: the record of the next number, as it is; None: there is none.
    """
    if noted is None:
        return Next(last + 1, True)
    try:
        number = decode_meta(NEXT_RUN, noted)
    except (StoreCorruptException, ValueError, TypeError):
        number = None
    if type(number) is not int:
        return Next(last + 1 + SKIPPED_RUNS, False)
    return Next(max(number, last + 1), True)


def with_gaps(found: Iterable[tuple[int, str]], noted: bytes | None) -> Iterator[str]:
    """The starts in order; empty in place of one or more that are missing.

    Args:
        found: (number, start) of each record, in order.
        noted: the record of the next number, as it is; None: there is none.
    """
    last = 0
    for number, run in found:
        if last and number != last + 1:
            yield ""
        yield run
        last = number
    if next_run(last, noted).number != last + 1:
        yield ""


def superfluous(sizes: Sequence[int]) -> int:
    """Return how many of the oldest records of starts, with these sizes, have to go for another one."""
    most_bytes, kept = KEPT_RUN_BYTES, 0
    for size in reversed(sizes):
        most_bytes -= size
        if kept + 1 >= KEPT_RUNS or (most_bytes < 0 and kept + 1 >= ALWAYS_KEPT_RUNS):
            break
        kept += 1
    return len(sizes) - kept
