"""Stores that follow another one have its records; what is written past that is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.engine.records.layout import RunRecord
from tests.broker_adapter.engine.secondaries import followed
from tests.broker_adapter.engine.storing import batch_of, entry, put, reopened


def test_secondaries_follow_commits_starts_repairs_and_what_goes_into_quarantine(tmp_path: Path) -> None:
    with followed() as followers:
        store = reopened(tmp_path / "store")
        store.begin_run(RunRecord("first", {}))
        for number in range(1, 40):
            store.commit(batch_of(entry(1, 5, number, number)))
        assert store.quarantine("entries", [entry(1, 5, 3, 3)[0]])
        store.apply([("entries", entry(1, 5, 4, 4)[0], None)])
        store.close()
        store = reopened(tmp_path / "store")
        put(store, 40)
        store.close()
        (found,) = followers
        assert found.compared > 2


def write_past(path: Path) -> None:
    store = reopened(path)
    with store._env.begin(write=True) as txn:
        txn.put(b"x", b"y", db=store._db["meta"])
    put(store, 1)
    store.close()


def test_a_write_past_what_is_followed_is_found(tmp_path: Path) -> None:
    wrong = "of .* compared: Difference"
    with pytest.raises(AssertionError, match=wrong), followed():
        write_past(tmp_path / "store")
