"""Programs that benchmarks start and ask, and what is said where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks import geode, peers, programs
from benchmarks.programs import Failed, Program, answer_of, cpu_of

_ECHO = """
import sys
print("a record of a log")
print("done ready", flush=True)
for line in sys.stdin:
    if line == "end\\n":
        sys.exit("it ends")
    print("done", line, flush=True)
"""


@pytest.fixture
def echo() -> Iterator[Program]:
    program = Program("echo", [sys.executable, "-c", _ECHO])
    try:
        yield program
    finally:
        program.stop()


def test_a_program_is_asked_line_by_line(echo: Program) -> None:
    assert echo.answer() == ["ready"]
    assert echo.ask("send", 3) == ["send", "3"]
    for _ in range(10_000):  # the system counts in hundredths of a second
        if cpu_of([echo.process]) > 0:
            break
        echo.ask("send", 3)
    assert cpu_of([echo.process]) > 0


def test_a_program_that_has_ended_is_a_failure_that_says_what_it_said(echo: Program) -> None:
    echo.answer()
    with pytest.raises(Failed, match="echo has ended:\nit ends"):
        echo.ask("end")
    with pytest.raises(Failed, match="echo has ended"):
        echo.ask("again")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("done 40404 1.15.1\n", ["40404", "1.15.1"]),
        ("done\n", []),
        ("\n", None),
        ("[warn 2026/11/26] done\n", None),
        ("donealready\n", None),
    ],
)
def test_only_lines_that_begin_with_done_are_answers(line: str, answer: list[str] | None) -> None:
    assert answer_of(line) == answer


@pytest.mark.parametrize("module", [geode, peers])
def test_what_is_missing_is_said_in_one_line(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs.shutil, "which", lambda program: None if program == "javac" else f"/bin/{program}")
    monkeypatch.setattr(sys, "argv", [module.__name__])
    assert module.main() == 1
    assert capsys.readouterr().err == "benchmarks: missing: javac; get Maven and a JDK with javac\n"
