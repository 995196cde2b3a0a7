"""The options of the data source: names, units, defaults; unknown ones are errors.

Spark hands options over with lower-case names, so names are compared without their case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from broker_adapter.urls.url import masked
from broker_adapter.wording import most_similar

#: What Spark adds by itself.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
#: Where a stream of a region begins.
SNAPSHOT, LATEST, EARLIEST = "snapshot", "latest", "earliest"


def _option(
    name: str, default: Any, text: str, *, least: float | None = None, shown: bool | Callable[[Any], str] = True
) -> Any:
    """An option; ``shown``: whether, or as what, ``repr`` shows its value."""
    return attrs.field(default=default, repr=shown, metadata={"name": name, "text": text, "least": least})


def _shown_url(url: str | None) -> str:
    return repr(url if url is None else masked(url))


@attrs.frozen(kw_only=True)
class ConnectionOptions:
    """Where the messages are.  Carried to the executors."""

    url: str = _option(
        "url", None, "connection URL of the broker, as for ConnectionFactory; required", shown=_shown_url
    )
    username: str | None = _option("username", None, "user to log in as")
    password: str | None = _option("password", None, "password of that user", shown=False)
    retry_seconds: float = _option(
        "retrySeconds", 60.0, "seconds to go on trying where the network or the broker fails", least=0
    )


@attrs.frozen(kw_only=True)
class SourceOptions(ConnectionOptions):
    """What is read, and in which portions."""

    queue: str | None = _option("queue", None, "name of the queue to read; this, or topic and subscription, or region")
    topic: str | None = _option("topic", None, "name of the topic to read, with subscription")
    subscription: str | None = _option(
        "subscription", None, "name of the durable subscription on the topic; made where there is none"
    )
    region: str | None = _option(
        "region",
        None,
        "name of the region to read: in a batch, its keys and values; as a stream, with subscription, what happens to"
        " them",
    )
    starting_position: str = _option(
        "startingPosition",
        SNAPSHOT,
        "where a stream of a region begins: snapshot (with a row for each key that is there, and all events behind"
        " these), latest (with the next event), or earliest (with the oldest event that the subscription has)",
    )
    key_pattern: str | None = _option(
        "keyPattern", None, "regular expression (RE2) for the whole key: the keys that a batch reads of a region"
    )
    selector: str | None = _option(
        "selector",
        None,
        "selector for the values that a batch reads of a region, which may name key, headers, properties, and the"
        " fields of a map; or for the messages that a spool takes from its broker",
    )
    client_id: str | None = _option("clientId", None, "client id of the subscription, where it was made with one")
    max_messages_per_trigger: int | None = _option(
        "maxMessagesPerTrigger", 1_000_000, "messages (positions) of one micro-batch; none: no limit", least=1
    )
    max_messages_per_partition: int = _option(
        "maxMessagesPerPartition", 100_000, "messages (positions), or keys of a region, that one task reads", least=1
    )
    fetch_bytes: int = _option("fetchBytes", 2 * 1024 * 1024, "bytes of messages fetched at once, about", least=1)
    fail_on_data_loss: bool = _option(
        "failOnDataLoss",
        True,
        "whether a read fails where messages that follow its checkpoint or its plan are gone (the queue was made again,"
        " the broker's store replaced by an older copy, the checkpoint is older than the queue, a message is damaged);"
        " false: go on with what is there, and say so in the log",
    )
    spool: str | None = _option(
        "spool",
        None,
        "directory on the driver's machine in which a streaming query keeps what it takes from a broker other than"
        " Holdfast, until it is processed; no other query may have it, and it has to outlive the driver's process, as"
        " the checkpoint does",
    )
    spool_max_messages: int = _option(
        "spoolMaxMessages",
        1_000_000,
        "messages of a spool above which nothing more is read from the broker until some are processed",
        least=1,
    )
    spool_max_bytes: int | None = _option(
        "spoolMaxBytes",
        4 * 1024 * 1024 * 1024,
        "the same in bytes of messages; none: no limit",
        least=1,
    )
    spool_ids: int = _option(
        "spoolIds",
        100_000,
        "messages, the last ones, that a spool recognises by their ids if the broker sends them again, as after a kill",
        least=1000,
    )
    spool_host: str | None = _option(
        "spoolHost",
        None,
        "name or address by which the executors reach the driver, for the spool; none: 127.0.0.1 for local masters, and"
        " else spark.driver.host",
    )
    head_refresh_seconds: float = _option(
        "headRefreshSeconds", 0.1, "shortest time between two requests of a streaming query for new messages", least=0
    )


@attrs.frozen(kw_only=True)
class SinkOptions(ConnectionOptions):
    """Where rows go, and how."""

    queue: str | None = _option("queue", None, "name of the queue to write to; this, topic or region")
    topic: str | None = _option("topic", None, "name of the topic to write to; at least once only")
    region: str | None = _option(
        "region", None, "name of the region whose keys the rows change; made where there is none"
    )
    guarantee: str = _option(
        "deliveryGuarantee",
        EXACTLY_ONCE,
        "exactly_once (staged transactions, needs a Holdfast broker and a queue; of a region: a batch that is repeated"
        " is not written again) or at_least_once (any broker)",
    )
    producer_id: str | None = _option(
        "producerId",
        None,
        "a streaming query writes each batch to a queue once for each value of this; a new one has the batches of an"
        " older or copied checkpoint written once more",
    )
    priority: int = _option("priority", 4, "of messages whose row has no priority, 0 to 9", least=0)
    time_to_live: float | None = _option(
        "timeToLive", None, "seconds until messages expire whose row has no expiration; none: never", least=0.001
    )


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ValueError: an option is unknown, missing, contradicts another or has a wrong value.
    """
    parsed: SourceOptions = _parse(SourceOptions, options, options.get("path"))
    if sum(each is not None for each in (parsed.queue, parsed.topic, parsed.region)) != 1:
        raise ValueError("name what to read by one of the options 'queue' and 'topic', or 'region'")
    if parsed.region is not None:
        if parsed.spool is not None:
            raise ValueError("only a Holdfast broker has regions, and its streams need no spool: leave out 'spool'")
        if parsed.starting_position not in (SNAPSHOT, LATEST, EARLIEST):
            raise ValueError(
                f"startingPosition={parsed.starting_position!r} is none of {SNAPSHOT}, {LATEST}, {EARLIEST}"
            )
        return parsed
    selector = parsed.selector if parsed.spool is None else None  # the broker applies it
    for name, given in (("keyPattern", parsed.key_pattern), ("selector", selector)):
        if given is not None:
            raise ValueError(f"{name} chooses keys of a region; the rows of a queue are chosen by where()")
    if parsed.starting_position != SNAPSHOT:
        raise ValueError("startingPosition is of a region; the stream of a queue begins with what is there")
    _check_spool(parsed)
    if (parsed.topic is None) != (parsed.subscription is None):
        raise ValueError("a topic keeps messages only for its subscriptions: give both 'topic' and 'subscription'")
    return parsed


def _check_spool(parsed: SourceOptions) -> None:
    if parsed.spool is None:
        defaults = SourceOptions()
        for field in attrs.fields(SourceOptions):
            name = field.metadata["name"]
            if name.startswith("spool") and getattr(parsed, field.name) != getattr(defaults, field.name):
                raise ValueError(f"{name} is for a spool: name its directory by the option 'spool'")
        return
    if "://" in parsed.spool or parsed.spool.startswith(("file:", "embedded:")):
        raise ValueError(f"spool={parsed.spool!r} is a URL; name a directory on the driver's machine")
    if parsed.url.startswith("embedded:"):
        raise ValueError("a spool is for brokers that have no positions; an embedded: queue is read without one")


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink.

    Raises:
        ValueError: as ``parse_source``.
    """
    parsed: SinkOptions = _parse(SinkOptions, options, options.get("path"))
    if sum(each is not None for each in (parsed.queue, parsed.topic, parsed.region)) != 1:
        raise ValueError("name where to write by one of the options 'queue' and 'topic', or 'region'")
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
        if name in _SPARKS_OWN:
            continue
        field = known.get(name)
        if field is None:
            names = _names(cls)
            raise ValueError(
                f"unknown option {name!r}{most_similar(name, names)}; the options here are {', '.join(names)}"
            )
        values[field.name] = _value(field, text)
    if path is not None and "region" not in values:
        values.setdefault("queue", path)  # load("orders"), start("orders")
    if not values.get("url"):
        raise ValueError("the option 'url' is required: the connection URL of the broker, such as amqp://host:5672")
    return cls(**values)


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
    try:
        value: Any = int(text) if "int" in kind else float(text) if "float" in kind else text
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not a number") from error
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}={text!r} is not a finite number")
    least = field.metadata["least"]
    if least is not None and value < least:
        raise ValueError(f"{name}={text!r} is below the least value, {least}")
    return value
