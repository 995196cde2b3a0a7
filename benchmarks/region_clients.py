"""What a client of regions sees over a server: putting, registering over many keys, and events until they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.modes import OrderError, server
from benchmarks.report import Figure
from sdk import Connection, ConnectionFactory, Region, RegionEvent, RegionListener, ResultPolicy, TextMessage

_BODY = "x" * 100
_WAIT = 600.0
#: Threads that put events, each its own connection, to the same keys.
_PRODUCERS = 4
_KEYS = 100


class _Order(RegionListener):
    """Counts events, and sees whether those of each producer, and of each key, are in order."""

    def __init__(self, wanted: int) -> None:
        self.all_seen = threading.Event()
        self.disorder: str | None = None
        self._wanted = wanted
        self._seen = 0
        self._producers: dict[int, int] = {}
        self._keys: dict[str, int] = {}

    def after_create(self, event: RegionEvent) -> None:
        self._note(event)

    def after_update(self, event: RegionEvent) -> None:
        self._note(event)

    def _note(self, event: RegionEvent) -> None:
        assert event.message is not None
        producer, number = event.message.properties["producer"], event.message.properties["number"]
        if number != self._producers.get(producer, -1) + 1 or event.version <= self._keys.get(event.key, -1):
            self.disorder = f"event {number} of producer {producer} came as version {event.version} of {event.key!r}"
        self._producers[producer] = number
        self._keys[event.key] = event.version
        self._seen += 1
        if self._seen == self._wanted:
            self.all_seen.set()


def _region(connection: Connection, name: str) -> Region:
    connection.start()
    return connection.create_session().create_region(name)


def _registered(factory: ConnectionFactory, keys: int, policy: ResultPolicy) -> Figure:
    with factory.create_connection() as connection:
        region = _region(connection, "many")
        started = time.perf_counter()
        region.register_interest(all_keys=True, result_policy=policy)
        seconds = time.perf_counter() - started
        if len(region._state.cache) != keys:
            raise AssertionError(f"{len(region._state.cache)} of {keys} keys were read")
    return Figure(
        name=f"registration over {keys:,} keys, {policy.name}",
        value=seconds,
        unit="s",
        body_bytes=len(_BODY),
        note=f"{seconds / keys * 1e6:.1f} us a key, into the client's cache",
    )


def _produce(factory: ConnectionFactory, producer: int, count: int) -> None:
    with factory.create_connection() as connection:
        region = _region(connection, "order")
        for first in range(0, count, _KEYS):
            values = {}
            for number in range(first, min(first + _KEYS, count)):
                message = values[f"key {number % _KEYS}"] = TextMessage(_BODY)
                message.properties.update({"producer": producer, "number": number})
            region.put_all(values)


def _told(factory: ConnectionFactory, count: int) -> Figure:
    """Several producers put to the same keys, and a durable client is told."""
    with factory.create_connection(client_id="desk") as connection:
        region = _region(connection, "order")
        listener = _Order(count * _PRODUCERS)
        region.add_listener(listener)
        region.register_interest(all_keys=True, durable=True)
        connection.ready_for_events()
        started = time.perf_counter()
        with ThreadPoolExecutor(_PRODUCERS) as threads:
            list(threads.map(lambda producer: _produce(factory, producer, count), range(_PRODUCERS)))
        if not listener.all_seen.wait(_WAIT):
            raise AssertionError("not all events were told")
        seconds = time.perf_counter() - started
        if listener.disorder is not None:
            raise OrderError(listener.disorder)
    return Figure(
        name=f"events of {_PRODUCERS} producers to the same keys, until a durable client is told",
        value=count * _PRODUCERS / seconds,
        unit="events/s",
        body_bytes=len(_BODY),
        producers=_PRODUCERS,
        consumers=1,
        note="each producer's and each key's events came in order",
    )


def figures(directory: Path, share: int) -> Iterator[Figure]:
    """All of them.

    Args:
        directory: for the stores.
        share: 1, or by how much less is to be done.
    """
    with server(directory / "region clients") as (url, _):
        factory = ConnectionFactory(f"{url}?request_timeout_seconds={_WAIT:.0f}")
        yield _told(factory, 20_000 // share)
        keys = 1_000_000 // share
        with factory.create_connection() as connection:
            region = _region(connection, "many")
            started = time.perf_counter()
            region.put_all({f"key {number}": _BODY for number in range(keys)})
            seconds = time.perf_counter() - started
        yield Figure(
            name=f"put_all of {keys:,} new keys",
            value=keys / seconds,
            unit="keys/s",
            body_bytes=len(_BODY),
            producers=1,
        )
        yield _registered(factory, keys, ResultPolicy.KEYS)
        yield _registered(factory, keys, ResultPolicy.KEYS_VALUES)
