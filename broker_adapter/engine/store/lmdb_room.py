"""The room that a store in LMDB has: pages in its file that are free, and the disk behind it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from broker_adapter.engine.store.files import DATA
from broker_adapter.engine.store.lmdb_errors import code_of, free_bytes, no_room
from broker_adapter.engine.store.room import Figures, Room, room_of
from broker_adapter.settings import EngineSettings

#: Room beyond which it is not counted, beside that of two transactions.
_PLENTY_BYTES: Final = 64 * 1024 * 1024
#: What the file has beyond its last page on a disk that is filling up.
BALLAST_BYTES: Final = 16 * 1024 * 1024
#: The part of the largest file that records may take: free pages are scattered, and settling needs some as well.
_OF_LARGEST_FILE: Final = 0.8


def measured_room(env: Any, tables: Mapping[str, Any], path: Path, settings: EngineSettings) -> Room | None:
    """Return what messages may still take.

    Args:
        env: the environment of LMDB.
        tables: of it, by name.
        path: of the store.
        settings: the limits of the engine.

    Returns:
        None: more than is worth counting before the next check.
    """
    info = env.info()
    page = int(env.stat()["psize"])
    disk = os.statvfs(path)
    largest = _largest_file_bytes()
    limit, limit_name = min(
        (settings.max_store_bytes, "option max_store_bytes"),
        (int(largest * _OF_LARGEST_FILE), "the limit of the size of files, ulimit -f"),
    )
    figures = Figures(
        page,
        info["last_pgno"] + 1,
        info["last_pgno"] + 1,
        min(info["map_size"], largest) // page,
        limit // page,
        disk.f_bavail * disk.f_frsize // page,
        settings.min_free_disk_bytes // page,
        limit_name,
    )
    plenty = _PLENTY_BYTES + 2 * settings.max_transaction_bytes
    if room_of(figures, plenty, str(path)) is None:
        return None
    if (figures.free_disk_pages - figures.min_free_disk_pages) * page < plenty:
        _keep_ballast(path, figures)
    return room_of(attrs.evolve(figures, used_pages=used_pages(env, tables)), plenty, str(path))


def _largest_file_bytes() -> int:
    """The largest size that this process may give to a file."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def can_grow(path: Path) -> bool:
    """Return whether a store has room for :data:`BALLAST_BYTES` more; the disk gives them to its file then.

    So quotas and limits of the size of files are found as well, and no other process can take the room before it is
    used.
    """
    if free_bytes(path) < BALLAST_BYTES:
        return False
    try:
        with open(path / DATA, "r+b") as data:
            os.posix_fallocate(data.fileno(), os.fstat(data.fileno()).st_size, BALLAST_BYTES)
    except OSError as error:
        return no_room(path, code_of(error)) is None
    return True


def _keep_ballast(path: Path, figures: Figures) -> None:
    """On a disk that is filling up, have the file reach beyond its last page, so that settling can always go on."""
    wanted = figures.file_pages * figures.page_bytes + BALLAST_BYTES
    with suppress(OSError), open(path / DATA, "r+b") as data:
        if os.fstat(data.fileno()).st_size < wanted:
            os.posix_fallocate(data.fileno(), figures.file_pages * figures.page_bytes, BALLAST_BYTES)


def used_pages(env: Any, tables: Mapping[str, Any]) -> int:
    """The pages that hold records."""
    pages = 0
    with env.begin() as txn:
        for handle in tables.values():
            stat = txn.stat(db=handle)
            pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages
