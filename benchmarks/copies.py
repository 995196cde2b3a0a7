"""A copy that follows a server: what it costs the clients of that server, and how fast it gets an image."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from benchmarks import modes
from benchmarks.programs import cpu_of
from benchmarks.report import Figure, beside
from sdk import AcknowledgeMode, ConnectionFactory

_TURNS: Final = 5
_WAIT: Final = 600.0
_SYNCHRONOUS: Final = 1000  #: sends whose times are measured


@contextmanager
def _copy(data: Path, url: str) -> Iterator[psutil.Process]:
    """``holdfast serve --follow`` in a process of its own."""
    command = [sys.executable, "-m", "broker_adapter.server.cli", "serve", "--data", str(data), "--follow", url]
    process = subprocess.Popen([*command, "--node", "bench"], stdout=subprocess.DEVNULL)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_copy(url: str, *, has_all: bool = True) -> None:
    """Wait until a copy has everything; or only its image, while more comes."""
    deadline = time.monotonic() + _WAIT
    with ConnectionFactory(url).create_connection() as connection:
        while True:
            found = connection.request("copies", {})
            for each in found["copies"]:
                if each["image"] is None and each["lsn"] and (each["lsn"] == found["lsn"] or not has_all):
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("the copy does not follow")
            time.sleep(0.05)


class _Lag:
    """Looks how far a copy is behind, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.most_ms = 0
        self._stopping = threading.Event()
        self._url = url
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Lag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        with ConnectionFactory(self._url).create_connection() as connection:
            while not self._stopping.wait(0.1):
                for each in connection.request("copies", {})["copies"]:
                    self.most_ms = max(self.most_ms, each["behind_ms"] or 0)


def end_to_end(url: str, name: str, messages: int) -> float:
    both = modes.together(url, name, messages, AcknowledgeMode.AUTO, "receive", "send")
    return messages / (max(times["ended"] for times in both.values()) - both["send"]["started"])


def times_of_sends(url: str, name: str, count: int) -> list[float]:
    """Milliseconds that synchronous sends took."""
    found = []
    with ConnectionFactory(url).create_connection() as connection, connection.create_session() as session:
        producer = session.create_producer(session.create_queue(name))
        for _ in range(count):
            began = time.perf_counter()
            producer.send("x" * modes.BODY_BYTES)
            found.append((time.perf_counter() - began) * 1000)
    return found


def _percentile(times: Sequence[float], part: float) -> float:
    return sorted(times)[int(len(times) * part)]


def _streams(directory: Path, messages: int) -> Iterator[Figure]:
    """AUTO end to end and synchronous sends, beside a server that nobody follows."""
    rates: dict[str, list[float]] = {"alone": [], "followed": []}
    costs: dict[str, list[float]] = {"alone": [], "followed": [], "copy": []}
    medians: dict[str, list[float]] = {"alone": [], "followed": []}
    with (
        modes.server(directory / "alone") as (alone, alone_process),
        modes.server(directory / "followed") as (followed, followed_process),
        _copy(directory / "copy", followed) as copy,
    ):
        _wait_for_copy(followed)
        servers = {"alone": (alone, alone_process), "followed": (followed, followed_process)}
        with _Lag(followed) as lag:
            for turn in range(_TURNS):
                for name, (url, process) in servers.items():
                    before, copied = cpu_of([process]), cpu_of([copy])
                    rates[name].append(end_to_end(url, f"stream {turn}", messages))
                    if name == "followed":
                        _wait_for_copy(url)
                        costs["copy"].append((cpu_of([copy]) - copied) / messages * 1e6)
                    costs[name].append((cpu_of([process]) - before) / messages * 1e6)
        for turn in range(_TURNS):
            for name, (url, _) in servers.items():
                medians[name].append(statistics.median(times_of_sends(url, f"sync {turn}", _SYNCHRONOUS // 5)))
    yield beside(
        *("end to end, AUTO, of a server with a copy", rates["followed"], rates["alone"], "messages/s"),
        "without a copy",
        f"us CPU a message: server {statistics.median(costs['followed']):.0f}, without a copy"
        f" {statistics.median(costs['alone']):.0f}, copy {statistics.median(costs['copy']):.0f}; at most"
        f" {lag.most_ms} ms behind; ",
        goal="at least 0.7; behind for less than 1 s",
        body_bytes=modes.BODY_BYTES,
        window=modes.WINDOW,
        producers=1,
        consumers=1,
    )
    yield beside(
        *("synchronous send, of a server with a copy", medians["followed"], medians["alone"], "ms", "without a copy"),
        body_bytes=modes.BODY_BYTES,
        producers=1,
    )


def _image(directory: Path, size: int) -> Figure:
    """An image of so many bytes under a load of synchronous sends, against a copy of the file."""
    messages = size // (modes.BODY_BYTES + 300)
    with modes.server(directory / "large") as (url, _):
        for part in range(10):
            modes.send(url, f"part {part}", messages // 10, AcknowledgeMode.AUTO)
        before = times_of_sends(url, "load", _SYNCHRONOUS)
        stopping, during = threading.Event(), list[float]()

        def load() -> None:
            while not stopping.is_set():
                during.extend(times_of_sends(url, "load", 50))

        thread = threading.Thread(target=load)
        began = time.perf_counter()
        with _copy(directory / "image", url):
            thread.start()
            _wait_for_copy(url, has_all=False)
            image = time.perf_counter() - began
            stopping.set()
            thread.join()
    file = directory / "large" / "data.mdb"
    began = time.perf_counter()
    shutil.copyfile(file, directory / "file")
    with open(directory / "file", "rb") as copied:
        os.fsync(copied.fileno())
    copy = time.perf_counter() - began
    bytes_ = file.stat().st_size
    (directory / "file").unlink()
    return Figure(
        name=f"image of {bytes_ / 2**30:.1f} GiB, under synchronous sends",
        value=bytes_ / image / 2**20,
        unit="MiB/s",
        yardstick=f"cp of the file {bytes_ / copy / 2**20:,.0f}",
        ratio=copy / image,
        goal="at least 0.3; p99 of sends at most twice",
        body_bytes=modes.BODY_BYTES,
        producers=1,
        note=f"sends, ms: p50 {_percentile(during, 0.5):.2f}, p99 {_percentile(during, 0.99):.2f}; before"
        f" {_percentile(before, 0.5):.2f} and {_percentile(before, 0.99):.2f}",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    yield from _streams(directory, 40_000 // share)
    yield _image(directory, 2 * 2**30 // share)
