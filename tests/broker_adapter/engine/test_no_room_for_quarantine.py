"""What cannot be trusted stays where it is while there is no room to put it aside: nothing stops, nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, attach, connect, depth, full_up, payloads, send, settle

pytestmark = pytest.mark.damages

_BODY = b"damaged" + bytes(2_000_000)


class Full:
    """An engine on a store in which the first message of queue ``q`` is damaged, with no room for it elsewhere."""

    def __init__(self, path: Path) -> None:
        broker = Broker(EngineSettings(), str(path))
        send(broker, connect(broker), "q", _BODY, "second", "third")
        store = broker.store
        with store.snapshot() as tables:
            key, value = next(iter(tables.items("messages")))
        store.apply([("messages", key, value[:-1] + b"!")])
        broker.close()
        self.broker = Broker(EngineSettings(), str(path))
        self.client = connect(self.broker)
        for _ in range(2):  # they take the pages that became free
            send(self.broker, self.client, "other", bytes(2_000_000))
        env = self.broker.store._env
        self._size = env.info()["map_size"]
        with self.broker._runner:  # a few pages are left, as they are on a store that is full
            env.set_mapsize((env.info()["last_pgno"] + 100) * env.stat()["psize"])

    def make_room(self) -> None:
        with self.broker._runner:
            self.broker.store._env.set_mapsize(self._size)

    def sound(self) -> None:
        assert self.broker.failed is None
        assert [each.text for each in self.broker.check() if not each.harmless] == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    full = Full(tmp_path)
    yield full
    full.broker.close()


def test_a_consumer_gets_the_others_and_the_damaged_one_is_put_aside_when_there_is_room(
    full: Full, caplog: pytest.LogCaptureFixture
) -> None:
    broker = full.broker
    consumer, inbox = attach(broker, full.client, "q", credit=1)
    assert payloads(inbox.wait_for(1)) == [b"second"]
    assert "stays where it is" in caplog.text
    settle(broker, consumer, inbox.handouts)
    broker.call(c.Credit(consumer, 1), WAIT)
    assert payloads(inbox.wait_for(2)) == [b"second", b"third"]
    settle(broker, consumer, inbox.handouts[1:])
    assert broker.store.quarantined() == 0
    assert depth(broker, "q") == 1
    full.make_room()
    broker.call(c.Detach(consumer, give_back=True), WAIT)
    _, inbox = attach(broker, full.client, "q", credit=1)
    send(broker, full.client, "q", "fourth")
    assert payloads(inbox.wait_for(1)) == [b"fourth"]
    assert broker.store.quarantined() == 2, "the message and its entry"
    full.sound()


def test_a_consumer_that_settles_ahead_loses_nothing(full: Full) -> None:
    broker = full.broker
    _, inbox = attach(broker, full.client, "q", credit=10, presettled=True)
    assert payloads(inbox.wait_for(2)) == [b"second", b"third"]
    assert broker.failed is None
    assert broker.store.quarantined() == 0
    with broker.store.snapshot() as tables:
        assert tables.count("messages") == tables.count("entries") == 1 + 2


def test_a_browser_leaves_it_out(full: Full) -> None:
    broker = full.broker
    _, inbox = attach(broker, full.client, "q", credit=10, browse=True)
    assert payloads(inbox.wait_for(2)) == [b"second", b"third"]
    assert depth(broker, "q") == 3
    assert broker.failed is None
    assert broker.store.quarantined() == 0


def test_a_range_that_leaves_it_out_leaves_it_there(full: Full) -> None:
    broker = full.broker
    wanted = {"destination": "q", "first": 0, "last": 100, "skip_damaged": True}
    answer = broker.request("read_range", wanted, WAIT)
    assert [each[3] for each in answer["messages"]] == [b"second", b"third"]
    assert answer["damaged"] == [1]
    assert broker.failed is None
    assert broker.store.quarantined() == 0
    assert depth(broker, "q") == 3
    with broker.store.snapshot() as tables:
        assert tables.count("messages") == tables.count("entries") == 3 + 2
    full.make_room()
    assert broker.request("read_range", wanted, WAIT)["damaged"] == [1]
    assert broker.store.quarantined() == 2
    assert depth(broker, "q") == 2
    full.sound()


def test_a_name_that_cannot_be_trusted_is_unknown_where_it_cannot_be_put_aside(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    broker.call(c.Publish("g", 3, ()), WAIT)
    store = broker.store
    with store.snapshot() as tables:
        ((key, value),) = tables.items("published")
    store.apply([("published", key, value[:-1] + bytes((value[-1] ^ 1,)))])
    env = store._env
    with broker._runner:
        env.set_mapsize((env.info()["last_pgno"] + 100) * env.stat()["psize"])
        full_up(store)
        assert store.last_number("published", "g") is None
        assert store.quarantined() == 0
        with store.snapshot() as tables:
            assert tables.count("published") == 1
    broker.close()
