"""The C functions of proton that are called for each message, and the same made of its public classes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import proton
from cproton_ffi import ffi, lib

#: The version of python-qpid-proton whose C functions this package was written against.
PROTON_VERSION: Final = "0.40.0"

_HOT_FUNCTIONS: Final = (
    "pn_collector_peek",
    "pn_collector_pop",
    "pn_event_type",
    "pn_event_delivery",
    "pn_event_link",
    "pn_event_session",
    "pn_delivery",
    "pn_delivery_link",
    "pn_delivery_readable",
    "pn_delivery_partial",
    "pn_delivery_aborted",
    "pn_delivery_pending",
    "pn_delivery_settled",
    "pn_delivery_remote_state",
    "pn_delivery_update",
    "pn_delivery_settle",
    "pn_delivery_local",
    "pn_delivery_remote",
    "pn_link_recv",
    "pn_link_send",
    "pn_link_advance",
    "pn_link_credit",
    "pn_link_queued",
    "pn_link_flow",
    "pn_link_drain",
    "pn_link_get_drain",
    "pn_link_drained",
    "pn_transport_push",
    "pn_transport_pending",
    "pn_transport_peek",
    "pn_transport_pop",
    "pn_transport_tick",
    "pn_data_decode",
    "pn_data_encode",
    "pn_data_encoded_size",
    "pn_disposition_data",
)


def check_engine(engine: Any = lib) -> None:
    """Raise ImportError where proton lacks a function that the hot path calls."""
    missing = [name for name in _HOT_FUNCTIONS if not hasattr(engine, name)]
    if missing:
        raise ImportError(
            f"python-qpid-proton {version('python-qpid-proton')} lacks {', '.join(missing)}; "
            f"install python-qpid-proton=={PROTON_VERSION}"
        )


check_engine()


wrap_session: Any = proton.Session.wrap
wrap_link: Any = proton.Link.wrap
wrap_delivery: Any = proton.Delivery.wrap


class PublicEngine:
    """The functions of the hot path, made of proton's public classes: slower, with nothing private but the handles."""

    def __init__(self, transport: proton.Transport, collector: proton.Collector) -> None:
        self._transport: Any = transport
        self._collector: Any = collector

    def release(self) -> None:
        """Drop proton's objects, so that they are freed."""
        self._transport = self._collector = None

    def pn_collector_peek(self, _collector: Any) -> Any:
        return self._collector.peek()

    def pn_collector_pop(self, _collector: Any) -> None:
        self._collector.pop()

    def pn_event_type(self, event: Any) -> int:
        return int(event.type.number)

    def pn_event_delivery(self, event: Any) -> Any:
        return event.delivery._impl

    def pn_event_link(self, event: Any) -> Any:
        return event.link._impl

    def pn_event_session(self, event: Any) -> Any:
        return event.session._impl

    def pn_delivery(self, link: Any, tag: Any) -> Any:
        return wrap_link(link).delivery(ffi.unpack(tag.start, tag.size).hex())._impl

    def pn_delivery_link(self, delivery: Any) -> Any:
        return wrap_delivery(delivery).link._impl

    def pn_delivery_readable(self, delivery: Any) -> bool:
        return bool(wrap_delivery(delivery).readable)

    def pn_delivery_partial(self, delivery: Any) -> bool:
        return bool(wrap_delivery(delivery).partial)

    def pn_delivery_aborted(self, delivery: Any) -> bool:
        return bool(wrap_delivery(delivery).aborted)

    def pn_delivery_pending(self, delivery: Any) -> int:
        return int(wrap_delivery(delivery).pending)

    def pn_delivery_settled(self, delivery: Any) -> bool:
        return bool(wrap_delivery(delivery).settled)

    def pn_delivery_remote_state(self, delivery: Any) -> int:
        return int(wrap_delivery(delivery).remote_state)

    def pn_delivery_update(self, delivery: Any, state: int) -> None:
        # ``Delivery.update`` would overwrite the details of the state, which stand in the C object already.
        lib.pn_delivery_update(delivery, state)

    def pn_delivery_settle(self, delivery: Any) -> None:
        wrap_delivery(delivery).settle()

    def pn_link_recv(self, link: Any, memory: Any, size: int) -> int:
        try:
            data = wrap_link(link).recv(size)
        except proton.LinkException:
            return -1
        ffi.memmove(memory, data or b"", len(data or b""))
        return len(data or b"")

    def pn_link_send(self, link: Any, payload: bytes, _size: int) -> int:
        return int(wrap_link(link).stream(payload))

    def pn_link_advance(self, link: Any) -> bool:
        return bool(wrap_link(link).advance())

    def pn_link_credit(self, link: Any) -> int:
        return int(wrap_link(link).credit)

    def pn_link_queued(self, link: Any) -> int:
        return int(wrap_link(link).queued)

    def pn_link_flow(self, link: Any, messages: int) -> None:
        wrap_link(link).flow(messages)

    def pn_link_drain(self, link: Any, messages: int) -> None:
        wrap_link(link).drain(messages)

    def pn_link_get_drain(self, link: Any) -> bool:
        return bool(wrap_link(link).drain_mode)

    def pn_link_drained(self, link: Any) -> int:
        return int(wrap_link(link).drained())

    def pn_transport_push(self, _transport: Any, data: Any, size: int) -> int:
        capacity = self._transport.capacity()
        if capacity <= 0:
            return int(capacity)
        chunk = (data if isinstance(data, bytes) else ffi.unpack(data, size))[: min(capacity, size)]
        try:
            self._transport.push(chunk)
        except proton.TransportException:
            return -1
        return len(chunk)

    def pn_transport_pending(self, _transport: Any) -> int:
        return int(self._transport.pending())

    def pn_transport_peek(self, _transport: Any, memory: Any, size: int) -> int:
        data = self._transport.peek(size) or b""
        ffi.memmove(memory, data, len(data))
        return len(data)

    def pn_transport_pop(self, _transport: Any, size: int) -> None:
        self._transport.pop(size)

    def pn_transport_tick(self, _transport: Any, now_ms: int) -> int:
        return round(float(self._transport.tick(now_ms / 1000)) * 1000)
