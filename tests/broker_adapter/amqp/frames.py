"""AMQP frames made by hand, for what no well-behaved peer would send."""

from __future__ import annotations

from typing import Any

from broker_adapter.amqp.messages.values import Described, Symbol, UByte, UInt, ULong, UShort, encode

HEADER = b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SOURCE, TARGET, COORDINATOR = 0x28, 0x29, 0x30
TRANSACTIONAL = 0x34
_WINDOW = 1_000_000


def frame(channel: int, code: int, *fields: Any, payload: bytes = b"", kind: int = 0) -> bytes:
    """A frame with this performative, and a payload behind it."""
    return raw_frame(channel, encode(Described(ULong(code), list(fields))) + payload, kind)


def in_long_form(sent: bytes) -> bytes:
    """A frame with the list of its fields in the long form, as Qpid JMS writes it where it has a state in it."""
    assert sent[8:10] + sent[11:12] == b"\x00\x53\xc0"
    size, count, rest = sent[12], sent[13], sent[14:]
    body = sent[8:11] + b"\xd0" + (size + 3).to_bytes(4) + count.to_bytes(4) + rest
    return (8 + len(body)).to_bytes(4) + sent[4:8] + body


def raw_frame(channel: int, body: bytes, kind: int = 0) -> bytes:
    """A frame with this body."""
    return (8 + len(body)).to_bytes(4) + bytes((2, kind)) + channel.to_bytes(2) + body


def open_frame(container: str = "raw", *, max_frame_bytes: int = 65536, channel_max: int = 255) -> bytes:
    return frame(0, OPEN, container, "host", UInt(max_frame_bytes), UShort(channel_max))


def begin(channel: int, remote_channel: int | None = None, *, window: int = _WINDOW) -> bytes:
    remote = None if remote_channel is None else UShort(remote_channel)
    return frame(channel, BEGIN, remote, UInt(0), UInt(window), UInt(_WINDOW))


def attach(
    channel: int,
    handle: int,
    name: str,
    address: str | None = "q",
    *,
    receives: bool = False,
    coordinator: bool = False,
    modes: tuple[int | None, int | None] = (None, None),
) -> bytes:
    """An attach of a link on which the hand-made peer sends; or receives.  ``modes``: snd- and rcv-settle-mode."""
    node = Described(ULong(SOURCE if receives else TARGET), [address])
    if coordinator:
        node = Described(ULong(COORDINATOR), [])
    other = Described(ULong(TARGET if receives else SOURCE), ["here"])
    source, target = (node, other) if receives else (other, node)
    first = None if receives else UInt(0)
    snd, rcv = (None if mode is None else UByte(mode) for mode in modes)
    return frame(channel, ATTACH, name, UInt(handle), receives, snd, rcv, source, target, None, None, first)


def flow(
    channel: int,
    handle: int | None = None,
    credit: int = 0,
    *,
    drain: bool = False,
    count: int = 0,
    window: int = _WINDOW,
) -> bytes:
    link = [] if handle is None else [UInt(handle), UInt(count), UInt(credit), None, drain]
    return frame(channel, FLOW, UInt(0), UInt(window), UInt(0), UInt(_WINDOW), *link)


def transfer(
    channel: int,
    handle: int,
    number: int | None,
    tag: bytes | None,
    payload: bytes,
    *,
    more: bool = False,
    settled: bool = False,
    aborted: bool = False,
    txn_id: bytes | None = None,
) -> bytes:
    state = None if txn_id is None else Described(ULong(TRANSACTIONAL), [txn_id])
    fields = (
        *(UInt(handle), None if number is None else UInt(number), tag, UInt(0)),
        *(settled, more, None, state, None, aborted),
    )
    return frame(channel, TRANSFER, *fields, payload=payload)


def disposition(
    channel: int,
    role: bool,
    first: int,
    last: int | None = None,
    state: int | None = 0x24,
    *fields: Any,
    settled: bool = True,
) -> bytes:
    """A disposition; ``fields``: of the state."""
    ending = None if state is None else Described(ULong(state), list(fields))
    return frame(channel, DISPOSITION, role, UInt(first), None if last is None else UInt(last), settled, ending)


def detach(channel: int, handle: int, *, closed: bool = True) -> bytes:
    return frame(channel, DETACH, UInt(handle), closed)


def end(channel: int, condition: str | None = None) -> bytes:
    error = [] if condition is None else [Described(ULong(0x1D), [Symbol(condition), "made by hand"])]
    return frame(channel, END, *error)


def close() -> bytes:
    return frame(0, CLOSE)


def split(data: bytes) -> list[bytes]:
    """The frames of a stream; its protocol header first, where it has one."""
    frames = []
    position = 0
    while position < len(data):
        size = 8 if data.startswith(HEADER[:4], position) else int.from_bytes(data[position : position + 4])
        frames.append(data[position : position + size])
        position += size
    return frames
