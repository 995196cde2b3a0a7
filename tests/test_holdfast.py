"""The package that has the name of the product."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

import pytest

import broker_adapter.failover.transport
import broker_adapter.server.cli  # noqa: F401
import holdfast
import sdk
import spark_connector.writer  # noqa: F401  # the loggers of all packages

ROOT = Path(__file__).parent.parent


def test_it_has_what_the_sdk_exports_and_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(holdfast.__all__) == set(sdk.__all__)
    assert all(getattr(holdfast, name) is getattr(sdk, name) for name in sdk.__all__)
    assert holdfast.__version__ == project["version"]
    with pytest.raises(AttributeError, match="no attribute 'ConectionFactory'"):
        _ = holdfast.ConectionFactory


def test_all_loggers_are_below_one_of_its_name() -> None:
    packages = ("ack_modes", "broker_adapter", "sdk", "spark_connector", "holdfast")
    ours = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in packages]
    assert {"holdfast.sdk", "holdfast.broker_adapter.failover", "holdfast.spark_connector.writer"} <= set(ours)
    assert {name.split(".")[0] for name in ours} == {"holdfast"}
