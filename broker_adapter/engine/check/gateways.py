"""The check of gateways: each has a queue in the catalogue, and a record.  No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgpack

from broker_adapter.engine.check.findings import Finding, Tables, to_quarantine
from broker_adapter.engine.records.gateway_records import (
    UNKNOWN,
    decode_gateway,
    decode_progress,
    encode_gateway,
    gateway_key,
    is_progress,
)
from broker_adapter.errors import StoreCorruptException

#: What is raised by a record that cannot be trusted.
_DAMAGE: Final = (StoreCorruptException, ValueError, TypeError, msgpack.UnpackException)


def check_gateways(tables: Tables, names: Collection[str]) -> Iterator[Finding]:
    """Yield what is wrong; each finding may be repaired at once.

    Args:
        tables: of the store.
        names: of the gateways in the catalogue.
    """
    missing = set(names)
    for key, value in tables.items("gateways"):
        try:
            if is_progress(key):
                decode_progress(key, value)
            else:
                decode_gateway(key, value)
            name = key.decode().removeprefix("\0")
            if name not in names:
                raise StoreCorruptException("there is no such gateway")
            if not is_progress(key):
                missing.discard(name)
        except _DAMAGE as error:
            yield Finding(
                "damaged gateway",
                "gateways",
                key,
                f"record {key.hex()} of table gateways cannot be trusted ({error}); it goes into quarantine",
                to_quarantine("gateways", key, value),
            )
    for name in sorted(missing):
        key = gateway_key(name)
        yield Finding(
            "gateway without a record",
            "gateways",
            key,
            f"gateway {name!r} has no record that says where it sends; it gets one by which it sends nothing, and keeps"
            " what it has",
            (("gateways", key, encode_gateway(key, UNKNOWN)),),
        )
