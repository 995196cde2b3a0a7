"""A client with many interests that gets and loses one at a time has an audience of its own, which changes in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.record_kinds import tables_of
from broker_adapter.engine.clients import client_interests
from broker_adapter.engine.clients.client_interests import ClientInterests
from broker_adapter.engine.clients.client_records import (
    SPAN_KEY_BYTES,
    InterestRecord,
    encode_interest,
    interest_key,
)
from broker_adapter.engine.regions import audience
from broker_adapter.engine.regions.audience import OwnAudience
from broker_adapter.engine.regions.interests import Interest, InterestKind
from broker_adapter.engine.store.lmdb_store import LmdbStore
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.desks import Desk, make, put
from tests.broker_adapter.engine.driving import Engines, come_to_rest, eventually

FEW = 4
KEYS = [Interest(InterestKind.KEY, f"k{number}") for number in range(40)]
SETTINGS = EngineSettings()


@pytest.fixture(autouse=True)
def few_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (audience, client_interests):
        monkeypatch.setattr(module, "MOST_SHARED", FEW)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The audiences to which clients come to belong."""
    found: list[Any] = []
    belong = ClientInterests._belong

    def noted(self: ClientInterests, client: Any, region: Any, wanted: Any, head: int) -> None:
        found.append(wanted)
        belong(self, client, region, wanted, head)

    monkeypatch.setattr(ClientInterests, "_belong", noted)
    return found


def keys_told(desk: Desk) -> list[tuple[str, list[str]]]:
    return [(each.key, [of.text for of in each.interests]) for each in desk.handouts()]


def test_interests_that_come_and_go_one_by_one_make_few_audiences(broker: Broker, made: list[Any]) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    for each in KEYS:
        desk.want("quotes", each)
    assert len(made) == FEW + 1
    assert isinstance(made[-1], OwnAudience)
    assert made[-1].interests == set(KEYS)
    made.clear()
    for each in KEYS[:-1]:
        desk.drop("quotes", each)
    assert len([each for each in made if isinstance(each, OwnAudience)]) <= 4
    assert len(made) <= 4 + FEW
    assert desk.described().interest_count == 1


def test_clients_that_name_the_same_keys_at_once_share_an_audience(broker: Broker, made: list[Any]) -> None:
    make(broker, "quotes")
    for name in ("one", "two", "three"):
        Desk(broker, name).want("quotes", *KEYS)
    assert len(set(made)) == 1
    assert len(made[0].members) == 3


def test_what_is_queued_matches_what_was_wanted_as_it_came(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", *KEYS[:10], Interest(InterestKind.EXPRESSION, "k1[01]"))
    desk.want("quotes", KEYS[20])  # its own audience from here on
    put(broker, "quotes", "k10")
    put(broker, "quotes", "k3")
    desk.want("quotes", KEYS[10])
    desk.drop("quotes", KEYS[3])
    put(broker, "quotes", "k10")
    put(broker, "quotes", "k3")
    desk.drop("quotes", Interest(InterestKind.EXPRESSION, "k1[01]"))
    put(broker, "quotes", "k10")
    put(broker, "quotes", "k11")
    expected = [("k10", ["k1[01]"]), ("k3", ["k3"]), ("k10", ["k10", "k1[01]"]), ("k10", ["k10"])]
    desk.ready()
    assert keys_told(desk) == expected
    desk.lose()
    if engines.path is not None:
        broker = engines.start()
    again = Desk(broker)
    assert again.pending == 4
    again.ready()
    assert keys_told(again) == expected
    again.acknowledge(again.handouts()[-1].position)
    put(broker, "quotes", "k20")
    assert keys_told(again)[4:] == [("k20", ["k20"])]
    again.leave(keep=False)


def test_an_update_that_came_when_its_key_was_not_wanted_any_more_supersedes_none(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker, conflation="true")
    desk.want("quotes", *KEYS[:10])
    desk.want("quotes", KEYS[20])
    for body in ("old", "older", "last of it"):
        put(broker, "quotes", "k3", body)
    desk.drop("quotes", KEYS[3])
    put(broker, "quotes", "k3", "not for it")
    desk.ready()
    assert desk.events() == ["k3=old", "k3=last of it", "marker"]
    assert desk.described().counters.conflated == 1


def test_an_interest_that_is_not_durable_ends_with_the_connection(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", *KEYS[:10])
    desk.want("quotes", KEYS[20], durable=False)
    desk.want("quotes", KEYS[21])
    put(broker, "quotes", "k20", "queued")
    desk.lose()
    put(broker, "quotes", "k20", "not queued")
    put(broker, "quotes", "k21", "queued")
    if engines.path is not None:
        broker = engines.start()
    again = Desk(broker)
    again.ready()
    assert again.events() == ["k20=queued", "k21=queued", "marker"]


def test_an_audience_by_which_nothing_came_leaves_no_trace(engines: Engines) -> None:
    broker = engines.start()
    make(broker, "quotes")
    desk = Desk(broker)

    def parts() -> int:
        return len(broker._state.events.clients.clients["desk"].queue.parts)

    for each in KEYS[:FEW]:
        desk.want("quotes", each)
        put(broker, "quotes", "not wanted")
    assert parts() == 1
    put(broker, "quotes", "k1", "wanted")
    desk.drop("quotes", KEYS[0])
    put(broker, "quotes", "not wanted")
    desk.drop("quotes", KEYS[1])
    assert parts() == 2
    if engines.path is not None:
        desk.lose()
        broker = engines.start()
        desk = Desk(broker)
    desk.want("quotes", KEYS[5])  # what came before a start is not known
    desk.ready()
    assert desk.events() == ["k1=wanted", "marker"]


def test_what_is_registered_again_is_not_stored_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", *KEYS[:3])
    stored: list[Any] = []
    state = broker._state.events
    monkeypatch.setattr(state.clients, "_store_client", lambda *changed: stored.append(changed))
    monkeypatch.setattr(state.clients._interests, "_store_interest", lambda *changed: stored.append(changed))
    desk.want("quotes", *KEYS[:2])
    desk.want("quotes", KEYS[0], durable=False)
    assert stored == []
    desk.want("quotes", KEYS[3])
    assert len(stored) == 2


# Damage.


def _store(path: Path) -> None:
    """A store with a client that has an audience of its own, with spans and events."""
    broker = Broker(SETTINGS, str(path))
    make(broker, "quotes")
    desk = Desk(broker)
    desk.want("quotes", *KEYS[:10])
    for each in KEYS[20:23]:
        desk.want("quotes", each)
    desk.drop("quotes", KEYS[0])
    desk.lose()
    for key in ("k1", "k20", "k21", "k22"):
        put(broker, "quotes", key, "queued")
    broker.close()


def _spans(path: Path) -> list[tuple[bytes, bytes]]:
    store = LmdbStore(path, SETTINGS)
    with store.snapshot() as tables:
        found = [each for each in tables.items("audiences") if len(each[0]) == SPAN_KEY_BYTES]
    store.close()
    return found


def test_a_store_with_spans_is_sound_and_they_go_with_their_audience(tmp_path: Path) -> None:
    _store(tmp_path)
    found = _spans(tmp_path)
    assert len(found) == 3  # the first one made the audience
    assert [tables_of(*each) for each in found] == [("audiences",)] * 3
    assert check_store(tmp_path, SETTINGS).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    desk = Desk(broker)
    desk.ready()
    assert len(desk.handouts()) == 4
    desk.leave(keep=False)
    eventually(lambda: come_to_rest(broker) or not broker._state.events.clients.audiences)
    broker.close()
    assert _spans(tmp_path) == []


@pytest.mark.damages
@pytest.mark.parametrize("is_repaired", [False, True], ids=["started", "repaired"])
@pytest.mark.parametrize(
    "change",
    [lambda value: value[:-1] + bytes([value[-1] ^ 1]), lambda value: None],
    ids=["garbled", "gone"],
)
def test_a_client_whose_spans_are_damaged_gets_what_it_wants_from_now_on(
    tmp_path: Path, change: Callable[[bytes], bytes | None], *, is_repaired: bool
) -> None:
    _store(tmp_path)
    found = _spans(tmp_path)
    store = LmdbStore(tmp_path, SETTINGS)
    store.apply([("audiences", key, change(value)) for key, value in found])
    store.close()
    if is_repaired and change(b"x") is not None:
        problems = [each.problem for each in check_store(tmp_path, SETTINGS, repair=True).findings]
        assert problems == ["damaged span"] * 3
        assert check_store(tmp_path, SETTINGS).is_sound
    broker = Broker(SETTINGS, str(tmp_path))
    desk = Desk(broker)
    put(broker, "quotes", "k22", "new")
    put(broker, "quotes", "k0", "not wanted")
    desk.ready()
    assert [each for each in desk.events() if each.endswith("new")] == ["k22=new"]
    assert "k0=not wanted" not in desk.events()
    broker.close()
    assert check_store(tmp_path, SETTINGS, repair=True).findings is not None
    assert check_store(tmp_path, SETTINGS).is_sound


def test_the_record_of_an_interest_is_not_taken_for_that_of_a_tombstone() -> None:
    record = InterestRecord("d", 7, 1, "", "", True)
    key = interest_key(record)
    assert len(encode_interest(key, record)) == 12
    assert tables_of(key, encode_interest(key, record)) == ("interests",)
