"""How much a store on disk can still take, so that what is decided can be written.  Pure: the figures are passed in.

Theory of operation
    A store is a file of pages, mapped into memory.  A commit writes a new copy of each page that it changes, into pages
    that were free or at the end of the file; a message longer than half a page needs pages of its own, one behind
    another.  The pages that earlier commits have freed (*reusable*) serve for the former; whether there is a run of
    them that is long enough for the latter is not known, so these are counted against the end of the file as well.

    A part of the store and of the disk is never given to messages: settling needs room, too.  A commit that ends as
    much as it sends may borrow from it, since the pages that it frees can be used by the next commits only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

#: Longest record that stands in a page with others, in bytes of a page of 4,096.
_LONGEST_IN_PAGE: Final = 2000
#: Bytes of a record beside its value: key, checksums, place in the page.
_RECORD_BYTES: Final = 48
#: Bytes of an entry, with its place in the page, and the free space that a page has on average.
_ENTRY_BYTES: Final = 96
#: Part of the store that is kept for settling.
RESERVE: Final = 1 / 16
#: Part of what is kept for settling that commits may borrow before the next check, and that they leave in any case.
_LENT: Final = 1 / 4
_NEVER_LENT: Final = 1 / 2
#: Pages that they may borrow where something else than room is lacking.
_LENT_ANYWAY: Final = 1 << 20
#: Bytes by which a message that is sent may be longer than the one that it is lent for: its numbers grow.
_LONGER_BYTES: Final = 32
#: Pages that commits need beside those of the records: what they change is written to new pages.
_MARGIN_PAGES: Final = 64


@attrs.frozen
class Figures:
    """What is measured of a store.  In pages, but for ``page_bytes``."""

    page_bytes: int
    file_pages: int  #: up to the last one that was ever used
    used_pages: int  #: that hold records
    map_pages: int  #: most that the file can have
    limit_pages: int  #: most that records may take
    free_disk_pages: int
    min_free_disk_pages: int  #: that producers must leave (option min_free_disk_bytes)
    limit_name: str = "option max_store_bytes"  #: what sets ``limit_pages``


@attrs.define
class Room:
    """What messages may still take, in pages; it shrinks as they do."""

    single_pages: float
    run_pages: float
    page_bytes: int
    reason: str
    #: what may be lent, of the pages that are kept for settling
    spare_single_pages: float = 0.0
    spare_run_pages: float = 0.0

    def take(self, size: int, entries: int) -> bool:
        """Take the room for a message of so many bytes, that so many queues hold; returns False where there is none."""
        singles, runs = self._pages(size, entries)
        if singles > self.single_pages or runs > self.run_pages:
            return False
        self.single_pages -= singles + runs  # what a run takes, single pages cannot have
        self.run_pages -= runs
        return True

    def _pages(self, size: int, entries: int) -> tuple[float, int]:
        """Return the single pages and the consecutive pages that a message needs; ``size`` 0: only its entries."""
        singles = entries * _ENTRY_BYTES / self.page_bytes
        if size > _LONGEST_IN_PAGE:
            return singles, -(-(size + _RECORD_BYTES) // self.page_bytes)
        return singles + (size + _RECORD_BYTES if size else 0) / self.page_bytes, 0

    def lent(self, ended: Iterable[tuple[int, int]]) -> Room:
        """The room of a commit that ends these messages, of (bytes, queues) each; see ``repaid``."""
        singles, runs = 0.0, 0
        for size, entries in ended:
            of_message = self._pages(size + _LONGER_BYTES if size else 0, entries)
            singles += of_message[0] + of_message[1]
            runs += of_message[1]
        singles, runs = min(singles, self.spare_single_pages), int(min(runs, self.spare_run_pages))
        return attrs.evolve(
            self,
            single_pages=self.single_pages + singles,
            run_pages=self.run_pages + runs,
            spare_single_pages=self.spare_single_pages - singles,
            spare_run_pages=self.spare_run_pages - runs,
        )

    def repaid(self, before: Room) -> Room:
        """The room for all others, where this is left of what was lent from ``before``."""
        singles = max(0.0, self.single_pages - before.single_pages)
        runs = max(0.0, self.run_pages - before.run_pages)
        return attrs.evolve(
            self,
            single_pages=self.single_pages - singles,
            run_pages=self.run_pages - runs,
            spare_single_pages=self.spare_single_pages + singles,
            spare_run_pages=self.spare_run_pages + runs,
        )

    def taken(self, messages: Iterable[tuple[int, int]]) -> Room | None:
        """The room that is left behind these messages, of (bytes, queues) each; None where they do not all fit."""
        left = attrs.evolve(self)
        return left if all(left.take(size, entries) for size, entries in messages) else None

    @property
    def is_used_up(self) -> bool:
        """Whether not even a small message can be taken."""
        return self.single_pages < 1


def nothing_left(reason: str) -> Room:
    """No room, for a reason beside the figures; commits may end as much as they send."""
    return Room(0, 0, 4096, reason, spare_single_pages=_LENT_ANYWAY, spare_run_pages=_LENT_ANYWAY)


def room_of(figures: Figures, plenty_bytes: int, path: str) -> Room | None:
    """The room that a store has; None: more than is worth counting.

    Args:
        figures: of the store.
        plenty_bytes: more than can be taken before the next check.
        path: of the store, for the reason.
    """
    page = figures.page_bytes
    plenty = plenty_bytes // page
    store = int(figures.limit_pages * (1 - RESERVE)) - figures.used_pages
    disk = figures.free_disk_pages - figures.min_free_disk_pages
    end = figures.map_pages - figures.file_pages
    if min(int(figures.limit_pages * (1 - RESERVE)) - figures.file_pages, disk, end) > plenty:
        return None
    reusable = max(0, figures.file_pages - figures.used_pages)
    # Pages that are reused need no more of the disk.
    singles = min(store, reusable + max(0, min(disk, end))) - _MARGIN_PAGES
    runs = min(store, end, disk)
    if figures.free_disk_pages * 2 > figures.min_free_disk_pages:
        # Probably there are runs among the free pages; if not, a part of the disk's reserve makes up for it.
        runs = min(store, end, max(disk, reusable // 2))
    singles, runs = max(0, singles), max(0, runs)
    kept = figures.limit_pages * RESERVE
    lent = min(kept * _LENT, figures.limit_pages - kept * _NEVER_LENT - figures.used_pages)
    spare_singles = (reusable + max(0, min(figures.free_disk_pages, end)) - singles - _MARGIN_PAGES) * _LENT
    spare_runs = (min(figures.free_disk_pages, end) - runs) * _LENT
    scarcest = min(store, disk, end)
    if scarcest == store:
        reason = (
            f"the store in {path!r} is full: {figures.used_pages * page} bytes of {figures.limit_pages * page}"
            f" ({figures.limit_name})"
        )
    elif scarcest == disk:
        reason = (
            f"the disk of {path!r} has {figures.free_disk_pages * page} bytes free, less than"
            f" {figures.min_free_disk_pages * page} and what is to be written (option min_free_disk_bytes)"
        )
    else:
        reason = (
            f"the free pages of the store in {path!r} are too scattered: {reusable * page} bytes; stop it and run:"
            f" holdfast compact {path!r}"
        )
    return Room(
        *(singles, runs, page, reason),
        spare_single_pages=max(0.0, min(lent, spare_singles)),
        spare_run_pages=max(0.0, min(lent, spare_runs)),
    )
