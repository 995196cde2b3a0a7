"""The walk counts what was entered, in every thread, and nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks import interpreter, walk
from sdk.checks import check_timeout


def test_calls_of_the_project_are_counted_in_this_thread_and_in_new_ones() -> None:
    counter = walk.Counter()

    def act() -> None:
        check_timeout(1)
        thread = threading.Thread(target=check_timeout, args=(2,))
        thread.start()
        thread.join()

    with counter.installed():
        walks, threads = counter.count(act)
    assert threads == 1
    assert walks["client"].functions == {(str(walk.ROOT / "sdk" / "checks.py"), "check_timeout")}
    assert (walks["client"].calls, walks["client"].files, walks["client"].changes) == (2, 1, 2)


def test_nothing_is_counted_between_counts() -> None:
    counter = walk.Counter()
    with counter.installed():
        check_timeout(1)
        walks, threads = counter.count(lambda: None)
    assert (walks, threads) == ({}, 0)


def test_what_fails_is_not_hidden() -> None:
    counter = walk.Counter()
    with counter.installed(), pytest.raises(ValueError, match="timeout=-1"):
        counter.count(lambda: check_timeout(-1))


def test_without_history_there_is_nothing_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "OLD", "none-such")
    assert walk.compare(tmp_path) is None


def test_the_interpreter_is_named_with_its_build() -> None:
    assert interpreter.description().startswith("CPython 3.")
    assert "--enable-optimizations" in interpreter.description()
    assert 1 < interpreter.byte_code_ns() < 100_000
