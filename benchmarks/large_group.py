"""A group of servers with a large store: an image of it, and how soon a killed primary is in sync again."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

from benchmarks import copies, modes
from benchmarks.nodes import Group
from benchmarks.report import Figure
from sdk import AcknowledgeMode
from tests.interop.brokers.brokers import free_port

_FILLED: Final = 100_000  #: messages of one queue of the store
_RECORD_BYTES: Final = 300  #: of a message in the file, beside its body, about
_LOOK_SECONDS: Final = 0.002
_WAIT: Final = 1200.0


class _Readers:
    """For how long read transactions of a store are open.

    One is known by its thread and by the commit that it reads: while the store is written all the time, a thread that
    has read the same commit all along has done so in one transaction.
    """

    def __init__(self, env: lmdb.Environment) -> None:
        self.times: list[float] = []  #: seconds, of those that were open for longer than 10 ms
        self._env = env
        self._since: dict[str, float] = {}

    def look(self) -> None:
        """See which ones are open, and which no longer are."""
        now, since = time.perf_counter(), self._since
        lines = [" ".join(each.split()) for each in self._env.readers().splitlines()[1:]]
        self.times += [now - since[each] for each in since.keys() - set(lines) if now - since[each] > 0.01]
        self._since = {each: since.get(each, now) for each in lines if not each.endswith("-")}


def _image(group: Group, file: Path) -> Figure:
    """A second node joins under a load of synchronous sends."""
    during: list[float] = []
    before = copies.times_of_sends(group.url, "load", 1000)
    with lmdb.open(str(file.parent), readonly=True, max_dbs=64, max_readers=126) as env:
        readers = _Readers(env)
        with (
            copies.repeated(readers.look, _LOOK_SECONDS),
            copies.repeated(lambda: during.extend(copies.times_of_sends(group.url, "load", 50))),
        ):
            began = time.perf_counter()
            group.start("n2")
            group.wait_for(2, _WAIT)
            took = time.perf_counter() - began
    return copies.image_figure(
        *(file, took, before, during, "no read transaction open for 100 ms"),
        f"; longest read transaction {max(readers.times, default=0) * 1000:.0f} ms,"
        f" {sum(each > 0.1 for each in readers.times)} longer than 100 ms",
    )


def _returns(group: Group, file: Path, rounds: int) -> Figure:
    """A primary is killed under a load of synchronous sends, and started again once another one has taken over."""
    times = []
    with copies.repeated(lambda: copies.times_of_sends(group.url, "load", 200)):
        for _ in range(rounds):
            primary = group.wait_for(3, _WAIT)["primary"]
            group.processes[primary].send_signal(signal.SIGKILL)
            group.processes[primary].wait()
            while group.wait_for(1)["primary"] == primary or primary in group.status()["in_sync"]:
                time.sleep(0.1)
            began = time.perf_counter()
            group.start(primary)
            group.wait_for(3)
            times.append(time.perf_counter() - began)
    return Figure(
        name=f"a killed primary, {file.stat().st_size / 2**30:.1f} GiB, from its start until it is in sync",
        value=statistics.median(times),
        unit="s",
        goal="below 2 s",
        body_bytes=modes.BODY_BYTES,
        producers=1,
        note=f"p50 of {rounds}; most {max(times):.2f}",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them, with a store of 10 GiB; four times as much of the disk is needed.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    store = directory / "group" / "n1"
    parts = 10 * 2**30 // share // (modes.BODY_BYTES + _RECORD_BYTES) // _FILLED
    for part in range(parts):
        modes.send(f"embedded:{store}", f"part {part}", _FILLED, AcknowledgeMode.AUTO)
    with Group(directory / "group", 1) as group:
        for part in range(max(1, 10 // share)):  # the commits that a node may catch up with
            modes.send(group.url, f"tail {part}", _FILLED, AcknowledgeMode.AUTO)
        file = store / "data.mdb"
        group.ports.update(n2=free_port(), n3=free_port())
        yield _image(group, file)
        group.start("n3")
        group.wait_for(3, _WAIT)
        yield _returns(group, file, max(3, 10 // share))
