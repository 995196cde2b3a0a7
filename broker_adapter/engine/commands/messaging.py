"""What the engine can be asked.

A command is plain data.  ``reply`` and ``sink`` are callables that the engine's rules treat as opaque: the broker
calls them once the commit that the answer depends on is on disk, from its own thread; they must return
quickly and not raise.  ``reply(result)`` gets the result named in the docstring or a JMSException.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from zlib import crc32

from ack_modes import Failure, Outcome
from broker_adapter.destination import Destination, DestinationKind
from broker_adapter.engine.commands.gateways import GatewayCommand
from broker_adapter.engine.commands.regions import ChangeKeys, EventCommand
from broker_adapter.engine.records.layout import MAX_SHORT_NAME, RawEntry, short_name
from broker_adapter.engine.records.new_message import NewMessage as NewMessage
from broker_adapter.engine.records.new_message import Reply as Reply
from broker_adapter.envelope import ENVELOPE_FORMAT, RESERVED, Envelope, Head, Identity, pack, without_reserved
from broker_adapter.transport import Subscription


class Handout(NamedTuple):
    """A message as it leaves the engine.  ``number`` names the delivery within its consumer."""

    number: int
    position: int
    delivery_count: int  #: failed deliveries before this one
    format: int  #: the AMQP message-format of ``payload``
    payload: bytes
    annotations: dict[str, Any] | None  #: properties that the engine adds, such as why a message is a dead letter
    suspect: bool = False  #: it may have ended the process before: see :class:`TakeInHand`


EngineSink = Callable[[Sequence[Handout]], None]


#: The last instant that the engine has a place for, milliseconds since the epoch: in the year 10,889.
LATEST_MS = (1 << 48) - 1
_new = tuple.__new__  #: what a named tuple calls, without a function of Python


def incoming(
    message_format: int,
    payload: bytes,
    priority: int,
    persistent: bool,
    expires_at_ms: int | None,
    deliver_at_ms: int | None,
    identity: Identity | None,
    group_id: str | None,
) -> NewMessage:
    """A message that comes in, from what it says about itself.

    Whatever it says, the engine can store it: a priority beyond 0 to 9 is the nearest of these, a time beyond
    :data:`LATEST_MS` is that one, and an expiry at or before the beginning of 1970 has passed.

    Args:
        message_format: of the payload.
        payload: the message as it is stored.
        priority: ``JMSPriority``.
        persistent: whether it survives the engine.
        expires_at_ms: when it expires, milliseconds since the epoch; None: never.
        deliver_at_ms: when it may be delivered; None: at once.
        identity: of its producer, that :func:`broker_adapter.envelope.check_identity` accepts; None: unknown.
        group_id: ``JMSXGroupID``.
    """
    if expires_at_ms is not None:
        expires_at_ms = min(max(expires_at_ms, 1), LATEST_MS)
    if deliver_at_ms is not None:
        deliver_at_ms = min(max(deliver_at_ms, 0), LATEST_MS)
    if not 0 <= priority <= 9:
        priority = 0 if priority < 0 else 9
    group = group_number(group_id) if group_id else 0
    if identity is not None and len(identity[0]) > MAX_SHORT_NAME:
        # The whole id is in the payload: where a message waits, or is part of a transaction, one copy is enough.
        identity = identity._replace(producer_id=short_name(identity.producer_id))
    return _new(
        NewMessage, (message_format, payload, priority, persistent, expires_at_ms, deliver_at_ms, identity, group)
    )


def from_envelope(payload: bytes, envelope: Envelope) -> NewMessage:
    """A message that comes in, from its envelope, of which ``pack`` has made the payload; see :func:`incoming`."""
    if envelope.properties and not RESERVED.isdisjoint(envelope.properties):
        payload = pack(without_reserved(envelope))
    return incoming(
        ENVELOPE_FORMAT,
        payload,
        envelope.priority,
        envelope.persistent,
        envelope.expires_at_ms,
        envelope.deliver_at_ms,
        envelope.identity,
        envelope.group_id,
    )


def from_head(payload: bytes, head: Head) -> NewMessage:
    """A message that comes in, from its head; see :func:`incoming`."""
    message_format, _, priority, persistent, expires_at_ms, deliver_at_ms, group_id, identity, allowed = head
    if allowed is not None:
        payload = allowed
    if (
        expires_at_ms is None
        and deliver_at_ms is None
        and not group_id
        and 0 <= priority <= 9
        and (identity is None or len(identity[0]) <= MAX_SHORT_NAME)
    ):  # the usual case: nothing to be fitted
        return _new(NewMessage, (message_format, payload, priority, persistent, None, None, identity, 0))
    return incoming(message_format, payload, priority, persistent, expires_at_ms, deliver_at_ms, identity, group_id)


#: Message groups are told apart by so many numbers; two groups of one number go to the same consumer.
MAX_GROUP_NUMBER = 0xFFFF


def group_number(group_id: str | None) -> int:
    """The number that stands for a message group (``JMSXGroupID``), from 1 on; 0: the message is in none."""
    return 1 + crc32(group_id.encode(errors="surrogatepass")) % MAX_GROUP_NUMBER if group_id else 0


class Connect(NamedTuple):
    """A client comes.  Replies with its number, or InvalidClientIDException where the id is in use.

    The id of a client that is not ``exclusive`` names its subscriptions, and others may have the same one.  By the
    ``token`` one that was lost says later what it had seen.
    """

    client_id: str | None
    exclusive: bool = True
    reply: Reply | None = None
    token: str | None = None


#: Numbers of deliveries that the application has not seen: they are released, whatever becomes of the others.
NeverDelivered = tuple[Container[int], ...]


class Disconnect(NamedTuple):
    """A client goes: its unsettled deliveries have ``failed``, or are released; its temporary destinations end.

    Its queues hand out nothing until all that it held is back.  Where it goes because the server or the engine
    ``stops``, a failure counts only for what has failed never before, as after a crash: it is not known what was seen.
    Replies None.
    """

    client: int
    failed: bool = True
    never_delivered: Mapping[int, NeverDelivered] | None = None  #: by consumer
    reply: Reply | None = None
    stops: bool = False


class GiveBack(NamedTuple):
    """A client is about to go: a part of its deliveries have ``failed``, or are released.  Replies None."""

    client: int
    limit: int
    failed: bool = True
    never_delivered: Mapping[int, NeverDelivered] | None = None  #: by consumer
    reply: Reply | None = None
    stops: bool = False


class Declare(NamedTuple):
    """Make sure that a queue exists, or that a topic can be used, which is there while it has subscriptions.

    Replies None.
    """

    destination: Destination
    reply: Reply | None = None


class DeclareTemporary(NamedTuple):
    """A temporary destination of this client; ``name`` None: the engine invents one.  Replies the Destination."""

    client: int
    kind: DestinationKind
    name: str | None = None
    reply: Reply | None = None


class DeleteTemporary(NamedTuple):
    """Delete a temporary destination of this client.  Replies None."""

    client: int
    destination: Destination
    reply: Reply | None = None


class Attach(NamedTuple):
    """A consumer comes; it has no credit yet.  Replies with its number.

    A named subscription of another topic, selector or no_local ends, with its messages, and a new one takes its place.
    Where it is none of those that the command ``may_replace``, the reply is :class:`WouldReplace`, and nothing happens.

    Where a queue has exclusive consumers, the one of them that came first gets everything, and the others get nothing.
    Nothing passes a message on which a consumer that is exclusive, or is to ``keep_order``, has failed.

    ``slice_bytes`` bounds what is on its way to the consumer: after so many bytes of messages (the last one may exceed
    them) it gets nothing, whatever its credit, until its next :class:`Credit` or :class:`Drain`.
    """

    client: int
    destination: Destination
    sink: EngineSink
    subscription: Subscription | None = None
    selector: str | None = None
    no_local: bool = False
    presettled: bool = False
    browse: bool = False
    slice_bytes: int | None = None
    exclusive: bool = False
    ended: Callable[[Any], None] | None = None  #: told why, where the engine ends the consumer
    may_replace: Container[int] | None = None  #: numbers of subscriptions; None: it may replace any
    keep_order: bool = False
    reply: Reply | None = None


class WouldReplace(NamedTuple):
    """The reply to an :class:`Attach` that would end a subscription that it may not replace."""

    subscription: int  #: its number


class Detach(NamedTuple):
    """A consumer goes.

    What it holds may still be settled until its client disconnects, but for what is ``never_delivered``.  Replies with
    the number of deliveries that it holds.  With ``give_back`` there are none: these have ``failed``, or are released.
    """

    consumer: int
    give_back: bool = False
    failed: bool = True
    never_delivered: NeverDelivered = ()
    reply: Reply | None = None


class Delete(NamedTuple):
    """Delete a queue, a topic with all its subscriptions, or one subscription of a topic, with its messages.

    What is in use is not deleted, unless by ``force``: then its consumers have ended, and are told by ``Attach.ended``.
    Replies with the number of messages that it had.
    """

    destination: Destination
    subscription: str | None = None
    client_id: str | None = None  #: of the subscription
    force: bool = False
    queue: int | None = None  #: the number of the one queue or subscription that is meant; another one is not deleted
    reply: Reply | None = None


class DeleteIdle(NamedTuple):
    """Delete queues and subscriptions that have not been used for as long as the options say.

    A part of them is checked each time.  Replies with (kind, name, messages that it had, for how long it was not used)
    of each that was deleted.
    """

    reply: Reply | None = None


class UsePolicies(NamedTuple):
    """Have other settings for the queues; they hold for messages that come in, fail or find a queue full from then on.

    Some queues get theirs at once, by number.  Replies with the last one of these, for the next such command; with None
    if there are no more, or others were given meanwhile.
    """

    policies: Any  #: :class:`broker_adapter.engine.queues.policies.Policies`
    after: int = 0  #: the last queue that has got them; 0: none has
    reply: Reply | None = None


class PutBack(NamedTuple):
    """Messages from quarantine go to the end of a queue or subscription; their records there end in the same commit.

    All or none.  Replies with the number put back: a record that is gone was put back already.
    """

    destination: Destination
    messages: Sequence[tuple[bytes, NewMessage]]  #: (key in ``quarantine``, message)
    there: frozenset[bytes] = frozenset()  #: supplied by the driver: the keys that are in quarantine
    subscription: tuple[str, str | None] | None = None  #: of the topic: its name and its client id
    keep: bool = False  #: whether their records stay in quarantine
    reply: Reply | None = None


class EndRun(NamedTuple):
    """The engine stops, and its clients have gone: each message that will be marked as redelivered gets a note of it.

    Replies None.
    """

    reply: Reply | None = None


class Unsubscribe(NamedTuple):
    """Delete a durable subscription of this client's id, or one that is known by its name alone.  Replies None."""

    client: int
    name: str
    of_client: bool = True
    reply: Reply | None = None


class Credit(NamedTuple):
    """Let a consumer have this many more messages, which may be none, and as many bytes again as its slice has."""

    consumer: int
    messages: int
    reply: Reply | None = None


class Drain(NamedTuple):
    """Use up or drop a consumer's credit.  Replies with the credit dropped, after the deliveries.

    A consumer whose slice of bytes was used up before that may have to ask again.
    """

    consumer: int
    reply: Reply | None = None


class Enqueue(NamedTuple):
    """Messages for one destination, in order.

    Replies None when all are taken (persistent ones are then on disk; a message that the engine has already
    counts as taken), else a list with None or a JMSException for each.  At a limit the reply waits.
    """

    client: int
    destination: Destination
    messages: Sequence[NewMessage]
    reply: Reply | None = None


class Modified(NamedTuple):
    """A ``modified`` outcome (AMQP 1.0 section 3.4.5) that says more than whether the delivery has failed."""

    outcome: Outcome  #: RELEASED, MODIFIED or FAILED
    undeliverable: bool = False  #: the message is not for this consumer, and others may have it
    annotations: Mapping[str, Any] | None = None  #: see :data:`broker_adapter.envelope.ANNOTATION_PREFIX`
    deliver_at_ms: int | None = None  #: not before
    delay_ms: int = 0  #: where ``deliver_at_ms`` does not say when


#: How a delivery ends.
Ending = Outcome | Failure | Modified


class Settle(NamedTuple):
    """End deliveries of one consumer, all alike.  Unknown numbers are ignored.  Replies None."""

    consumer: int
    numbers: Sequence[int]
    outcome: Ending
    reply: Reply | None = None


class CommitId(NamedTuple):
    """Names a commit: the session that makes it, in words unique for ever, and a number that counts up."""

    session: str
    number: int


#: What the groups begin with by which the engine notes what has come from other sites.
GATEWAY_GROUP: Final = "$gateway/"


class Origin(NamedTuple):
    """Where a message was sent first, by which it is known, whichever way it comes."""

    site: int
    number: int  #: of the message there
    previous: int  #: of the message before it to the same destination there; 0: it is not known


class SiteBatch(NamedTuple):
    """Says that what a commit does was sent by the gateway of another site, and up to where."""

    group: str  #: who sends, as in the last published numbers
    known: int  #: the last position of it that is known before
    position: int  #: of the last message of the commit
    sites: Sequence[Sequence[int]]  #: for each send, those that have seen the message
    origins: Sequence[Origin | None] = ()  #: for each send; None: it may come again by another way
    #: for each send and then each change, whether it belongs to the transaction of the one ahead; empty: none does
    joined: Sequence[bool] = ()

    def groups(self, destinations: Iterable[Destination]) -> list[str]:
        """Return the group by which the engine notes what has come of the origin of each send; empty: it has none.

        Args:
            destinations: of the sends.
        """
        found: list[str] = []
        last, group = None, ""
        for origin, destination in zip(self.origins, destinations, strict=False):
            if origin is None:
                found.append("")
                continue
            place = origin.site, destination
            if place != last:
                last, group = place, f"{GATEWAY_GROUP}{origin.site}:{int(destination.kind)}:{destination.name}"
            found.append(group)
        return found


class Applied(NamedTuple):
    """What became of the commit of a :class:`SiteBatch`."""

    known: int  #: the last position that is known now; another one than its own: nothing was done
    unchanged: int = 0  #: changes of keys that were not newer than what is there
    repeated: int = 0  #: messages that had come by another way


class Commit(NamedTuple):
    """Sends, settlements and changes of regions, all or nothing; the events of changes come behind the sends.

    Replies None when it is done (or was done before, by its id), else TransactionRolledBackException: the deliveries
    that were still held have then failed.  With a ``batch`` it replies with an :class:`Applied`, else the reason.
    """

    client: int
    commit_id: CommitId | None
    sends: Sequence[tuple[Destination, NewMessage]]
    settlements: Sequence[tuple[int, int, Ending]]  #: (consumer, number, outcome)
    reply: Reply | None = None
    changes: Sequence[ChangeKeys] = ()  #: of one region each, in order; their own replies are not used
    batch: SiteBatch | None = None


class EndSession(NamedTuple):
    """A session is closed: its commit that waits for selectors is rolled back."""

    session: str  #: as in the ids of its commits
    reply: Reply | None = None


class ResolveCommit(NamedTuple):
    """Was this commit, made so long ago, done?  Replies True or False; None where it may have been forgotten."""

    commit_id: CommitId
    age_ms: int = 0
    reply: Reply | None = None


class Range(NamedTuple):
    """Entries of a queue by position.

    A command that ends or moves entries names them by such a range.  The driver reads them in the cycle that carries
    out the command: by then, an entry that was read earlier may have ended, or may be somewhere else.
    """

    queue: int
    first: int
    last: int  #: inclusive
    limit: int  #: of one cycle
    positions: frozenset[int] | None = None  #: only these of them
    delayed: bool = False  #: those that are not due yet, in place of the others


class Trim(NamedTuple):
    """Drop the entries of a range, except those that consumers hold.

    Replies with the number dropped and the first position of the range that is left for another command; None: none.
    """

    range: Range
    found: Sequence[RawEntry] = ()  #: supplied by the driver
    next: int | None = None  #: supplied by the driver
    of_ended: bool = False  #: the queue is deleted, and being cleared up; otherwise nothing of such a one is dropped
    of_full: bool = False  #: the queue is full: what is dropped is lost
    processed: bool = False  #: they were processed, by whoever has them dropped
    again: bool = False  #: in a delivery that counts as failed since: it was lost with its connection
    token: str | None = None  #: of that connection
    reply: Reply | None = None


class Uncount(NamedTuple):
    """A delivery of the messages at these positions of a queue does not count: no application saw it.

    It is the one that the connection of this ``token`` lost.  Where it is not known what that had, it is the last one,
    if as many had failed before as are given with the position (None: any number).  So it is taken back once, also
    where it is asked for twice.  Replies with the number of messages.
    """

    queue: int
    positions: Sequence[tuple[int, int | None]]
    token: str | None = None
    found: Sequence[RawEntry] = ()  #: supplied by the driver: those that are not in memory
    reply: Reply | None = None


class Seen(NamedTuple):
    """What a lost connection had at these positions of a queue was seen; for ``UncountRest``.  Replies None."""

    token: str
    queue: int
    positions: Sequence[int]
    reply: Reply | None = None


class SeenRest(NamedTuple):
    """All else that a lost connection had was seen, and counts.  Replies None."""

    token: str
    reply: Reply | None = None


class UncountRest(NamedTuple):
    """Whatever else a lost connection had was seen by no application: these deliveries do not count.

    Replies with the number of messages, and whether more may be left: it takes ``most`` of them at most.  What it had
    is forgotten, so that asking twice takes nothing back twice.
    """

    token: str
    most: int
    found: Sequence[RawEntry] = ()  #: supplied by the driver: those that are not in memory
    reply: Reply | None = None


class TakeInHand(NamedTuple):
    """An application in the process of the engine is about to get a delivery that may have ended the process before.

    Its count is raised first, so that a message that ends the process each time becomes a dead letter at last, and what
    was only prefetched with it does not.  Replies whether it is to be given out; else it is a dead letter by now.
    """

    consumer: int
    number: int
    reply: Reply | None = None


class Drop(NamedTuple):
    """Forget a queue that has been trimmed.  Replies None."""

    queue: int
    reply: Reply | None = None


class DamagedLine(NamedTuple):
    """A line of the schedule that cannot be trusted."""

    key: bytes
    value: bytes
    right: tuple[bytes, bytes] | None  #: the line (key and value) that takes its place; None: none is known


class Due(NamedTuple):
    """The time of these (kind, entry or None where it is gone, schedule key) has come."""

    items: Sequence[tuple[int, RawEntry | None, bytes]]
    damaged: Sequence[DamagedLine] = ()  #: lines that go into quarantine, and are not acted upon
    reply: Reply | None = None


class Quarantined(NamedTuple):
    """The message of a delivery cannot be trusted: forget the delivery; the records are in quarantine.

    ``stays``: there was no room to move them.  The consumer keeps the delivery, which it has not seen, and it is
    examined again when the consumer is gone; another one comes in its place.
    """

    consumer: int
    number: int
    stays: bool = False
    reply: Reply | None = None


class Claim(NamedTuple):
    """Have a queue settled by position under this claim only.  Replies None, or QueueClaimedException.

    ``holder`` says whose claim it is.  With ``take_over`` it replaces another one.
    """

    queue: int
    claim: str
    holder: str
    take_over: bool = False
    reply: Reply | None = None


class EndClaim(NamedTuple):
    """End this claim to a queue, if it has it.  Replies None."""

    queue: int
    claim: str
    reply: Reply | None = None


class Stage(NamedTuple):
    """Messages of a transaction that are invisible until it is published.

    Replies True, or False where the number in its name was published before: nothing of it is staged then.

    ``first`` is the index of the first of them in the transaction: what was staged before is not staged again.  Which
    transactions belong together, and when they are dropped, is told by their names: see :mod:`staging`.
    """

    transaction: str
    target: Destination
    first: int
    messages: Sequence[NewMessage]
    reply: Reply | None = None


class Renew(NamedTuple):
    """A client still works on number ``number`` of ``group``: what is staged for it is not dropped for its age.

    Replies with the time-out in seconds, counted from now.
    """

    group: str
    number: int
    reply: Reply | None = None


class Publish(NamedTuple):
    """Decide that these staged transactions are published, as number ``number`` of ``group``.

    Replies True, or False where that number was published before (they are then dropped).  Few messages are moved at
    once; more of them the broker moves afterwards (:class:`Move`), and a crash in between is made good at the next
    start.  Other transactions of the group, up to that number, are dropped.

    ``counts`` has the number of messages of each transaction: nothing is published where one of them has another.
    """

    group: str
    number: int
    transactions: Sequence[str]
    counts: Sequence[int] | None = None
    reply: Reply | None = None
    found: Sequence[RawEntry] = ()  #: all that is staged by them, where that is little; supplied by the driver


class Discard(NamedTuple):
    """Drop staged transactions that are not published.  Replies with the number dropped."""

    transactions: Sequence[str]
    reply: Reply | None = None


class RemoveNames(NamedTuple):
    """Drop these records of a table of last numbers: they have not been used for long.  Replies None."""

    table: str
    keys: Sequence[bytes]
    reply: Reply | None = None


class NoteAge(NamedTuple):
    """Note the age of the store in it, if there are new names, or clients that are away for a limited time.

    Replies None.
    """

    reply: Reply | None = None


class Move(NamedTuple):
    """Move these entries of a published transaction to its target.  Replies None."""

    queue: int
    entries: Sequence[RawEntry]
    reply: Reply | None = None


class SetAside(NamedTuple):
    """The messages of a range cannot be trusted: those of them that no consumer holds go into quarantine.

    Replies with their number.
    """

    range: Range
    found: Sequence[RawEntry] = ()  #: supplied by the driver
    next: int | None = None  #: supplied by the driver
    reply: Reply | None = None


class Redrive(NamedTuple):
    """Put messages of a range that were set aside back into their queues, to be delivered again from the start.

    Replies with the number put back, the number examined, and the first position of the range that is left for another
    command (None: none).  Those stay where they are whose queue or subscription is gone, full or unknown.
    """

    range: Range
    to: str | None = None  #: a queue to put them into, instead of where they come from
    found: Sequence[tuple[RawEntry, Mapping[str, Any] | None]] = ()  #: with annotations; supplied by the driver
    next: int | None = None  #: supplied by the driver
    reply: Reply | None = None


class Statistics(NamedTuple):
    """Replies with :class:`broker_adapter.engine.queues.statistics.BrokerStatistics`.

    With ``numbers`` it has these queues only, and no topics.  ``sent_ms`` says of some of them when their oldest
    messages were sent.
    """

    numbers: Sequence[int] | None = None
    sent_ms: Mapping[int, int] = MappingProxyType({})
    reply: Reply | None = None


class DeferredCommands(NamedTuple):
    """Commands that are asked for when the engine takes them from its inbox.

    Small things that come one by one are so carried out together: the more there is to do, the larger the batches.
    """

    take: Callable[[], Sequence[Command]]


Command = (
    Connect
    | Disconnect
    | GiveBack
    | Declare
    | DeclareTemporary
    | DeleteTemporary
    | Attach
    | Detach
    | Delete
    | DeleteIdle
    | UsePolicies
    | PutBack
    | EndRun
    | Unsubscribe
    | Credit
    | Drain
    | Enqueue
    | Settle
    | Commit
    | EndSession
    | ResolveCommit
    | Trim
    | Uncount
    | Seen
    | SeenRest
    | UncountRest
    | TakeInHand
    | Drop
    | Due
    | Quarantined
    | Claim
    | EndClaim
    | Stage
    | Renew
    | Publish
    | Discard
    | RemoveNames
    | NoteAge
    | Move
    | Redrive
    | SetAside
    | Statistics
    | EventCommand
    | GatewayCommand
)
