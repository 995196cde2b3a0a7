"""A copy that follows a server: what it costs the clients of that server, and how fast it gets an image."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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


@contextmanager
def repeated(work: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Do something again and again in a thread, with a pause of so many seconds, until the block ends."""
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(pause):
            work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


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
        behind_ms = [0]

        def look() -> None:
            behind_ms.extend(each["behind_ms"] or 0 for each in connection.request("copies", {})["copies"])

        with ConnectionFactory(followed).create_connection() as connection, repeated(look, 0.1):
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
        f" {max(behind_ms)} ms behind; ",
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
        during: list[float] = []
        began = time.perf_counter()
        with (
            _copy(directory / "image", url),
            repeated(lambda: during.extend(times_of_sends(url, "load", 50))),
        ):
            _wait_for_copy(url, has_all=False)
            took = time.perf_counter() - began
    return image_figure(directory / "large" / "data.mdb", took, before, during, "p99 of sends at most twice")


def image_figure(
    file: Path, took: float, before: Sequence[float], during: Sequence[float], goal: str, note: str = ""
) -> Figure:
    """An image under a load of synchronous sends, against ``cp`` of the file.

    Args:
        file: of the server; a copy of it is made beside, and removed.
        took: seconds of the image.
        before: milliseconds of sends without an image.
        during: those of sends meanwhile.
        goal: beside that of the ratio.
        note: beside that of the sends.
    """
    copy, size = file.with_suffix(".copied"), file.stat().st_size
    began = time.perf_counter()
    shutil.copyfile(file, copy)
    with open(copy, "rb") as copied:
        os.fsync(copied.fileno())
    seconds = time.perf_counter() - began
    copy.unlink()
    return Figure(
        name=f"image of {size / 2**30:.1f} GiB, under synchronous sends",
        value=size / took / 2**20,
        unit="MiB/s",
        yardstick=f"cp of the file {size / seconds / 2**20:,.0f}",
        ratio=seconds / took,
        goal=f"at least 0.3; {goal}",
        body_bytes=modes.BODY_BYTES,
        producers=1,
        note=f"sends, ms: p50 {_percentile(during, 0.5):.2f}, p99 {_percentile(during, 0.99):.2f}; before"
        f" {_percentile(before, 0.5):.2f} and {_percentile(before, 0.99):.2f}{note}",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    yield from _streams(directory, 40_000 // share)
    yield _image(directory, 2 * 2**30 // share)
