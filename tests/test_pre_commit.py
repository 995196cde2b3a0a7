"""What is checked before each commit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent


@pytest.fixture
def hooks() -> list[dict[str, Any]]:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    return list(repository["hooks"])


def test_a_commit_is_checked_by_the_commands_of_make_check(hooks: list[dict[str, Any]]) -> None:
    command = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.ready", "check"]
    # These tests may have been started by make, too: it has nothing to say to this one.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert [hook["entry"] for hook in hooks] == done.stdout.splitlines()
    assert not any(hook["pass_filenames"] for hook in hooks)


@pytest.mark.parametrize("file", ["sdk/session.py", "pyproject.toml"])
def test_what_a_check_depends_on_is_checked_when_that_changes(hooks: list[dict[str, Any]], file: str) -> None:
    """The settings of every check are in ``pyproject.toml``."""
    assert [hook["id"] for hook in hooks if not re.search(hook.get("files", ""), file)] == []
    assert [hook["id"] for hook in hooks if "types" in hook or "types_or" in hook] == []
