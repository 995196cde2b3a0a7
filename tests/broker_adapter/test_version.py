"""Which version of this software runs."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from broker_adapter import version
from broker_adapter.version import own_version

ROOT = Path(__file__).parent.parent.parent


def test_the_version_is_that_of_the_installed_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert own_version() == project["version"] == importlib.metadata.version("holdfast")


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = own_version()
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: pytest.fail("it is read again"))
    assert own_version() == known


def test_a_source_tree_that_is_not_installed_has_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if "editable" not in repr(each)])
    version._read.cache_clear()
    try:
        assert own_version() == "unknown"
    finally:
        version._read.cache_clear()
