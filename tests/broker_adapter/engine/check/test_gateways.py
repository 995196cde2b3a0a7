"""A check of gateways finds what does not fit, and a repair leaves a store that an engine can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.engine.records.gateway_records import (
    UNKNOWN,
    decode_gateway,
    encode_gateway,
    gateway_key,
    progress_key,
)
from broker_adapter.engine.store.maintenance import check_store, quarantined, sound_store
from broker_adapter.errors import IllegalStateException
from tests.broker_adapter.engine.damaging import SETTINGS, Tables, Txn, damage, flipped, records
from tests.broker_adapter.engine.sites import Site, read

pytestmark = pytest.mark.damages
KEY = gateway_key("g")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a gateway for which a message waits, and another one."""
    site = Site(1, tmp_path)
    site.gateway("g", "queue:q")
    site.gateway("other", "queue:q")
    site.send("q", "1")
    site.broker.close()
    assert check_store(tmp_path, SETTINGS).is_sound
    return tmp_path


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_gateway_whose_record_is_lost_keeps_its_messages_and_does_nothing_until_it_is_destroyed(
    path: Path, caplog: pytest.LogCaptureFixture, is_gone: bool, is_repaired: bool
) -> None:
    def act(txn: Txn, tables: Tables) -> None:
        if is_gone:
            txn.delete(KEY, db=tables["gateways"])
        else:
            txn.put(KEY, flipped(txn.get(KEY, db=tables["gateways"])), db=tables["gateways"])

    damage(path, act)
    problems = check_store(path, SETTINGS).summary.problems
    assert problems == {"gateway without a record": 1} | ({} if is_gone else {"damaged gateway": 1})
    if is_repaired:
        check_store(path, SETTINGS, repair=True)
        assert check_store(path, SETTINGS).is_sound
        assert decode_gateway(KEY, records(path)["gateways"][KEY])._replace(destinations=(), copied=()) == UNKNOWN
        with sound_store(path, SETTINGS) as store:
            assert len(quarantined(store)) == (not is_gone)
    site = Site(1, path)
    assert ("missing or damaged" in caplog.text) is not is_repaired
    site.send("q", "2")
    (found,) = site.ask("gateways", name="g")
    assert (found["state"], found["waiting"], found["destinations"]) == ("stopped", 1, [])
    assert site.gateways("other")["waiting"] == 2
    for operation, arguments in (("read_gateway", {}), ("change_gateway", {"state": "running"})):
        with pytest.raises(IllegalStateException, match="holdfast gateway destroy g"):
            site.ask(operation, name="g", **arguments)
    assert site.ask("destroy_gateway", name="g") == 1
    assert len(read(site, "other")["entries"]) == 2
    site.broker.close()
    assert check_store(path, SETTINGS).is_sound


def test_a_record_of_a_gateway_that_the_catalogue_does_not_know_goes_into_quarantine(path: Path) -> None:
    key = gateway_key("unknown")
    damage(path, lambda txn, tables: txn.put(key, encode_gateway(key, UNKNOWN), db=tables["gateways"]))
    assert check_store(path, SETTINGS, repair=True).summary.problems == {"damaged gateway": 1}
    assert check_store(path, SETTINGS).is_sound
    assert sorted(records(path)["gateways"]) == [b"\0g", b"\0other", b"g", b"other"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_counters_that_are_lost_begin_anew_with_what_waits(
    path: Path, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    key = progress_key("g")

    def act(txn: Txn, tables: Tables) -> None:
        if is_gone:
            txn.delete(key, db=tables["gateways"])
        else:
            txn.put(key, flipped(txn.get(key, db=tables["gateways"])), db=tables["gateways"])

    damage(path, act)
    assert check_store(path, SETTINGS, repair=True).summary.problems == ({} if is_gone else {"damaged gateway": 1})
    site = Site(1, path)
    assert "the counters of gateway 'g' are missing or damaged: they begin anew" in caplog.text
    found = site.gateways("g")
    assert (found["state"], found["received"], found["waiting"], found["lost"]) == ("running", 1, 1, 0)
    site.send("q", "2")
    site.restart()
    assert site.gateways("g")["received"] == 2
    site.broker.close()
    assert check_store(path, SETTINGS).is_sound
