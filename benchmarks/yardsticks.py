"""What the machine itself can do: LMDB without an engine around it."""

from __future__ import annotations

import statistics
import struct
import time
from pathlib import Path

import lmdb

_key = struct.Struct(">Q").pack


def lmdb_loop(path: Path, body: bytes, messages: int, batch: int) -> float:
    """Messages/s of a raw loop: put message and entry, commit; delete both, commit.  Every commit synced."""
    env = lmdb.open(str(path), map_size=1 << 32, max_dbs=2)
    bodies, entries = env.open_db(b"messages"), env.open_db(b"entries")
    started = time.perf_counter()
    for first in range(0, messages, batch):
        keys = [_key(number) for number in range(first, first + batch)]
        with env.begin(write=True) as txn:
            for key in keys:
                txn.put(key, body, db=bodies)
                txn.put(key, key, db=entries)
        with env.begin(write=True) as txn:
            for key in keys:
                txn.delete(key, db=entries)
                txn.delete(key, db=bodies)
    rate = messages / (time.perf_counter() - started)
    env.close()
    return rate


def lmdb_commit_p50(path: Path, body: bytes, commits: int) -> float:
    """Median seconds of one synced commit of one message and its entry."""
    env = lmdb.open(str(path), map_size=1 << 32, max_dbs=2)
    bodies, entries = env.open_db(b"messages"), env.open_db(b"entries")
    seconds = []
    for number in range(commits):
        started = time.perf_counter()
        with env.begin(write=True) as txn:
            key = _key(number)
            txn.put(key, body, db=bodies)
            txn.put(key, key, db=entries)
        seconds.append(time.perf_counter() - started)
    env.close()
    return statistics.median(seconds)
