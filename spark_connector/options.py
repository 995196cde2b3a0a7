"""The options of the data source: names, units, defaults; unknown ones are errors.

Spark hands options over with lower-case names, so names are compared without their case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from broker_adapter.selectors.language import parse_selector
from broker_adapter.urls.url import masked
from broker_adapter.wording import most_similar
from spark_connector.positions import EARLIEST, LATEST, check_position, is_behind, position_of, positions_in

#: What Spark adds by itself.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})

#: Spark 4.3 gives a Python source no options of a table of its catalog.
_NO_TABLE = (
    "Spark hands a table of CREATE TABLE ... USING jms no options: use CREATE TEMPORARY VIEW ... USING jms OPTIONS"
    " (...)"
)

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
#: Where a stream of a region begins, beside earliest and latest.
SNAPSHOT = "snapshot"


def _option(
    name: str,
    default: Any,
    text: str,
    *,
    least: float | None = None,
    most: float = 2**63 - 1,
    shown: bool | Callable[[Any], str] = True,
) -> Any:
    """An option; ``shown``: whether, or as what, ``repr`` shows its value."""
    return attrs.field(default=default, repr=shown, metadata={"name": name, "text": text, "least": least, "most": most})


def _shown_url(url: str | None) -> str:
    return repr(url if url is None else masked(url))


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """Where the messages are.  Carried to the executors."""

    url: str = _option(
        "url", None, "connection URL of the broker, as for ConnectionFactory; required", shown=_shown_url
    )
    username: str | None = _option("username", None, "user to log in as")
    password: str | None = _option(
        "password",
        None,
        "its password; better passwordFile or passwordEnv",
        shown=False,
    )
    password_file: str | None = _option(
        "passwordFile",
        None,
        "file with the password in one line, on each machine; read for each new connection",
    )
    password_env: str | None = _option(
        "passwordEnv",
        None,
        "environment variable with the password, of the driver and of Spark's workers",
    )
    retry_seconds: float = _option(
        "retrySeconds", 60.0, "seconds for which work is tried again when the network or the broker fails", least=0
    )


@attrs.frozen(kw_only=True)
class SourceOptions(ConnectionOptions):
    """What is read, and in which portions."""

    queue: str | None = _option(
        "queue", None, "queue to read; or queues, queuePattern, topic and subscription, or region"
    )
    queues: str | None = _option("queues", None, "comma-separated queues to read as one")
    queue_pattern: str | None = _option(
        "queuePattern",
        None,
        "regular expression (RE2) for whole names of queues to read as one; a stream finds new ones within five"
        " seconds",
    )
    topic: str | None = _option("topic", None, "topic to read, with subscription")
    subscription: str | None = _option(
        "subscription",
        None,
        "durable subscription of the topic; created if missing, but not with clientId",
    )
    region: str | None = _option(
        "region",
        None,
        "region: a batch reads its keys and values, a stream (with subscription) its events",
    )
    starting_position: str | None = _option(
        "startingPosition",
        None,
        "where a batch, or a stream without a checkpoint, begins: earliest, latest, a position, an instant, or"
        " JSON for each queue; of a region's stream snapshot, latest or earliest; none: earliest, or snapshot",
    )
    ending_position: str | None = _option(
        "endingPosition",
        None,
        "where a batch ends (exclusive), in the same forms but earliest; none: latest",
    )
    key_pattern: str | None = _option(
        "keyPattern", None, "regular expression (RE2) for whole keys that a batch reads of a region"
    )
    selector: str | None = _option(
        "selector",
        None,
        "selector for messages, or for keys and values that a batch reads of a region",
    )
    client_id: str | None = _option("clientId", None, "client id with which the subscription was created")
    max_messages_per_trigger: int | None = _option(
        "maxMessagesPerTrigger", 1_000_000, "messages (positions) of one micro-batch; none: no limit", least=1
    )
    min_messages_per_trigger: int | None = _option(
        "minMessagesPerTrigger",
        None,
        "messages (positions) for which a micro-batch waits, at most maxTriggerDelaySeconds; none: any",
        least=1,
    )
    max_trigger_delay_seconds: float = _option(
        "maxTriggerDelaySeconds",
        900.0,
        "longest such wait in seconds, since the last micro-batch",
        least=0,
    )
    max_messages_per_partition: int = _option(
        "maxMessagesPerPartition", 100_000, "messages (positions), or keys of a region, of one task", least=1
    )
    max_bytes_per_partition: int | None = _option(
        "maxBytesPerPartition",
        256 * 1024 * 1024,
        "bytes of messages of one task, by their average size; none: no limit",
        least=1,
    )
    min_partitions: int | None = _option(
        "minPartitions", None, "least number of tasks of a batch, if it has as many messages; none: one", least=1
    )
    max_partitions: int | None = _option(
        "maxPartitions",
        None,
        "most tasks of a batch, at least one for each queue with messages; overrides the limits of a task; none:"
        " no limit",
        least=1,
    )
    include_properties: bool = _option("includeProperties", True, "whether there is a column properties; false: faster")
    fail_on_missing: bool = _option(
        "failOnMissing",
        False,
        "whether a missing queue or subscription is an error (one with clientId always is); false: it is created",
    )
    fetch_bytes: int = _option("fetchBytes", 2 * 1024 * 1024, "approximate bytes of messages fetched at once", least=1)
    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        True,
        "whether a read fails if messages that follow its checkpoint or plan are gone; false: it continues and logs",
    )
    spool: str | None = _option(
        "spool",
        None,
        "directory on the driver's machine in which a stream of another broker keeps messages until they are processed",
    )
    spool_max_messages: int = _option(
        "spoolMaxMessages",
        1_000_000,
        "messages in the spool at which reading from the broker pauses",
        least=1,
    )
    spool_max_bytes: int | None = _option(
        "spoolMaxBytes",
        4 * 1024 * 1024 * 1024,
        "the same in bytes; none: no limit",
        least=1,
    )
    spool_ids: int = _option(
        "spoolIds",
        100_000,
        "last messages that the spool recognises if the broker sends them again",
        least=1000,
    )
    spool_host: str | None = _option(
        "spoolHost",
        None,
        "address of the driver for executors; none: 127.0.0.1 for local masters, else spark.driver.host",
    )
    take_over: bool = _option(
        "takeOver",
        False,
        "whether a stream replaces the query that has claimed its queue or subscription",
    )
    head_refresh_seconds: float = _option(
        "headRefreshSeconds", 0.05, "shortest time between two requests of a streaming query for new messages", least=0
    )


@attrs.frozen(kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where rows go, and how."""

    queue: str | None = _option(
        "queue", None, "queue to write to, of rows whose column queue names none; or topic, or region"
    )
    topic: str | None = _option("topic", None, "topic to write to; at least once only")
    region: str | None = _option("region", None, "region whose keys the rows change; created if missing")
    guarantee: str = _option(
        "deliveryGuarantee",
        EXACTLY_ONCE,
        "exactly_once (Holdfast; a queue or a region) or at_least_once (any broker)",
    )
    producer_id: str | None = _option(
        "producerId",
        None,
        "word by which a query's batches are numbered; a new one writes those of an older or copied checkpoint again",
    )
    priority: int = _option("priority", 4, "priority of messages whose row has none, 0 to 9", least=0)
    time_to_live: float | None = _option(
        "timeToLive",
        None,
        "seconds until messages expire whose row has no expiration, at most 100 years; none: never",
        least=0.001,
        most=100 * 365.25 * 86_400,
    )


#: Options of Spark's connector for Kafka, and what does the same here.
_KAFKAS = {
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "maxtriggerdelay": "maxTriggerDelaySeconds (a number of seconds)",
    "maxrecordsperpartition": "maxMessagesPerPartition",
    "startingoffsets": "startingPosition",
    "startingtimestamp": "startingPosition (an instant such as 2026-11-26T08:00:00Z)",
    "startingoffsetsbytimestamp": "startingPosition (JSON with an instant for each queue)",
    "endingoffsets": "endingPosition",
    "endingtimestamp": "endingPosition (an instant such as 2026-11-26T08:00:00Z)",
    "endingoffsetsbytimestamp": "endingPosition (JSON with an instant for each queue)",
    "subscribe": "queue or queues",
    "subscribepattern": "queuePattern",
    "assign": "queues, with startingPosition",
    "includeheaders": "includeProperties",
    "kafka.bootstrap.servers": "url",
    "kafka.group.id": "subscription, on a topic",
}


def queues_of(options: SourceOptions) -> tuple[str, ...] | None:
    """The names of the queues that are read; None where a pattern, a topic or a region says it."""
    if options.queue is not None:
        return (options.queue,)
    return None if options.queues is None else tuple(name.strip() for name in options.queues.split(","))


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ValueError: an option is unknown, missing, contradicts another or has a wrong value; for a selector it is an
            InvalidSelectorException.
    """
    parsed: SourceOptions = _parse(SourceOptions, options, options.get("path"))
    _require_one(
        "name what to read by one of the options 'queue' and 'topic', or 'region', 'queues' and 'queuePattern'",
        _given(parsed, "queue", "queues", "queue_pattern", "topic", "region"),
    )
    if parsed.client_id is not None and parsed.topic is None and parsed.region is None:
        raise ValueError("clientId is for the subscription of a topic, or of a region: leave it out")
    if parsed.selector is not None:
        parse_selector(parsed.selector)  # else the first task would tell, which a quiet stream may not have for days
    for what, least, most in (
        ("MessagesPerTrigger", parsed.min_messages_per_trigger, parsed.max_messages_per_trigger),
        ("Partitions", parsed.min_partitions, parsed.max_partitions),
    ):
        if least is not None and most is not None and least > most:
            raise ValueError(f"min{what}={least} is above max{what}={most}")
    if parsed.region is not None:
        if parsed.spool is not None:
            raise ValueError("only a Holdfast broker has regions, and its streams need no spool: leave out 'spool'")
        if parsed.ending_position is not None:
            raise ValueError("endingPosition is for queues; a batch of a region has all its keys")
        for name, given in (("minPartitions", parsed.min_partitions), ("maxPartitions", parsed.max_partitions)):
            if given is not None:
                raise ValueError(f"{name} is for queues; a task reads maxMessagesPerPartition keys of a region")
        if parsed.starting_position not in (None, SNAPSHOT, LATEST, EARLIEST):
            raise ValueError(
                f"startingPosition={parsed.starting_position!r} is none of {SNAPSHOT}, {LATEST}, {EARLIEST}"
            )
        return parsed
    if parsed.key_pattern is not None:
        raise ValueError("keyPattern chooses keys of a region; the rows of a queue are chosen by selector or where()")
    _check_queues(parsed)
    _check_spool(parsed)
    if (parsed.topic is None) != (parsed.subscription is None):
        raise ValueError("a topic keeps messages only for its subscriptions: give both 'topic' and 'subscription'")
    return parsed


def _check_queues(parsed: SourceOptions) -> None:
    names = queues_of(parsed)
    if names is not None and (not all(names) or len(set(names)) < len(names)):
        raise ValueError(f"queues={parsed.queues!r} has an empty name, or one twice")
    check_position("startingPosition", parsed.starting_position, names)
    check_position("endingPosition", parsed.ending_position, names)
    if parsed.ending_position is not None and EARLIEST in positions_in("endingPosition", parsed.ending_position):
        raise ValueError("endingPosition=earliest leaves nothing to read; leave it out, or say latest or a position")
    for queue in names or ():
        begin = position_of("startingPosition", parsed.starting_position, queue, EARLIEST)
        end = position_of("endingPosition", parsed.ending_position, queue, LATEST)
        if is_behind(begin, end):
            raise ValueError(
                f"startingPosition={parsed.starting_position!r} is behind endingPosition={parsed.ending_position!r} in"
                f" the queue {queue!r}: there is nothing between them"
            )


def _check_spool(parsed: SourceOptions) -> None:
    if parsed.spool is None:
        defaults = SourceOptions()
        for field in attrs.fields(SourceOptions):
            name = field.metadata["name"]
            if name.startswith("spool") and getattr(parsed, field.name) != getattr(defaults, field.name):
                raise ValueError(f"{name} is for a spool: name its directory by the option 'spool'")
        return
    if parsed.queues is not None or parsed.queue_pattern is not None:
        raise ValueError("a spool is for one queue: give each queue a query with a spool of its own")
    start = parsed.starting_position
    if start is not None and set(positions_in("startingPosition", start)) - {EARLIEST}:
        raise ValueError(
            "a broker without positions has no startingPosition: the stream begins with what its queue has"
        )
    least, most = parsed.min_messages_per_trigger, parsed.spool_max_messages
    if least is not None and least > most:
        raise ValueError(f"minMessagesPerTrigger={least} is above spoolMaxMessages={most}: the spool never has as many")
    if "://" in parsed.spool or parsed.spool.startswith(("file:", "embedded:")):
        raise ValueError(f"spool={parsed.spool!r} is a URL; name a directory on the driver's machine")
    if parsed.url.startswith("embedded:"):
        raise ValueError("a spool is for brokers that have no positions; an embedded: queue is read without one")


def parse_sink(options: Mapping[str, str], *, routes: bool = False) -> SinkOptions:
    """The options of a sink.

    Args:
        options: as Spark has them.
        routes: whether the rows have a column that names their queue.

    Raises:
        ValueError: as ``parse_source``.
    """
    parsed: SinkOptions = _parse(SinkOptions, options, options.get("path"))
    given = _given(parsed, "queue", "topic", "region")
    if given or not routes:
        request = "name where to write by one of the options 'queue' and 'topic', or 'region'"
        _require_one(request if given else f"{request}; or for each row by a column queue", given)
    if parsed.guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise ValueError(f"deliveryGuarantee={parsed.guarantee!r} is neither {EXACTLY_ONCE} nor {AT_LEAST_ONCE}")
    if parsed.topic is not None and parsed.guarantee == EXACTLY_ONCE:
        raise ValueError(
            "a topic can be written to at least once only: say deliveryGuarantee=at_least_once, or write to a queue"
        )
    if parsed.region is not None and (parsed.priority != 4 or parsed.time_to_live is not None):
        raise ValueError("values of regions have no priority and do not expire: leave out priority and timeToLive")
    if parsed.producer_id is not None and parsed.guarantee != EXACTLY_ONCE:
        raise ValueError("producerId says which batches are written once; with at_least_once none is")
    if not 0 <= parsed.priority <= 9:
        raise ValueError(f"priority={parsed.priority} is not from 0 to 9")
    return parsed


def describe(cls: type) -> list[tuple[str, Any, str]]:
    """(name, default, text) of each option of a class, for documentation."""
    return [(field.metadata["name"], field.default, field.metadata["text"]) for field in attrs.fields(cls)]


def _parse(cls: type, options: Mapping[str, str], path: str | None) -> Any:
    known = {field.metadata["name"].lower(): field for field in attrs.fields(cls)}
    values: dict[str, Any] = {}
    for name, text in _items(options):
        if name == "provider":
            raise ValueError(_NO_TABLE)
        if name in _SPARKS_OWN:
            continue
        field = known.get(name)
        if field is None:
            if name in _KAFKAS:
                raise ValueError(f"the option {name!r} is one of Kafka's; here it is {_KAFKAS[name]}")
            if name.startswith("kafka."):
                raise ValueError(f"the option {name!r} is one of Kafka's, and there is none here that does the same")
            if name == "paths":
                raise ValueError("a path is the name of one queue; name several by the option 'queues'")
            other, what = (SinkOptions, "writing") if cls is SourceOptions else (SourceOptions, "reading")
            if name in map(str.lower, _names(other)):
                raise ValueError(f"the option {name!r} is for {what}: leave it out here")
            names = _names(cls)
            raise ValueError(
                f"unknown option {name!r}{most_similar(name, names)}; the options here are {', '.join(names)}"
            )
        values[field.name] = _value(field, text)
    if path is not None and values.setdefault("queue", path) != path:  # load("orders"), start("orders")
        raise ValueError(f"the queue is {path!r} by the path, and {values['queue']!r} by the option 'queue'; name one")
    passwords = [each.metadata["name"] for each in attrs.fields(cls) if "password" in each.name and each.name in values]
    if len(passwords) > 1:
        raise ValueError(
            "give the password by one of the options 'password', 'passwordFile' and 'passwordEnv', and not by"
            f" {' and '.join(map(repr, passwords))}"
        )
    if not values.get("url"):
        hint = "" if options else f". {_NO_TABLE}"
        raise ValueError(
            f"the option 'url' is required: the connection URL of the broker, such as amqp://host:5672{hint}"
        )
    return cls(**values)


def _given(parsed: Any, *fields: str) -> list[str]:
    """The names of those options that have a value."""
    names = {field.name: field.metadata["name"] for field in attrs.fields(type(parsed))}
    return [names[field] for field in fields if getattr(parsed, field) is not None]


def _require_one(request: str, given: Sequence[str]) -> None:
    """Raise ValueError with this request unless exactly one of several options is given."""
    if len(given) != 1:
        raise ValueError(f"{request}, and not by {' and '.join(map(repr, given))}" if given else request)


def _items(options: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return [(name.lower(), text) for name, text in options.items()]


def _names(cls: type) -> list[str]:
    return [field.metadata["name"] for field in attrs.fields(cls)]


def _value(field: Any, text: str) -> Any:
    name, kind = field.metadata["name"], str(field.type)
    is_text = "str" in kind
    if "None" in kind and (text == "" or (text.lower() == "none" and not is_text)):
        return None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}={text!r} is neither true nor false")
        return text.lower() == "true"
    if is_text:
        return text
    whole, none = "int" in kind, ", or none" if "None" in kind else ""
    try:
        if "_" in text:
            raise ValueError("only a program's numbers have underscores")
        value: Any = int(text) if whole else float(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a {'whole ' if whole else ''}number{none}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}={text!r} is not a finite number")
    least, most = field.metadata["least"], field.metadata["most"]
    if least is not None and value < least:
        raise ValueError(f"{name}={text!r} is below the least value, {least}")
    if least is not None and value > most:
        raise ValueError(f"{name}={text!r} is above the greatest value, {int(most)}")
    return value
