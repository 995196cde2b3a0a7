"""Between proton's memory and values: its data, conditions, termini and dispositions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from cproton_ffi import ffi, lib

from broker_adapter.amqp.conditions import AmqpError
from broker_adapter.amqp.events import (
    ACCEPTED,
    DECLARED,
    MODIFIED,
    PLAIN_STATES,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    State,
    Terminus,
)
from broker_adapter.amqp.messages.values import Described, Reader, Symbol, Symbols, TypedReader, ULong, decode, encode

#: Longest id of a transaction, in bytes.  AMQP 1.0 (section 4.5.4) says 32, and those of Artemis have 36.  What is
#: longer might not fit into a frame with the rest of a transfer, and proton cannot write such a transfer; a broker
#: chooses the size of both.
_MAX_TXN_ID_BYTES: Final = 256
#: Longest description of an error that is sent, in characters.
MAX_DESCRIPTION: Final = 4096
_EXPIRY: Final = {"link-detach": 0, "session-end": 1, "connection-close": 2, "never": 3}
_EXPIRY_NAMES: Final = {number: name for name, number in _EXPIRY.items()}


def text_at(pointer: Any) -> str | None:
    return None if pointer == ffi.NULL else ffi.string(pointer).decode()


def c_text(text: str) -> bytes:
    """Text for a C string; raises ValueError for what would be cut off there."""
    if "\0" in text:
        raise ValueError(f"{text!r:.200} has a character that AMQP names cannot have")
    return text.encode()


def _read_data(data: Any, reader_of: type[Reader] = Reader) -> Any:
    """The value in a ``pn_data_t``, or None where it is empty."""
    if data == ffi.NULL:
        return None
    encoded = _encoded(data)
    return decode(encoded, reader_of) if encoded else None


def _encoded(data: Any, memory: Any = None, room: int = 0) -> bytes:
    """Return what is in a ``pn_data_t``, encoded; nothing where it is empty.

    Args:
        data: it.
        memory: where it may be encoded, if it fits there.
        room: the size of the memory.
    """
    lib.pn_data_rewind(data)
    if room:
        written = lib.pn_data_encode(data, memory, room)
        if written >= 0:
            return ffi.unpack(memory, written) if written else b""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return b""
    memory = ffi.new("char[]", size)
    written = lib.pn_data_encode(data, memory, size)
    return ffi.unpack(memory, written) if written > 0 else b""


def _write_data(data: Any, value: Any) -> None:
    _write_encoded(data, encode(value))


def _write_encoded(data: Any, encoded: bytes) -> None:
    assert data != ffi.NULL
    lib.pn_data_clear(data)
    if lib.pn_data_decode(data, encoded, len(encoded)) != len(encoded):
        raise ValueError(f"proton cannot take {decode(encoded)!r:.200}")
    lib.pn_data_rewind(data)


def read_names(data: Any) -> tuple[str, ...]:
    value = _read_data(data)
    if value is None:
        return ()
    return tuple(str(name) for name in (value if isinstance(value, list) else [value]))


def read_mapping(data: Any, reader_of: type[Reader] = Reader) -> dict[Any, Any]:
    value = _read_data(data, reader_of)
    return value if isinstance(value, dict) else {}


def write_names(data: Any, names: Iterable[str]) -> None:
    names = Symbols(names)
    if names:
        _write_data(data, names)


def write_mapping(data: Any, mapping: dict[Any, Any] | None) -> None:
    if mapping:
        _write_data(data, {Symbol(key): value for key, value in mapping.items()})


def read_condition(condition: Any) -> AmqpError | None:
    if not lib.pn_condition_is_set(condition):
        return None
    name = text_at(lib.pn_condition_get_name(condition))
    if name is None:
        return None
    return AmqpError(
        name, text_at(lib.pn_condition_get_description(condition)), read_mapping(lib.pn_condition_info(condition))
    )


def write_condition(condition: Any, error: AmqpError) -> None:
    lib.pn_condition_clear(condition)
    lib.pn_condition_set_name(condition, error.condition.encode())
    if error.description is not None:
        lib.pn_condition_set_description(
            condition, error.description[:MAX_DESCRIPTION].replace("\0", " ").encode(errors="replace")
        )
    if error.info:
        _write_data(
            lib.pn_condition_info(condition),
            {Symbol(key): Symbol(value) if isinstance(value, str) else value for key, value in error.info.items()},
        )


def words_of(terminus: Terminus | None) -> tuple[Any, ...]:
    """Return what in a terminus may be long."""
    return () if terminus is None else (terminus.address, terminus.filters, terminus.dynamic_properties)


def text_bytes(value: Any) -> int:
    """The bytes of all text in a value that is about to be encoded."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum([text_bytes(key) + text_bytes(each) for key, each in value.items()])
    if isinstance(value, Described):
        return text_bytes(value.value)
    if isinstance(value, list | tuple):
        return sum(map(text_bytes, value))
    return 0


def read_terminus(terminus: Any) -> Terminus | None:
    kind = lib.pn_terminus_get_type(terminus)
    if kind == lib.PN_UNSPECIFIED:
        return None
    if kind == lib.PN_COORDINATOR:
        return Terminus(capabilities=read_names(lib.pn_terminus_capabilities(terminus)), coordinator=True)
    return Terminus(
        address=text_at(lib.pn_terminus_get_address(terminus)),
        durable=lib.pn_terminus_get_durability(terminus),
        expiry=_EXPIRY_NAMES.get(lib.pn_terminus_get_expiry_policy(terminus)),
        timeout=lib.pn_terminus_get_timeout(terminus),
        dynamic=bool(lib.pn_terminus_is_dynamic(terminus)),
        dynamic_properties=read_mapping(lib.pn_terminus_properties(terminus)) or None,
        copies=lib.pn_terminus_get_distribution_mode(terminus) == lib.PN_DIST_MODE_COPY,
        filters=read_mapping(lib.pn_terminus_filter(terminus)) or None,
        outcomes=read_names(lib.pn_terminus_outcomes(terminus)),
        capabilities=read_names(lib.pn_terminus_capabilities(terminus)),
    )


def write_terminus(terminus: Any, value: Terminus | None, kind: int) -> None:
    if value is None:
        lib.pn_terminus_set_type(terminus, lib.PN_UNSPECIFIED)
        return
    lib.pn_terminus_set_type(terminus, lib.PN_COORDINATOR if value.coordinator else kind)
    if value.address is not None:
        lib.pn_terminus_set_address(terminus, c_text(value.address))
    lib.pn_terminus_set_durability(terminus, value.durable)
    if value.expiry is not None:
        lib.pn_terminus_set_expiry_policy(terminus, _EXPIRY[value.expiry])
    lib.pn_terminus_set_timeout(terminus, value.timeout)
    lib.pn_terminus_set_dynamic(terminus, value.dynamic)
    if value.copies:
        lib.pn_terminus_set_distribution_mode(terminus, lib.PN_DIST_MODE_COPY)
    write_mapping(lib.pn_terminus_properties(terminus), value.dynamic_properties)
    write_mapping(lib.pn_terminus_filter(terminus), value.filters)
    write_names(lib.pn_terminus_outcomes(terminus), value.outcomes)
    write_names(lib.pn_terminus_capabilities(terminus), value.capabilities)


def read_disposition(disposition: Any, code: int, memory: Any = None, room: int = 0) -> State:
    """The state in a disposition of proton's.

    Args:
        disposition: it.
        code: of the state.
        memory: scratch memory, which makes it quicker.
        room: the size of the memory.

    Raises:
        ValueError: it cannot be decoded.
    """
    plain = PLAIN_STATES.get(code)
    if plain is not None:
        return plain
    if code == REJECTED:
        return State(REJECTED, error=read_condition(lib.pn_disposition_condition(disposition)))
    if code == MODIFIED:
        return State(
            MODIFIED,
            failed=bool(lib.pn_disposition_is_failed(disposition)),
            undeliverable=bool(lib.pn_disposition_is_undeliverable(disposition)),
            annotations=read_mapping(lib.pn_disposition_annotations(disposition), TypedReader) or None,
        )
    data = lib.pn_disposition_data(disposition)
    encoded = _encoded(data, memory, room) if data != ffi.NULL else b""
    return (_kept_state if len(encoded) <= _MAX_KEPT_BYTES else _decoded_state)(code, encoded)


def _decoded_state(code: int, encoded: bytes) -> State:
    """The state that stands for these fields: of a transaction, or one that this module does not know."""
    fields = decode(encoded, TypedReader) if encoded else None
    if code in (DECLARED, TRANSACTIONAL) and isinstance(fields, list) and fields:
        txn_id = fields[0]
        if not isinstance(txn_id, bytes) or len(txn_id) > _MAX_TXN_ID_BYTES:
            raise ValueError(f"transaction id {txn_id!r:.100} is not binary of at most {_MAX_TXN_ID_BYTES} bytes")
        outcome = _outcome(fields[1]) if code == TRANSACTIONAL and len(fields) > 1 else None
        return State(code, txn_id=txn_id, outcome=outcome)
    return State(code)


#: Most messages of a transaction have the same state, which is decoded, and encoded, once.
_KEPT_STATES: Final = 256
_MAX_KEPT_BYTES: Final = 256
_kept_state: Final = lru_cache(maxsize=_KEPT_STATES)(_decoded_state)


def _outcome(value: Any) -> State | None:
    """An outcome inside a transactional state."""
    if value is None:
        return None
    descriptor: Any = getattr(value, "descriptor", None)
    code = _OUTCOME_CODES.get(descriptor, descriptor)
    if code not in (ACCEPTED, REJECTED, RELEASED, MODIFIED) or not isinstance(value.value, list):
        raise ValueError(f"{value!r:.200} is no outcome")
    fields = [*value.value, None, None, None]
    if code == REJECTED and fields[0] is not None:
        error = [*getattr(fields[0], "value", ()), None, None, None]
        return State(REJECTED, error=AmqpError(str(error[0]), None if error[1] is None else str(error[1]), error[2]))
    if code == MODIFIED:
        annotations = fields[2] if isinstance(fields[2], dict) else None
        return State(MODIFIED, failed=fields[0] is True, undeliverable=fields[1] is True, annotations=annotations)
    return State(code) if code == REJECTED else PLAIN_STATES[code]


_OUTCOME_CODES: Final = {
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
}


def write_disposition(disposition: Any, state: State) -> None:
    code = state.code
    if code == REJECTED and state.error is not None:
        write_condition(lib.pn_disposition_condition(disposition), state.error)
    elif code == MODIFIED:
        lib.pn_disposition_set_failed(disposition, state.failed)
        lib.pn_disposition_set_undeliverable(disposition, state.undeliverable)
        if state.annotations:
            write_mapping(lib.pn_disposition_annotations(disposition), state.annotations)
    elif code in (DECLARED, TRANSACTIONAL):
        write_fields(disposition, fields_of(state))


def fields_of(state: State) -> bytes:
    """The fields of the state of a delivery in a transaction, as ``write_fields`` takes them."""
    plain = state.outcome is None or state.outcome.code in PLAIN_STATES
    return (_kept_fields if plain else _encoded_fields)(state.txn_id, state.outcome)


def write_fields(disposition: Any, encoded: bytes) -> None:
    """Put the fields of a state into a disposition of proton's; its code is given with the update."""
    _write_encoded(lib.pn_disposition_data(disposition), encoded)


def _encoded_fields(txn_id: bytes | None, outcome: State | None) -> bytes:
    """The fields of the state of a delivery in a transaction."""
    return encode([txn_id] if outcome is None else [txn_id, _described_outcome(outcome)])


_kept_fields: Final = lru_cache(maxsize=_KEPT_STATES)(_encoded_fields)


def _described_outcome(state: State) -> Described:
    fields: list[Any] = []
    if state.code == REJECTED and state.error is not None:
        fields = [Described(ULong(0x1D), [Symbol(state.error.condition), state.error.description])]
    elif state.code == MODIFIED:
        fields = [state.failed, state.undeliverable, *([state.annotations] if state.annotations else ())]
    return Described(ULong(state.code), fields)
