"""What a disposition may cost, and what a server reads of its state."""

from __future__ import annotations

from typing import Any

import pytest

from broker_adapter.amqp.messages.values import Described, Symbol, UInt, ULong
from broker_adapter.amqp.proton_engine.dispositions import (
    KEPT,
    KEPT_CONDITION,
    LIGHT_BYTES,
    MAX_STATES_BYTES,
    annotations_of,
    bare_frame,
    too_costly,
)
from broker_adapter.amqp.proton_engine.frames import FrameRules
from tests.broker_adapter.amqp.frames import DISPOSITION, frame

EVER = 0x7FFFFFFF


def state(code: int, *fields: Any) -> Described:
    return Described(ULong(code), list(fields))


def fields_of(first: int, last: int | None, given: Any) -> tuple[list[Any], int]:
    """The fields of a disposition as they are read, and the size of its frame."""
    sent = frame(3, DISPOSITION, True, UInt(first), None if last is None else UInt(last), True, given)
    read = FrameRules(max_sessions=8, max_links=8).read(sent, 0, len(sent))
    assert read is not None
    return read[2], len(sent)


ERROR = Described(ULong(0x1D), [Symbol("amqp:internal-error"), "the order could not be processed: no such customer"])
SMALL = {
    "accepted": state(0x24),
    "released": state(0x26),
    "rejected with a short error": state(0x25, ERROR),
    "modified": state(0x27, True, True),
    "modified with a few annotations": state(0x27, True, False, {Symbol(f"x-opt-{n}"): n for n in range(4)}),
    "transactional": state(0x34, b"t" * 32, state(0x24)),
}
LARGE = {
    "modified with many annotations": state(0x27, True, False, {Symbol(f"k{n}"): n for n in range(5000)}),
    "rejected with a long error": state(0x25, Described(ULong(0x1D), [Symbol("a:b"), "x" * 100_000])),
    "transactional with a large outcome": state(0x34, b"t", state(0x27, True, False, {"k": "x" * 100_000})),
    "unknown": state(0x99, ["x"] * 9000),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_state_may_be_for_any_range(name: str) -> None:
    values, size = fields_of(0, EVER, SMALL[name])
    assert too_costly(values[4], size, 0, EVER) is None


@pytest.mark.parametrize("name", LARGE)
def test_a_large_state_may_be_for_few_deliveries_only(name: str) -> None:
    values, size = fields_of(7, 7, LARGE[name])
    assert too_costly(values[4], size, 7, 7) is None
    most = next(n for n in range(1, 20_000) if too_costly(values[4], size, 7, 7 + n)) - 1
    refusal = too_costly(values[4], size, 7, 7 + most + 1)
    assert refusal is not None
    assert refusal.condition == "amqp:resource-limit-exceeded"
    assert f"at most {most + 1} deliveries; settle fewer at once" in str(refusal.description)
    assert (most + 1) * size <= MAX_STATES_BYTES
    assert too_costly(values[4], size, 0xFFFFFFFF, 20_000) is not None, "numbers go round"


@pytest.mark.parametrize(
    ("given", "bare"),
    [
        *[(each, each) for each in (None, SMALL["accepted"], SMALL["released"], SMALL["modified"])],
        (SMALL["transactional"], SMALL["transactional"]),
        (SMALL["rejected with a short error"], state(0x25)),
        (SMALL["modified with a few annotations"], state(0x27, True, False)),
        (state(0x27), state(0x27, False, False)),
        (LARGE["transactional with a large outcome"], state(0x34, b"t", state(0x27, True, False))),
        (Described(Symbol("amqp:rejected:list"), [ERROR]), state(0x25)),
        (LARGE["unknown"], state(0x99)),
        (state(0x34, "no id", 5), state(0x34, None, False)),
        ("no state", None),
        (Described("no number", []), None),
    ],
)
def test_a_server_reads_little_of_a_state(given: Any, bare: Any) -> None:
    values, _ = fields_of(1, 9, given)
    rules = FrameRules(max_sessions=8, max_links=8)
    sent = bare_frame(3, values)
    read = rules.read(sent, 0, len(sent))
    assert read is not None
    assert read[:2] == (DISPOSITION, 3)
    assert read[2][:5] == [True, 1, 9, True, bare]


@pytest.mark.parametrize("code", [0x27, 0x34])
def test_the_annotations_of_a_state_are_kept_elsewhere_by_a_number(code: int) -> None:
    annotations = {Symbol("k"): "x"}
    modified, bare = state(0x27, True, False, annotations), state(0x27, True, False, {0: 7})
    given = modified if code == 0x27 else state(0x34, b"t", modified)
    assert annotations_of(given) == annotations
    values, _ = fields_of(1, 9, given)
    sent = bare_frame(3, values, 7)
    read = FrameRules(max_sessions=8, max_links=8).read(sent, 0, len(sent))
    assert read is not None
    assert read[2][4] == (bare if code == 0x27 else state(0x34, b"t", bare))


@pytest.mark.parametrize("code", [0x25, 0x34])
def test_the_description_of_an_error_is_kept_elsewhere_by_a_number(code: int) -> None:
    rejected, bare = state(0x25, ERROR), state(0x25, Described(ULong(0x1D), [Symbol(KEPT_CONDITION), "7"]))
    given = rejected if code == 0x25 else state(0x34, b"t", rejected)
    assert annotations_of(given) == {KEPT: ERROR.value[1]}
    values, _ = fields_of(1, 9, given)
    sent = bare_frame(3, values, 7)
    read = FrameRules(max_sessions=8, max_links=8).read(sent, 0, len(sent))
    assert read is not None
    assert read[2][4] == (bare if code == 0x25 else state(0x34, b"t", bare))


@pytest.mark.parametrize(
    "given",
    [
        *(state(0x25), state(0x25, 5), state(0x25, Described(ULong(0x1D), 5)), state(0x25, Described(ULong(0x1D), []))),
        *(state(0x25, Described(ULong(0x1D), [Symbol("a:b"), each])) for each in (None, "", 5)),
        *(None, "x", state(0x24), state(0x27), state(0x27, True, False, 5), state(0x34, b"t"), state(0x34, b"t", 5)),
        Described(ULong(0x27), {}),
    ],
)
def test_a_state_without_annotations_has_none(given: Any) -> None:
    assert annotations_of(given) is None


def test_what_is_not_checked_cannot_have_a_large_state() -> None:
    _, size = fields_of(0, EVER, SMALL["accepted"])
    assert size < LIGHT_BYTES
