"""Frames of AMQP changed at random: what no network does, and a hostile or broken peer may."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

from broker_adapter.amqp.messages.values import Described, Reader, UInt, ULong, UShort, encode
from tests.broker_adapter.amqp import frames

#: Frames that are remembered, to be sent once more in another place.
_REMEMBERED = 64
_NUMBERS = (0, 1, 2, 3, 7, 255, 256, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_CODES = (*range(frames.OPEN, frames.CLOSE + 1), 0x00, 0x19, 0x40, 0x41, 0x44, 0xFF)


class Mutations:
    """Changes some of the frames that pass, and leaves the others as they are.

    Args:
        chance: decides.
        rate: the part of the frames that are changed.
    """

    def __init__(self, chance: random.Random, rate: float) -> None:
        self.counts: Counter[str] = Counter()
        self.rate = rate
        self._chance = chance
        self._seen: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._held_back: list[bytes] = []
        self._kinds: dict[str, tuple[int, Callable[[bytes], list[bytes]]]] = {
            "octets flipped": (4, self._flip),
            "sent twice": (3, lambda frame: [frame, frame]),
            "left out": (2, lambda _frame: []),
            "held back": (3, self._hold_back),
            "another channel": (4, self._channel),
            "another number": (6, self._number),
            "another field": (4, self._field),
            "another performative": (3, self._performative),
            "cut short": (2, self._cut_short),
            "made longer": (2, self._lengthen),
            "an old one after it": (4, self._replay),
            "one made by hand after it": (6, self._by_hand),
        }

    def change(self, frame: bytes) -> list[bytes]:
        """What is forwarded in the place of a whole frame, or of a protocol header."""
        held_back, self._held_back = self._held_back, []
        if self._chance.random() >= self.rate:
            changed = [frame]
        else:
            names = list(self._kinds)
            (name,) = self._chance.choices(names, [self._kinds[each][0] for each in names])
            self.counts[name] += 1
            changed = self._kinds[name][1](frame)
        self._seen.append(frame)
        return changed + held_back

    # Kinds of changes.

    def _flip(self, frame: bytes) -> list[bytes]:
        data = bytearray(frame)
        # The size of a frame seldom: what follows would only be waited for.
        least = 0 if self._chance.random() < 0.05 else min(4, len(data) - 1)
        for _ in range(self._chance.randint(1, 4)):
            where = self._chance.randrange(least, min(len(data), least + 120))
            data[where] = self._chance.randrange(256)
        return [bytes(data)]

    def _hold_back(self, frame: bytes) -> list[bytes]:
        self._held_back.append(frame)
        return []

    def _channel(self, frame: bytes) -> list[bytes]:
        return [frame[:6] + self._small(2) + frame[8:]]

    def _number(self, frame: bytes) -> list[bytes]:
        parts = _parts(frame)
        if parts is None:
            return self._flip(frame)
        code, fields, payload = parts
        numbers = [index for index, field in enumerate(fields) if field[0] in (0x43, 0x52, 0x60, 0x70)]
        if not numbers:
            return self._field(frame)
        index = self._chance.choice(numbers)
        if fields[index][0] == 0x60:
            fields[index] = encode(UShort(self._chance.choice(_NUMBERS) & 0xFFFF))
        else:
            near = int.from_bytes(fields[index][1:]) + self._chance.choice((-1, 1))
            number = self._chance.choice((*_NUMBERS, near, near, near))
            fields[index] = encode(UInt(number & 0xFFFFFFFF))
        return [_rebuilt(frame, code, fields, payload)]

    def _field(self, frame: bytes) -> list[bytes]:
        parts = _parts(frame)
        if parts is None:
            return self._flip(frame)
        code, fields, payload = parts
        value = self._chance.choice(
            (
                b"\x40",
                b"\x41",
                b"\x42",
                b"\x45",
                encode("text"),
                encode(b"bytes"),
                encode([1, [2, [3]]]),
                encode(Described(ULong(self._chance.choice((0x23, 0x24, 0x25, 0x27, 0x33, 0x34))), [b"t" * 40])),
                encode({"key": "value"}),
                b"\xd0\x00\x00\x10\x04\x00\x00\x10\x00" + b"\x45" * 0x1000,
                b"\xc0\x03\x01" * 60 + b"\x45",
                b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
            )
        )
        if fields and self._chance.random() < 0.8:
            fields[self._chance.randrange(len(fields))] = value
        else:
            fields.append(value)
        return [_rebuilt(frame, code, fields, payload)]

    def _performative(self, frame: bytes) -> list[bytes]:
        parts = _parts(frame)
        if parts is None:
            return self._flip(frame)
        _, fields, payload = parts
        return [_rebuilt(frame, self._chance.choice(_CODES), fields, payload)]

    def _cut_short(self, frame: bytes) -> list[bytes]:
        return [_sized(frame[: self._chance.randint(min(8, len(frame)), len(frame))])]

    def _lengthen(self, frame: bytes) -> list[bytes]:
        where = self._chance.randint(min(8, len(frame)), len(frame))
        return [_sized(frame[:where] + self._chance.randbytes(self._chance.randint(1, 9)) + frame[where:])]

    def _replay(self, frame: bytes) -> list[bytes]:
        return [frame, self._chance.choice(self._seen)] if self._seen else [frame]

    def _by_hand(self, frame: bytes) -> list[bytes]:
        chance = self._chance
        channel, other, handle = chance.randrange(4), chance.randrange(4), chance.randrange(4)
        number = chance.choice((0, 1, 2, 5, 1000))
        made = (
            frames.begin(channel, other),
            frames.begin(channel),
            frames.end(channel),
            frames.end(channel, "amqp:internal-error"),
            frames.attach(channel, handle, f"by hand {other}", receives=chance.random() < 0.5),
            frames.detach(channel, handle, closed=chance.random() < 0.5),
            frames.flow(channel, handle, number, drain=chance.random() < 0.3, count=number),
            frames.flow(channel),
            frames.transfer(channel, handle, number, b"t", b"\x00\x53\x77\xa1\x01x", more=chance.random() < 0.5),
            frames.transfer(channel, handle, None, None, b"more", aborted=chance.random() < 0.5),
            frames.transfer(channel, handle, number, b"t", b"\xdcx", txn_id=b"\x00" * 7 + b"\x01"),
            frames.disposition(channel, chance.random() < 0.5, number, number + chance.randrange(3)),
            frames.disposition(channel, True, 0, 0x7FFFFFFF, chance.choice((None, 0x25, 0x26, 0x27, 0x33, 0x34))),
            frames.open_frame(),
            frames.close(),
        )
        weights = [4] * (len(made) - 2) + [1, 1]
        return [frame, *chance.choices(made, weights, k=chance.randint(1, 3))]

    def _small(self, size: int) -> bytes:
        return self._chance.choice((0, 1, 2, 3, 255, 256, 32767, 32768, 65535)).to_bytes(size)


def _sized(frame: bytes) -> bytes:
    """A frame of which only the size is wrong, with its size put right."""
    return frame if frame[:4] == b"AMQP" else len(frame).to_bytes(4) + frame[4:]


def _parts(frame: bytes) -> tuple[int, list[bytes], bytes] | None:
    """The code, the raw fields and the payload of a frame with a performative in one of the usual forms."""
    if len(frame) < 12 or frame[4] != 2 or frame[8:10] != b"\x00\x53" or frame[:4] == b"AMQP":
        return None
    try:
        if frame[11] == 0x45:
            return frame[10], [], frame[12:]
        if frame[11] == 0xC0:
            count, start, stop = frame[13], 14, 13 + frame[12]
        elif frame[11] == 0xD0:
            count, start = int.from_bytes(frame[16:20]), 20
            stop = 16 + int.from_bytes(frame[12:16])
        else:
            return None
        reader = Reader(frame, start, stop)
        fields = []
        for _ in range(count):
            before = reader.position
            reader.value()
            fields.append(frame[before : reader.position])
    except (ValueError, IndexError):
        return None
    return frame[10], fields, frame[stop:]


def _rebuilt(frame: bytes, code: int, fields: list[bytes], payload: bytes) -> bytes:
    body = b"".join(fields)
    listed = b"\xd0" + (4 + len(body)).to_bytes(4) + len(fields).to_bytes(4) + body
    if len(body) < 255 and len(fields) < 256:
        listed = b"\xc0" + bytes((1 + len(body), len(fields))) + body
    return _sized(frame[:8] + b"\x00\x53" + bytes((code,)) + listed + payload)
