"""What the arguments of a request must be.  No operation is begun with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker_adapter.engine.records.layout import LAST_POSITION
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import Unread

#: Longest id of a request, in characters.
MAX_REQUEST_ID: Final = 100
#: Longest text in an argument, in characters: errors repeat names, and answers are remembered.
MAX_TEXT: Final = 4096
#: Members that one value of a list has with it, at most: (position, (producer, thread, sequence), failures).
_MEMBERS_OF_GIVEN: Final = 7

#: The default of an argument that has to be given.
NEEDED: Final = object()


class Argument(NamedTuple):
    """One argument.  ``default`` is what it is where it is not given, and may be given as well."""

    kind: type
    default: Any = NEEDED
    least: int = 0  #: of a number, or of those in a list
    most: int = LAST_POSITION  #: of a number, or of those in a list
    of: type | None = None  #: what a list is of
    most_values: int = 0  #: of a list


#: The argument that names several destinations: they are read before the request is taken, for the permissions.
DESTINATIONS: Final = "destinations"
#: What names a queue.
QUEUE: Final = {
    "destination": Argument(str),
    "kind": Argument(str, "queue"),
    "subscription": Argument(str, None),
    "client_id": Argument(str, None),
}
#: What a repeated request is recognised by; every operation takes it.
REPETITION: Final = {"request_id": Argument(str, None), "request_run": Argument(str, None)}


def checked(operation: str, wanted: Mapping[str, Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of an operation, those that are not given with their default.

    Args:
        operation: its name.
        wanted: the arguments that it has.
        given: the arguments of the request.

    Raises:
        MessageFormatException: one is missing, unknown or of another type, or does not go with another one.
    """
    if not isinstance(given, Mapping):
        raise MessageFormatException(f"the arguments of operation {operation!r} are not a map by name: {given!r:.100}")
    _check_names(operation, wanted, given)
    values = {name: _value(operation, name, each, given) for name, each in (*wanted.items(), *REPETITION.items())}
    if "destination" in wanted:
        _check_queue(operation, values)
    request_id = values["request_id"]
    if request_id is not None and not 0 < len(request_id) <= MAX_REQUEST_ID:
        raise MessageFormatException(
            f"the argument 'request_id' is a string of 1 to {MAX_REQUEST_ID} characters, not {request_id!r:.120}"
        )
    return values


def check_outline(operation: str, wanted: Mapping[str, Argument], given: Mapping[str, Any]) -> int:
    """Refuse early what ``checked`` is going to refuse: what is unknown, too long, or a list where there can be none.

    Args:
        operation: its name.
        wanted: the arguments that it has.
        given: the arguments of the request, with :class:`Unread` in place of what is large.

    Returns:
        How many members all lists and maps of the request have at most.

    Raises:
        MessageFormatException: it cannot be a request for this operation.
    """
    _check_names(operation, wanted, given)
    # Of the request itself, and of the map of its arguments.
    members = 3 + 2 * len(given)
    for name, value in given.items():
        argument = wanted.get(name) or REPETITION[name]
        if isinstance(value, list):
            check_count(operation, name, argument, len(value))
            members += len(value)
        if not isinstance(value, Unread):
            continue
        if argument.kind is str and value.kind == "text":
            raise _too_long(operation, name)
        if argument.kind is not list or value.kind != "list":
            raise MessageFormatException(
                f"operation {operation!r} needs the argument {name!r} of type {argument.kind.__name__}, not {value}"
            )
        check_count(operation, name, argument, value.size)
        if name == DESTINATIONS:
            raise MessageFormatException(
                f"the argument {name!r} of operation {operation!r} is no list of texts, or is longer than the limit of"
                " names in one request"
            )
        members += value.size * (1 if argument.of is not None else _MEMBERS_OF_GIVEN)
    return members


def _check_names(operation: str, wanted: Mapping[str, Argument], given: Mapping[str, Any]) -> None:
    unknown = [name for name in given if name not in wanted and name not in REPETITION]
    if unknown:
        raise MessageFormatException(f"operation {operation!r} {_has_not(unknown, wanted)}")


def _has_not(unknown: Sequence[Any], wanted: Mapping[str, Argument]) -> str:
    names = " and ".join(f"{name!r:.100}" for name in unknown[:5])
    has = f"it has {', '.join(wanted)}" if wanted else "it has none"
    return f"has no argument{'s' if len(unknown) > 1 else ''} {names}; {has}"


def _value(operation: str, name: str, wanted: Argument, given: Mapping[str, Any]) -> Any:
    value: Any = given.get(name, wanted.default)
    if value is wanted.default and value is not NEEDED:
        return value
    if not _is_of(value, wanted.kind):
        found = "and it is missing" if value is NEEDED else f"not {value!r:.100}"
        raise MessageFormatException(
            f"operation {operation!r} needs the argument {name!r} of type {wanted.kind.__name__}, {found}"
        )
    if wanted.kind is int and not wanted.least <= value <= wanted.most:
        found = str(value) if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} is not from {wanted.least} to {wanted.most}: {found}"
        )
    if wanted.kind is str and len(value) > MAX_TEXT:
        raise _too_long(operation, name)
    if wanted.kind is list:
        _check_list(operation, name, wanted, value)
    return value


def _check_list(operation: str, name: str, wanted: Argument, values: Sequence[Any]) -> None:
    check_count(operation, name, wanted, len(values))
    if wanted.of is not None and not all(type(each) is wanted.of for each in values):
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} is not a list of {wanted.of.__name__}"
        )
    if wanted.of is int and values and not wanted.least <= min(values) <= max(values) <= wanted.most:
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} has a number that is not from {wanted.least} to"
            f" {wanted.most}"
        )
    longest = max(map(len, values), default=0) if wanted.of is str else 0
    if longest > MAX_TEXT:
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} has a text of {longest} characters; {MAX_TEXT} is the"
            " limit"
        )


def _too_long(operation: str, name: str) -> MessageFormatException:
    return MessageFormatException(
        f"the argument {name!r} of operation {operation!r} is longer than {MAX_TEXT} characters, which is the limit"
    )


def check_count(operation: str, name: str, wanted: Argument, count: int) -> None:
    """Raises MessageFormatException where a list of so many values is too long for an argument."""
    if count > wanted.most_values:
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} has {count} values; {wanted.most_values} is the limit of"
            " one request"
        )


def _is_of(value: Any, kind: type) -> bool:
    """Whether a value is of a kind.  To Python True is an int; here it is none."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _check_queue(operation: str, values: Mapping[str, Any]) -> None:
    """A word that is misspelt must not name something larger."""
    kind = values["kind"]
    if kind not in ("queue", "topic"):
        raise MessageFormatException(
            f'the argument \'kind\' is "queue" or "topic", not {kind!r:.100} (operation {operation!r})'
        )
    if kind == "queue":
        for name in ("subscription", "client_id", "durable"):
            if values.get(name) is not None:
                raise MessageFormatException(
                    f'the argument {name!r} needs the kind "topic": a queue has none (operation {operation!r})'
                )
    elif values.get("make"):
        raise MessageFormatException(
            "the argument 'make' needs the kind \"queue\"; make a subscription with a consumer"
        )
    elif values["subscription"] is None:
        for name in ("client_id", "durable"):
            if values.get(name) is not None:
                raise MessageFormatException(
                    f"the argument {name!r} needs a 'subscription' that it is of (operation {operation!r})"
                )
