"""What a disposition may cost: its state, for each of the deliveries that it is about.  Pure.

proton gives every delivery of the range a copy of the state, and keeps it as long as the connection lives.  So a large
state is for few deliveries; and a server, which reads little of a state, gives proton only that.
"""

from __future__ import annotations

from typing import Any, Final

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import ACCEPTED, DECLARED, MODIFIED, RECEIVED, REJECTED, RELEASED, TRANSACTIONAL
from broker_adapter.amqp.messages.values import Described, Symbol, UInt, ULong, encode
from broker_adapter.settings import MIB

#: The fields of a disposition that have at most so many bytes, together, cannot have a state that costs much.
LIGHT_BYTES: Final = 40
#: What the states of the deliveries of one disposition may take in memory.
MAX_STATES_BYTES: Final = 64 * MIB
#: So many deliveries, at most, are expected to be unsettled at once, whatever the range.
_MOST_DELIVERIES: Final = 65_536
#: What one value in a state takes in memory beside its bytes.
_VALUE_BYTES: Final = 50
_NAMES: Final = {
    "amqp:received:list": RECEIVED,
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
    "amqp:declared:list": DECLARED,
    "amqp:transactional-state:list": TRANSACTIONAL,
}


def too_costly(state: Any, size: int, first: int, last: int) -> AmqpError | None:
    """Why a disposition is refused, if its state is too large for so many deliveries.

    Args:
        state: decoded.
        size: bytes of its frame.
        first: the first delivery that it is about.
        last: the last one; numbers go round.
    """
    deliveries = (last - first & 0xFFFFFFFF) + 1
    if deliveries == 1 or state is None:
        return None
    cost = size + _VALUE_BYTES * _values(state)
    if min(deliveries, _MOST_DELIVERIES) * cost <= MAX_STATES_BYTES:
        return None
    reason = (
        f"a disposition of {deliveries} deliveries has a state of {size} bytes, which may be for at most"
        f" {MAX_STATES_BYTES // cost} deliveries; settle fewer at once, or with a smaller state"
    )
    return AmqpError("amqp:resource-limit-exceeded", reason)


def _values(value: Any) -> int:
    """Return how many values there are in a value, with itself."""
    if isinstance(value, Described):
        return 1 + _values(value.descriptor) + _values(value.value)
    if isinstance(value, dict):
        return 1 + sum([_values(key) + _values(each) for key, each in value.items()])
    if isinstance(value, list):
        return 1 + sum(map(_values, value))
    return 1


#: Key of a bare state's annotations: the number by which they are kept elsewhere.  AMQP keeps numbers for itself.  Also
#: the key by which the description of a ``rejected`` outcome is kept.
KEPT: Final = 0
#: Condition of a bare ``rejected`` whose description is such a number.
KEPT_CONDITION: Final = "holdfast:kept"


def annotations_of(state: Any) -> dict[Any, Any] | None:
    """What is kept of an outcome, also of one in a transaction, as it was decoded; None: nothing.

    Of a ``modified`` its annotations, of a ``rejected`` the description of its error.
    """
    if not isinstance(state, Described) or not isinstance(state.value, list):
        return None
    code, values = _code(state.descriptor), state.value
    if code == TRANSACTIONAL:
        return annotations_of(values[1]) if len(values) > 1 else None
    if code == REJECTED and values and isinstance(values[0], Described):
        error = values[0].value
        description = error[1] if isinstance(error, list) and len(error) > 1 else None
        return {KEPT: description} if description and isinstance(description, str) else None
    return values[2] if code == MODIFIED and len(values) > 2 and isinstance(values[2], dict) else None


def bare_frame(channel: int, fields: list[Any], kept: int = 0) -> bytes:
    """A disposition with what a server reads of its state, and nothing else.

    Args:
        channel: of the frame.
        fields: of the disposition.
        kept: the number by which the annotations of its state are kept; 0: it has none.
    """
    role, first, last, settled, state = fields[:5]
    values = [role, UInt(first), None if last is None else UInt(last), settled, _bare(state, kept)]
    body = encode(Described(ULong(0x15), values))
    return (8 + len(body)).to_bytes(4) + b"\x02\x00" + channel.to_bytes(2) + body


def _bare(state: Any, kept: int) -> Any:
    """Return what a server reads of a state; what is malformed stays as far as it is small, and is refused later."""
    if not isinstance(state, Described):
        return None
    code = _code(state.descriptor)
    if code is None:
        return None
    values = state.value if isinstance(state.value, list) else []
    fields: list[Any] = []
    if code == MODIFIED:
        fields = [each is True for each in (*values[:2], None, None)[:2]]
        if kept:
            fields.append({ULong(KEPT): ULong(kept)})
    elif code == REJECTED and kept:
        fields = [Described(ULong(0x1D), [Symbol(KEPT_CONDITION), str(kept)])]
    elif code in (DECLARED, TRANSACTIONAL) and values:
        fields = [values[0] if isinstance(values[0], bytes) else None]
        if code == TRANSACTIONAL and len(values) > 1 and values[1] is not None:
            fields.append(_bare_outcome(values[1], kept))
    return Described(ULong(code), fields)


def _bare_outcome(outcome: Any, kept: int) -> Any:
    codes = (ACCEPTED, REJECTED, RELEASED, MODIFIED)
    if isinstance(outcome, Described) and _code(outcome.descriptor) in codes and isinstance(outcome.value, list):
        return _bare(outcome, kept)
    return False  # which is none


def _code(descriptor: Any) -> int | None:
    if isinstance(descriptor, str):
        return _NAMES.get(descriptor)
    return descriptor if isinstance(descriptor, int) and 0 <= descriptor < 1 << 64 else None
