"""What is added to the properties of a stored message: by its engine, and by consumers that gave it back.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgpack

#: Stands before the name of a message annotation that a consumer has added as it gave the message back.  Its value is
#: a str, bool, float or int; or a list of such a value, None where it has none, and the value as AMQP encodes it.
ANNOTATION_PREFIX = "JMS_AMQP_MA_"
#: Among these: what a listener has raised, which only a dead letter has as a property.
EXCEPTION_ANNOTATION = f"{ANNOTATION_PREFIX}x-opt-holdfast-exception"
#: Among these: how much was not added, because there was too much.
LEFT_OUT_ANNOTATION = f"{ANNOTATION_PREFIX}x-opt-holdfast-left-out"
#: Bytes of what the engine and consumers have added to a message, in msgpack.
MAX_ANNOTATION_BYTES = 4096


def is_set_aside(annotations: Iterable[str]) -> bool:
    """Return whether its engine has set a message aside, or put it back from there, or it is an event: it does not
    expire.  Any property that is not a consumer's says so; one that the engine adds otherwise has to be excepted here.
    """
    return not all(name.startswith(ANNOTATION_PREFIX) for name in annotations)


def added_properties(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was added to a message as properties."""
    found: dict[str, Any] = {}
    for name, value in annotations.items():
        plain = value[0] if type(value) is list else value
        if plain is not None and name != EXCEPTION_ANNOTATION:
            found[name] = plain
    return found


def with_annotations(annotations: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was added to a message, with more: new values win; if it is too much, what is left out is told."""
    found = {**annotations, **added}
    size = len(msgpack.packb(found))
    if size <= MAX_ANNOTATION_BYTES:
        return found
    told = f"annotations of {size} bytes, with those that the message had; the limit is {MAX_ANNOTATION_BYTES}"
    return {**annotations, LEFT_OUT_ANNOTATION: told}
