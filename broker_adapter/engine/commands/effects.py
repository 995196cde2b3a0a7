"""What the engine's rules decided: changes to store, then what may leave.

The order is the product: ``durable`` and ``volatile`` are written first; only when the commit has returned do
``deliveries`` and then ``replies`` leave, in their order.  ``loads`` ask for entries that are not in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol

from broker_adapter.engine.commands.messaging import NewMessage


class EntryRecord(Protocol):
    """What a store keeps of an entry beside its key."""

    @property
    def number(self) -> int:
        """Number of the message."""

    @property
    def delivery_count(self) -> int:
        """Failed deliveries."""

    @property
    def flags(self) -> int:
        """What it is."""

    @property
    def expires_at_ms(self) -> int:
        """0: never."""

    @property
    def size(self) -> int:
        """Bytes of the payload."""

    @property
    def group(self) -> int:
        """Number of its message group; 0: none."""


class StoreBatch:
    """Changes for one store, applied together or not at all.

    Attributes:
        messages: number → message, for new ones; numbers only grow.
        behind: numbers of those of them that nobody consumes now.
        references: (number, count) of new messages that several queues hold.
        entries: entry key → the entry, None to delete; the last change of a key counts.
        gone: numbers of messages that no queue holds any more.
        unreferenced: numbers of shared messages that one queue less holds.
        tables: other tables by name: key → value, None to delete.
    """

    __slots__ = ("behind", "entries", "gone", "messages", "references", "tables", "unreferenced")

    def __init__(self) -> None:
        self.messages: dict[int, NewMessage] = {}
        self.behind: list[range] = []
        self.references: list[tuple[int, int]] = []
        self.entries: dict[bytes, EntryRecord | None] = {}
        self.gone: list[int] = []
        self.unreferenced: list[int] = []
        self.tables: dict[str, dict[bytes, bytes | None]] = {}

    def __bool__(self) -> bool:
        return bool(self.messages or self.entries or self.gone or self.unreferenced or self.tables)

    def put(self, table: str, key: bytes, value: bytes | None) -> None:
        """Put a record into one of the small tables, or delete it (value None)."""
        changes = self.tables.get(table)
        if changes is None:
            changes = self.tables[table] = {}
        changes[key] = value

    def keep(self, number: int, key: bytes) -> None:
        """Leave an entry and its message where they are, which were to go."""
        self.entries.pop(key, None)
        for numbers in (self.gone, self.unreferenced):
            if number in numbers:
                numbers.remove(number)


class Outgoing(NamedTuple):
    """A message that a consumer gets once the commit is done; the broker adds the payload."""

    number: int  #: of the delivery
    position: int
    delivery_count: int
    message: int  #: number of the message
    flags: int
    key: bytes  #: of the entry


class Leaving(NamedTuple):
    """An event that a durable client gets once the commit is done; the broker adds the payload."""

    message: int  #: number of the message; 0: there is none
    handout: Any


class Load(NamedTuple):
    """Ask for up to ``limit`` entries of a lane behind ``after``, in order."""

    queue: int
    lane: int
    after: int
    limit: int


class Scan(NamedTuple):
    """Ask for up to ``limit`` messages of a lane behind ``after``, for a consumer with a selector to match."""

    consumer: int
    queue: int
    lane: int
    after: int
    limit: int


class Candidate:
    """Asks for a message that came in or came back, to match it with the consumers that search.

    Attributes:
        queue: of the message.
        entry: of the message.
        through: the number of the last consumer that was asked.
    """

    __slots__ = ("entry", "queue", "through")

    def __init__(self, queue: Any, entry: Any) -> None:
        self.queue = queue
        self.entry = entry
        self.through = 0


class WarningRecord(NamedTuple):
    """A warning for the log, of whose kind one is written in a minute (:mod:`broker_adapter.limited_log`)."""

    kind: Hashable
    text: str  #: with the places of the arguments
    arguments: tuple[object, ...]


class Effects:
    """All that one or more commands brought about."""

    __slots__ = (
        "browsers",
        "candidates",
        "deliveries",
        "distrusted",
        "durable",
        "ended",
        "ended_again",
        "events",
        "faults",
        "handouts",
        "loads",
        "overfull",
        "published",
        "replies",
        "scans",
        "taken_annotations",
        "touches_unloaded",
        "volatile",
        "warnings",
    )

    def __init__(self) -> None:
        self.durable = StoreBatch()
        self.volatile = StoreBatch()
        self.deliveries: list[tuple[Any, list[Outgoing]]] = []  #: (consumer, messages)
        self.handouts = 0  #: how many messages these are
        self.events: list[tuple[Any, list[Leaving]]] = []  #: (sink of a durable client, what leaves for it)
        self.replies: list[tuple[Callable[[Any], None], Any]] = []
        self.loads: list[Load] = []
        self.scans: list[Scan] = []
        self.candidates: list[Candidate] = []  #: what came in or back
        self.browsers: list[Any] = []  #: those that have something to do once the commit is done
        #: queue, position and failures of what was processed or dead-lettered after deliveries of it had failed
        self.ended_again: list[tuple[int, int, int]] = []
        self.published: list[
            int
        ] = []  #: staged queues whose entries are to be moved, in order, and which are then to be dropped
        self.faults: list[tuple[Any, Exception]] = []  #: commands that failed as they must not, and how
        self.distrusted: list[tuple[int, bytes]] = []  #: (message, entry key) that are to go into quarantine
        self.taken_annotations: dict[bytes, bytes] = {}  #: of entries that came and went within the cycle
        self.touches_unloaded = False  #: whether entries that are not in memory are deleted
        self.ended: list[int] = []  #: queues whose entries are to be trimmed, and which are then to be dropped
        self.overfull: list[int] = []  #: queues whose oldest messages are to be dropped
        self.warnings: list[WarningRecord] = []

    def warn(self, kind: Hashable, text: str, *arguments: object) -> None:
        """Log a warning once the commit is done; see :class:`WarningRecord`."""
        self.warnings.append(WarningRecord(kind, text, arguments))

    def answer(self, command: Any, result: Any) -> None:
        """Answer a command, if a reply to it is wanted."""
        if command.reply is not None:
            self.replies.append((command.reply, result))
