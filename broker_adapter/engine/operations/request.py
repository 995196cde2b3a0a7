"""What a request beyond messaging is: one frozen class, and all that follows from it.  Pure.

Theory of operation
    A class that is decorated with :func:`request` is an operation of the engine, ``read_range`` of
    ``ReadRangeRequest``.  Its fields are the arguments, its docstring is what the page of the requests says
    of the answer, and ``steps`` carries it out.  From the class follow what a request may be (:func:`request_of`), what
    is refused before a request is unpacked (:func:`check_outline`), which destinations the user is asked about
    (``broker_adapter.server.access.permissions``), the group of threads that it has at a server, and whether it takes
    effect once.  On the wire a request is the name, and a map of the arguments by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, dataclass_transform

import attrs

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.operations.reader import Reader
from broker_adapter.engine.records.layout import LAST_POSITION
from broker_adapter.errors import MessageFormatException
from broker_adapter.packing import Unread

#: Longest id of a request, in characters.
MAX_REQUEST_ID: Final = 100
#: Longest text in an argument, in characters: errors repeat names, and answers are remembered.
MAX_TEXT: Final = 4096
#: Members that one value of a list has with it, at most: (position, (producer, thread, sequence), failures).
_MEMBERS_OF_GIVEN: Final = 7


@attrs.frozen
class Beside:
    """A step that is carried out beside the engine, and may wait: ``look`` gets the engine."""

    look: Callable[[Any], Any]


#: A step of an operation: a command, something to read between two cycles, or beside them.  The generator gets its
#: result.
Step = c.Command | Callable[[Reader], Any] | Beside
Steps = Generator[Step, Any, Any]


class Threads(Enum):
    """The threads of a server that carry a request out; see ``broker_adapter.server.workers.requests``."""

    RESTORING = "restoring"
    CONFIRMING = "confirming"
    PUBLISHING = "publishing"
    SHORT = "short"
    STREAMING = "streaming"
    EVENTS = "events"
    INTEREST = "interest"
    CHANGING = "changing"
    DESCRIBING = "describing"
    READING = "reading"
    LONG = "long"
    GATEWAY = "gateway"
    FOLLOWING = "following"


class Names(Enum):
    """What an argument names."""

    DESTINATION = "a queue, or a topic where the argument 'kind' says so"
    QUEUE = "a queue"
    QUEUES = "several queues: their names are read before the request is taken"
    TOPIC = "a topic: that of a region, or of the id of a durable client"


#: The right to do what the operation is called, and to send to what an argument names.
OWN: Final = ""
SEND: Final = "send"
#: The default of an argument that has to be given.
NEEDED: Final = object()


class Argument(NamedTuple):
    """One argument.  ``default`` is what it is where it is not given, and may be given as well."""

    kind: type
    default: Any
    of: type | None  #: what a list is of; None: anything
    least: int  #: of a number, or of those in a list
    most: int  #: of a number, or of those in a list
    most_values: int  #: of a list
    names: Names | None  #: what it names; None: no destination
    rights: Sequence[str]  #: to what it names, that the user needs
    note: str  #: for the page of the requests


def argument(
    default: Any = NEEDED,
    *,
    least: int = 0,
    most: int = LAST_POSITION,
    most_values: int = 0,
    names: Names | None = None,
    rights: Sequence[str] = (OWN,),
    note: str = "",
) -> Any:
    """Make a field of a request; its type is that of the annotation.

    Args:
        default: where it is not given; without one it has to be given.
        least: lowest number, of a list's as well.
        most: highest number, of a list's as well.
        most_values: most values of a list.
        names: what it names, so that a user is asked about; None: no destination.
        rights: that the user needs on that.
        note: for the page of the requests, in parentheses behind the name.
    """
    limits = {"least": least, "most": most, "most_values": most_values, "names": names, "rights": rights, "note": note}
    return attrs.field(default=attrs.NOTHING if default is NEEDED else default, metadata=limits)


@attrs.frozen(kw_only=True, eq=False, repr=False, slots=False)
class Request:
    """A request whose arguments were checked."""

    operation: ClassVar[str]
    threads: ClassVar[Threads]
    once: ClassVar[bool]  #: whether it is not the same when it is carried out again
    right: ClassVar[str]  #: that the user needs where no argument names a destination
    arguments: ClassVar[Mapping[str, Argument]]
    every: ClassVar[Mapping[str, Argument]]  #: also those by which a repeated request is recognised
    naming: ClassVar[Sequence[tuple[str, Argument]]]  #: the arguments that name a destination
    #: What a repeated request is recognised by; every operation takes it.
    request_id: str | None = argument(None)
    request_run: str | None = argument(None)

    def __repr__(self) -> str:
        return f"<{self.operation}>"

    def check(self) -> None:
        """Raise MessageFormatException where an argument does not go with another one."""

    def steps(self, client: int) -> Steps:
        """Carry it out in steps, each perhaps in another cycle of the engine, and others in between.

        Args:
            client: the engine's number of the connection that asks; 0: none asks.
        """
        raise NotImplementedError

    @property
    def what(self) -> dict[str, Any]:
        """What it asks for, for a comparison with another one: all but what a repetition is recognised by."""
        return {"operation": self.operation, **{name: getattr(self, name) for name in self.arguments}}


R = TypeVar("R", bound=type[Request])
#: The requests by their operations.
REQUESTS: Final[dict[str, type[Request]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(argument,))
def request(
    threads: Threads = Threads.LONG,
    *,
    once: bool = False,
    operation: str | None = None,
    right: str | None = None,
    table: dict[str, type[Request]] = REQUESTS,
) -> Callable[[R], R]:
    """Make a class a request.

    Args:
        threads: that carry it out at a server.
        once: whether it is not the same when it is carried out again.
        operation: its name; None: that of the class in lower case, without ``Request``.
        right: that the user needs where no argument names a destination; None: the operation.
        table: takes it.
    """

    def made(cls: R) -> R:
        frozen = fields_of(cls)
        frozen.operation = operation or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Request")).lower()
        frozen.threads, frozen.once, frozen.right = threads, once, right or frozen.operation
        frozen.every = _arguments(frozen)
        frozen.arguments = {name: each for name, each in frozen.every.items() if name not in REPETITION}
        frozen.naming = [(name, each) for name, each in frozen.arguments.items() if each.names is not None]
        table[frozen.operation] = frozen
        return frozen

    return made


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(argument,))
def fields_of(cls: R) -> R:
    """Make a class the base of requests that share arguments."""
    return attrs.frozen(cls, kw_only=True, eq=False, repr=False, slots=False)


def _arguments(cls: type[Request]) -> dict[str, Argument]:
    """Return what the arguments must be, from their types and what :func:`argument` has noted."""
    found = {}
    for field in attrs.fields(cls):
        kind, of = _KINDS[field.type.removesuffix(" | None")]
        default = NEEDED if field.default is attrs.NOTHING else field.default
        found[field.name] = Argument(kind, default, of, **field.metadata)
    return found


#: By the annotation of an argument its kind, and what a list is of.
_KINDS: Final[dict[str, tuple[type, type | None]]] = {
    "bool": (bool, None),
    "bytes": (bytes, None),
    "int": (int, None),
    "str": (str, None),
    "Sequence[Any]": (list, None),
    "Sequence[bytes]": (list, bytes),
    "Sequence[int]": (list, int),
    "Sequence[str]": (list, str),
}
REPETITION: Final = _arguments(Request)


def type_of(operation: str, table: Mapping[str, type[Request]] = REQUESTS) -> type[Request]:
    """Return the class of an operation; raises MessageFormatException where it is unknown."""
    found = table.get(operation) if isinstance(operation, str) else None
    if found is None:
        raise MessageFormatException(
            f"unknown operation {operation!r:.100}; the operations are {', '.join(sorted(table))}"
        )
    return found


def request_of(operation: str, given: Mapping[str, Any], table: Mapping[str, type[Request]] = REQUESTS) -> Request:
    """Return a request, with the default of each argument that is not given.

    Args:
        operation: its name.
        given: the arguments by name.
        table: of the requests that there are.

    Raises:
        MessageFormatException: the operation is unknown, or an argument is missing, unknown or of another type, or does
            not go with another one.
    """
    cls = type_of(operation, table)
    if not isinstance(given, Mapping):
        raise MessageFormatException(f"the arguments of operation {operation!r} are not a map by name: {given!r:.100}")
    _check_names(cls, given)
    every = cls.every
    kind: Any
    for name, value in given.items():
        kind, default, _, least, most, *_ = wanted = every[name]
        if value is default:
            continue
        if type(value) is kind and (
            kind is bool or (kind is str and len(value) <= MAX_TEXT) or (kind is int and least <= value <= most)
        ):
            continue
        _check_value(operation, name, wanted, value)
    try:
        made = cls(**given)
    except TypeError:
        name, missing = next(each for each in every.items() if each[1].default is NEEDED and each[0] not in given)
        raise MessageFormatException(
            f"operation {operation!r} needs the argument {name!r} of type {missing.kind.__name__}, and it is missing"
        ) from None
    made.check()
    request_id = made.request_id
    if request_id is not None and not 0 < len(request_id) <= MAX_REQUEST_ID:
        raise MessageFormatException(
            f"the argument 'request_id' is a string of 1 to {MAX_REQUEST_ID} characters, not {request_id!r:.120}"
        )
    return made


def check_outline(cls: type[Request], given: Mapping[str, Any]) -> int:
    """Refuse early what ``request_of`` will refuse: what is unknown, too long, or a list where there can be none.

    Args:
        cls: what is asked for.
        given: the arguments of the request, with :class:`Unread` in place of what is large.

    Returns:
        How many members all lists and maps of the request have at most.

    Raises:
        MessageFormatException: it cannot be a request for this operation.
    """
    operation = cls.operation
    _check_names(cls, given)
    # Of the request itself, and of the map of its arguments.
    members = 3 + 2 * len(given)
    for name, value in given.items():
        wanted = cls.every[name]
        if isinstance(value, list):
            _check_count(operation, name, wanted, len(value))
            members += len(value)
        if not isinstance(value, Unread):
            continue
        if wanted.kind is str and value.kind == "text":
            raise _too_long(operation, name)
        if wanted.kind is not list or value.kind != "list":
            raise MessageFormatException(
                f"operation {operation!r} needs the argument {name!r} of type {wanted.kind.__name__}, not {value}"
            )
        _check_count(operation, name, wanted, value.size)
        if wanted.names is Names.QUEUES:
            raise MessageFormatException(
                f"the argument {name!r} of operation {operation!r} is no list of texts, or is longer than the limit of"
                " names in one request"
            )
        members += value.size * (1 if wanted.of is not None else _MEMBERS_OF_GIVEN)
    return members


def _check_names(cls: type[Request], given: Mapping[str, Any]) -> None:
    if not given.keys() <= cls.every.keys():
        wanted = cls.arguments
        unknown = [name for name in given if name not in cls.every]
        names = " and ".join(f"{name!r:.100}" for name in unknown[:5])
        has = f"it has {', '.join(wanted)}" if wanted else "it has none"
        raise MessageFormatException(
            f"operation {cls.operation!r} has no argument{'s' if len(unknown) > 1 else ''} {names}; {has}"
        )


def _check_value(operation: str, name: str, wanted: Argument, value: Any) -> None:
    kind: Any = wanted.kind
    # To Python True is an int; here it is none.
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise MessageFormatException(
            f"operation {operation!r} needs the argument {name!r} of type {kind.__name__}, not {value!r:.100}"
        )
    if kind is int and not wanted.least <= value <= wanted.most:
        found = str(value) if value.bit_length() <= 64 else f"a number of {value.bit_length()} bits"
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} is not from {wanted.least} to {wanted.most}: {found}"
        )
    if kind is str and len(value) > MAX_TEXT:
        raise _too_long(operation, name)
    if kind is list:
        _check_list(operation, name, wanted, value)


def _check_list(operation: str, name: str, wanted: Argument, values: Sequence[Any]) -> None:
    _check_count(operation, name, wanted, len(values))
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


def _check_count(operation: str, name: str, wanted: Argument, count: int) -> None:
    if count > wanted.most_values:
        raise MessageFormatException(
            f"the argument {name!r} of operation {operation!r} has {count} values; {wanted.most_values} is the limit of"
            " one request"
        )
