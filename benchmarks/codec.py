"""The codec: a message to bytes and back, in both formats, beside proton's own and msgpack."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator

import msgpack
import proton

from benchmarks.report import Figure
from broker_adapter import Destination, Envelope, Identity
from broker_adapter.amqp.messages.amqp_message import decode_amqp, encode_amqp
from broker_adapter.envelope import BodyKind, pack, unpack

_ROUNDS = 20_000
_ENVELOPE = Envelope(
    Destination("orders"),
    BodyKind.TEXT,
    "x" * 300,
    {"colour": "red", "number": 17, "ratio": 0.5, "flag": True},
    message_id="ID:0b4f1c6e-7d1a-4f52-9c58-1c2f3f1a7f11:1:1-17",
    correlation_id="c-17",
    sent_at_ms=1_780_000_000_000,
    expires_at_ms=1_780_000_060_000,
    identity=Identity("0b4f1c6e-7d1a-4f52-9c58-1c2f3f1a7f11", 1, 17),
)


def figures() -> Iterator[Figure]:
    """Microseconds of each direction."""
    standard, own = encode_amqp(_ENVELOPE), pack(_ENVELOPE)
    assert decode_amqp(standard) == unpack(own) == _ENVELOPE
    message = proton.Message()
    message.decode(standard)
    array = msgpack.packb(_ENVELOPE)  # the same fields in msgpack alone
    plain = msgpack.unpackb(array, strict_map_key=False)

    def decode_with_proton() -> None:
        proton.Message().decode(standard)

    for name, ours, theirs, by_whom in (
        ("AMQP, encode", lambda: encode_amqp(_ENVELOPE), message.encode, "proton.Message"),
        ("AMQP, decode", lambda: decode_amqp(standard), decode_with_proton, "proton.Message"),
        ("own format, encode", lambda: pack(_ENVELOPE), lambda: msgpack.packb(plain), "msgpack alone"),
        (
            "own format, decode",
            lambda: unpack(own),
            lambda: msgpack.unpackb(array, strict_map_key=False),
            "msgpack alone",
        ),
    ):
        cost, yardstick = _microseconds(ours), _microseconds(theirs)
        yield Figure(
            name=f"codec: {name}",
            value=cost,
            unit="us",
            yardstick=f"{by_whom} {yardstick:.1f} us",
            ratio=cost / yardstick,
            body_bytes=300,
            sync=False,
        )


def _microseconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=_ROUNDS, repeat=3)) / _ROUNDS * 1e6
