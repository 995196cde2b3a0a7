"""What the command of the benchmarks takes."""

from __future__ import annotations

import sys

import pytest

from benchmarks import __main__ as benchmarks


def test_a_part_that_does_not_exist_is_an_error_that_names_those_that_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "nonsense"])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    out, error = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "--only nonsense: there is no such part; these are: engine, send, restart, codec" in error
