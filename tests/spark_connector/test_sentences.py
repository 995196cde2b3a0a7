"""In a worker of Spark an error has its sentence first; elsewhere nothing is done to it.  No Spark runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from spark_connector.sentences import HIDE, sentence_first


@sentence_first
class Reader:
    def partitions(self) -> list[int]:
        raise ValueError("no such thing")

    def read(self, first: int, last: int = 3) -> Iterator[int]:
        yield from range(first, last)
        raise ValueError("no such row")

    def commit(self, end: int) -> int:
        return end

    def other(self) -> None:
        raise ValueError("not called by Spark")


@sentence_first
class Special(Reader):
    def partitions(self) -> list[int]:
        return super().partitions()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE, "")  # so that it is removed in the end
    monkeypatch.delenv(HIDE)
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")


def notes_of(act: Callable[[], object]) -> list[str]:
    with pytest.raises(ValueError, match="no such") as caught:
        act()
    return getattr(caught.value, "__notes__", [])


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    "act", [Reader().partitions, Special().partitions, lambda: list(Reader().read(1))], ids=["call", "super", "rows"]
)
def test_the_trace_follows_the_sentence_once(act: Callable[[], object]) -> None:
    (note,) = notes_of(act)
    assert note.startswith("\nTraceback (most recent call last):\n")
    assert "test_sentences.py" in note
    assert note.splitlines()[-1].startswith("ValueError: no such ")
    assert os.environ[HIDE]


def test_in_the_drivers_process_an_error_stays_as_it_is() -> None:
    assert notes_of(Reader().partitions) == []
    assert HIDE not in os.environ


@pytest.mark.usefixtures("worker")
def test_what_goes_well_and_what_spark_does_not_call_stay_as_they_are() -> None:
    assert Reader().commit(end=7) == 7
    rows = Reader().read(1, last=3)
    assert [next(rows), next(rows)] == [1, 2]
    with pytest.raises(ValueError, match="not called by Spark") as caught:
        Reader().other()
    assert not hasattr(caught.value, "__notes__")
    assert HIDE not in os.environ
