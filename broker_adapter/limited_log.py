"""Warnings that may come often: of each kind a few a minute are written, and then how many more there were."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Final

#: Warnings of a kind that are written in a period.
RECORDS: Final = 20
#: Length of a period, in seconds; it begins with the first warning of a kind.
PERIOD_SECONDS: Final = 60.0
#: Kinds that are told apart in a period; those beyond are one kind.
MAX_KINDS: Final = 10_000


class _Period:
    """What there was of a kind since its first warning."""

    __slots__ = ("arguments", "began", "count", "more", "text")

    def __init__(self, began: float) -> None:
        self.began = began
        self.count = 0
        self.more = 0  #: warnings that were not written
        self.text = ""  #: of the last one of these
        self.arguments: tuple[object, ...] = ()


class LimitedLog:
    """Writes warnings, and counts those that it does not write.  For one thread at a time.

    Args:
        log: gets the warnings.
        records: how many of a kind are written in a period.
        clock: returns seconds, and is never set back.

    Attributes:
        periods: the kinds of which something was written, by kind, those that began first ahead.
    """

    def __init__(
        self, log: logging.Logger, records: int = RECORDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._records = records
        self._clock = clock
        self.periods: dict[Hashable, _Period] = {}

    def __repr__(self) -> str:
        return f"<LimitedLog {list(self.periods)}>"

    def write(self, kind: Hashable, text: str, *arguments: object, records: int | None = None) -> None:
        """Log a warning, unless there were too many of its kind.

        Args:
            kind: tells apart what is counted together.
            text: the warning, with the places of the arguments.
            arguments: what stands there.
            records: how many of this kind are written in a period; None: as many as of the others.
        """
        self.report()
        period = self.periods.get(kind)
        if period is None:
            if len(self.periods) >= MAX_KINDS:
                kind = None
            period = self.periods.setdefault(kind, _Period(self._clock()))
        period.count += 1
        if period.count <= (self._records if records is None else records):
            self._log.warning(text, *arguments)
        else:
            period.more += 1
            period.text, period.arguments = text, arguments

    def report(self) -> None:
        """Log how many warnings were not written in the periods that are over.  To be called now and then."""
        periods = self.periods
        while periods:
            kind, period = next(iter(periods.items()))
            if self._clock() - period.began < PERIOD_SECONDS:
                return
            del periods[kind]
            if period.more:
                last = period.text.removeprefix("! ")
                self._log.warning(
                    f"! %d more within {PERIOD_SECONDS:g} s, the last one: {last}", period.more, *period.arguments
                )
