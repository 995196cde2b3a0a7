"""What the store has of the values of regions."""

from __future__ import annotations

from broker_adapter.engine.broker import Broker
from broker_adapter.engine.records.layout import FLAG_PERSISTENT, queue_key
from broker_adapter.engine.regions.key_records import decode_key_record


def values_of(broker: Broker) -> dict[tuple[str, str], bytes]:
    """(region, key) → the payload of its value, of the keys that have one."""
    found = {}
    flags = FLAG_PERSISTENT if broker.is_durable else 0
    with broker._stores.records() as records:
        for region in broker._state.events.by_number.values():
            prefix = queue_key(region.id)
            for key, value in records.items_from("keys", prefix):
                if not key.startswith(prefix):
                    break
                record = decode_key_record(key, value)
                if record.place:
                    (entry,) = broker._stores.load(region.id, 5, record.place - 1, 1).entries
                    assert entry.position == record.place
                    (body,) = broker._stores.bodies([(entry.number, flags)])
                    assert body is not None
                    found[region.name, key[len(prefix) :].decode()] = body[1]
    return found
