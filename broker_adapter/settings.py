"""Every limit and option, each with its unit in its name, its default and one sentence.

The classes are the single source: connection URLs and the command line are parsed by them, and the page
``docs/options.md`` is generated from them.  A limit that suits all users is a field of its class without an option.
"""

from __future__ import annotations

from typing import Any

import attrs

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
#: The most messages that a consumer holds ahead where ``prefetch_messages`` does not say how many.
LARGEST_WINDOW = 500


def _option(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    def check(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        if choices is not None and value not in choices:
            raise ValueError(f"{field.name}={value!r} is none of {', '.join(choices)}")
        if least is not None and value < least:
            raise ValueError(f"{field.name}={value!r} is below the least value, {least}")
        if most is not None and value > most:
            raise ValueError(f"{field.name}={value!r} is above the greatest value, {most}")

    return attrs.field(default=default, validator=check, metadata={"text": text, "least": least, "most": most})


def _limit(default: Any, text: str, *, least: float | None = None, most: float | None = None) -> Any:
    """Make a field that no URL and no command sets, as its default suits all users."""
    field = _option(default, text, least=least, most=most)
    field.metadata["fixed"] = True
    return field


@attrs.frozen(kw_only=True)
class ClientSettings:
    """What a connection of the SDK does, on every transport."""

    prefetch_messages: int | None = _option(
        None,
        "messages that the consumer may hold ahead of the application; 0: one at a time; none: what it consumes in half"
        f" a second, 1 to {LARGEST_WINDOW}; a browser: at least 50, and {LARGEST_WINDOW} by default",
        least=0,
        most=32767,
    )
    topic_prefetch_messages: int | None = _option(
        None, "the same for non-durable subscribers of topics; none: prefetch_messages", least=0, most=32767
    )
    max_redeliveries: int | None = _option(
        None,
        "redeliveries after which the client rejects a message, for the broker's dead-letter queue; none: never",
        least=0,
    )
    message_id_policy: str = _option(
        "producer",
        "form of message ids: producer (ID:PRODUCER:...-NUMBER), uuid (ID:UUID), or none",
        choices=("producer", "uuid", "none"),
    )
    populate_user_id: bool = _option(False, "whether sent messages carry the user name (JMSXUserID)")
    local_message_expiry: bool = _option(
        True,
        "whether the client gives back a message that has expired by this machine's clock",
    )
    synchronous_acknowledge: bool = _option(
        False,
        "whether acknowledging waits for the broker's confirmation (docs/failover.md), at most request_timeout_seconds",
    )
    send_window_messages: int = _option(
        1000, "asynchronous sends of a connection that may be unconfirmed", least=1, most=1_000_000
    )
    connect_timeout_seconds: float = _option(
        15.0, "longest wait for a connection: TCP, TLS, login and open", least=0.001
    )
    send_timeout_seconds: float = _option(
        60.0,
        "longest time that a send waits for a place in the send window and for its confirmation; to be more than"
        " blocked_send_timeout_seconds of the engine, so that a send which is blocked at a limit has its answer",
        least=0.001,
    )
    request_timeout_seconds: float = _option(
        60.0, "longest wait for the answer to any other request (attach, commit, browse, ...)", least=0.001
    )
    close_timeout_seconds: float = _option(
        10.0, "longest wait of close() for running listeners and for the broker", least=0.001
    )
    event_window_messages: int = _option(
        1000, "events of regions that a client may hold unacknowledged", least=1, most=10_000
    )
    event_acknowledge_seconds: float = _option(
        0.1, "longest time until processed events of regions are acknowledged", least=0
    )
    event_conflation: str = _option(
        "server",
        "whether only the last waiting update of a key is kept for this client: true, false, or server (as the"
        " region says)",
        choices=("server", "true", "false"),
    )
    dups_ok_batch_messages: int = _option(100, "messages that DUPS_OK acknowledges together", least=1, most=10_000)
    dups_ok_delay_seconds: float = _option(0.1, "longest time until DUPS_OK acknowledges a consumed message", least=0)
    poll_timeout_seconds: float = _option(
        5.0,
        "longest time that receive_nowait() and receive(0) wait for the broker to report that the queue has no message,"
        " and that recover() and rollback() wait for a broker that does not answer; what a failed commit()"
        " gives back has the rest of its request_timeout_seconds, and no more than this",
        least=0.001,
    )
    transaction_messages: int = _option(
        100_000, "messages that a transacted session may send, and keys that it may change, before it commits", least=1
    )
    transaction_bytes: int = _option(256 * MIB, "bytes of these messages, keys and values", least=1)
    redundancy: int = _option(
        0,
        "further nodes of a group of servers that are to have what is confirmed; fewer: the event RedundancyLost"
        " (docs/redundancy.md)",
        least=0,
    )
    require_redundancy: bool = _option(
        False, "whether sends, commits with sends, and changes of regions are refused while there are fewer"
    )


@attrs.frozen(kw_only=True)
class EmbeddedSettings:
    """Which engine in this process, and what its queues have of their own (``embedded:``)."""

    memory: str | None = _option(
        None,
        "name of the engine in memory, for all connections of this process that give it",
    )
    config: str | None = _option(
        None,
        "file with the settings of single queues (docs/server.md), read as the engine is opened",
    )


@attrs.frozen(kw_only=True)
class AmqpSettings:
    """What a connection over the network needs beside that (``amqp://`` and ``amqps://``)."""

    idle_timeout_seconds: float = _option(
        60.0,
        "time without data from the broker after which the connection is lost; 0: no limit; at a Holdfast server"
        " at least 0.5",
        least=0,
    )
    max_frame_bytes: int = _option(MIB, "largest AMQP frame that the client accepts", least=512, most=16 * MIB)
    sasl_mechanisms: str | None = _option(
        None, "comma-separated SASL mechanisms that the client may use; none: the strongest of both ends"
    )
    allow_plain_without_tls: bool = _option(
        False, "whether PLAIN may send the password without TLS, also on this machine"
    )
    envelope: bool = _option(
        True, "whether Holdfast's own message format is used with a Holdfast server; false: standard AMQP"
    )
    queue_prefix: str | None = _option(
        None,
        "address prefix of queues, for brokers that need one (a Holdfast server raises InvalidURLException); none:"
        " what the broker names",
    )
    topic_prefix: str | None = _option(
        None,
        "the same for topics",
    )
    trust_broker: bool = _option(
        False,
        "whether a product that docs/brokers.md does not name counts as applying what it confirms",
    )
    vhost: str | None = _option(None, "host name in the open frame; none: the host of the URL")
    retries: int | None = _option(
        None,
        "further attempts at this address before the next one; none: no limit with one address, 0 with several",
        least=0,
    )
    connect_delay_seconds: float = _option(0.0, "shortest pause before them", least=0)
    tls_ca_file: str | None = _option(None, "PEM file of certificates to trust; none: the system's")
    tls_certificate_file: str | None = _option(None, "PEM file of the client's certificate")
    tls_key_file: str | None = _option(None, "PEM file of the client's private key")
    tls_verify_host: bool = _option(True, "whether the server's certificate must be valid for the host of the URL")


@attrs.frozen(kw_only=True)
class FailoverSettings:
    """What becomes of a network connection that is lost (``amqp://``, ``amqps://`` and ``failover:``)."""

    failover: str | None = _option(
        None,
        "what is tried after a loss: its address (singlebroker, for one), each in turn (roundrobin, for several),"
        " what the broker announces (failover_exchange), or nothing (nofailover)",
        choices=("singlebroker", "roundrobin", "failover_exchange", "nofailover"),
    )
    cycle_count: int | None = _option(
        None, "rounds through all addresses before roundrobin and failover_exchange give up; none: no limit", least=1
    )
    max_reconnect_attempts: int | None = _option(
        None, "attempts to restore a lost connection before giving up; none: no limit", least=0
    )
    startup_max_reconnect_attempts: int | None = _option(
        0,
        "attempts of a new connection beyond one at each address; none: until create_connection() times out",
        least=0,
    )
    initial_reconnect_delay_seconds: float = _option(0.0, "pause before the first attempt after a loss", least=0)
    reconnect_delay_seconds: float = _option(
        0.05, "pause before the second round (a round tries each address once)", least=0
    )
    reconnect_multiplier: float = _option(2.0, "factor by which the pause grows with each round", least=1, most=100)
    max_reconnect_delay_seconds: float = _option(10.0, "longest pause between two rounds", least=0)
    reconnect_jitter: float = _option(0.25, "random part of each pause", least=0, most=1)
    randomize: bool = _option(False, "whether the addresses are tried in random order")
    stable_seconds: float = _option(
        2.0, "a restored connection that is lost earlier counts as a failed attempt", least=0
    )
    allow_insecure_redirects: bool = _option(False, "whether a broker may redirect from TLS to an address without it")
    trusted_hosts: str | None = _option(
        None,
        "comma-separated hosts that may get a password by PLAIN after a redirect or an announcement, besides those"
        " of the URL; .DOMAIN: all hosts of a domain",
    )
    failover_server_list: str = _option(
        "replace",
        "whether addresses announced to failover_exchange replace those of the URL (replace) or are added (add)",
        choices=("replace", "add"),
    )


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The limits of a durable-queue engine, embedded or in a server."""

    max_message_bytes: int = _option(16 * MIB, "largest message, encoded", least=1, most=GIB)
    max_queue_messages: int | None = _option(10_000_000, "messages in one queue or subscription", least=1)
    max_queue_bytes: int | None = _option(None, "bytes of messages in one queue or subscription", least=1)
    full_subscription: str = _option(
        "block",
        "what gives way if a full durable subscription is not read (docs/reliability.md): block, drop_oldest,"
        " drop_new, or end_subscription",
        choices=("block", "drop_oldest", "drop_new", "end_subscription"),
    )
    max_unsettled_messages: int = _option(20_000, "unsettled messages of one consumer", least=1, most=1_000_000)
    max_deliveries: int | None = _option(
        10, "failed deliveries after which a message goes to the dead-letter queue", least=1
    )
    redelivery_delay_seconds: float = _option(
        0.25,
        "pause before the third delivery of a message that failed twice, and of a consumer whose last three different"
        " messages failed; then twice as long each time; 0: none",
        least=0,
    )
    redelivery_multiplier: float = _limit(2.0, "factor by which that pause grows each time", least=1, most=100)
    max_redelivery_delay_seconds: float = _option(
        30.0,
        "longest such pause; also how long a message that its consumers refuse (undeliverable-here) waits for"
        " another one before it is a dead letter; 0: not at all",
        least=0,
    )
    max_delayed_redeliveries: int = _limit(
        100_000, "messages of a queue in such a pause; a further one is delivered at once", least=1
    )
    dead_letter_queue: str = _option("DLQ", "name of the dead-letter queue")
    expiry_queue: str | None = _option(None, "name of the queue for expired messages; none: dropped")
    blocked_send_timeout_seconds: float = _option(
        10.0, "longest time that a producer is blocked at a limit; then its send is refused", least=0
    )
    max_blocked_sends: int = _limit(
        100_000, "blocked sends in the whole broker; a further one is refused at once", least=1
    )
    window_messages: int = _limit(
        2_000,
        "messages of a queue whose place is kept in memory ahead of its consumers; also how many may be kept for"
        " consumers that own a message group or have a selector",
        least=10,
    )
    max_window_messages: int = _limit(
        400_000,
        "messages whose place is kept in memory ahead of the consumers of all queues together; the more queues have"
        " consumers, the smaller is the part of each",
        least=1000,
    )
    max_in_hand_messages: int = _limit(
        2_000_000,
        "unsettled messages of all consumers together; above it a consumer gets no more while it holds 16",
        least=1000,
    )
    message_cache_bytes: int = _limit(
        32 * MIB, "memory for the bodies of messages that are about to be delivered", least=0
    )
    max_volatile_bytes: int = _option(256 * MIB, "memory for non-persistent messages and their places", least=1)
    max_store_bytes: int = _option(
        256 * GIB,
        "bytes of the store's records; its file may be larger (docs/reliability.md)",
        least=16 * MIB,
    )
    tail_bytes: int = _option(
        64 * MIB,
        "bytes of the names of changed records in the store (an eighth of it at most), by which a copy that was away"
        " catches up; one that lacks more takes an image (docs/redundancy.md)",
        least=MIB,
    )
    min_free_disk_bytes: int = _option(
        256 * MIB, "free disk space that producers leave, so that consumers can continue", least=0
    )
    consumer_timeout_seconds: float | None = _option(
        None,
        "time for which a consumer may hold a message that it does not settle; then its link is closed and all that it"
        " holds goes to others; none: any time",
        least=1,
    )
    max_destinations: int = _option(10_000, "queues, topics and subscriptions", least=1)
    delete_idle_queues_seconds: float | None = _option(
        None,
        "time without use, while the engine runs, after which an empty queue is deleted; none: never",
        least=1,
    )
    delete_idle_subscriptions_seconds: float | None = _option(
        None,
        "the same for a durable subscription that nobody reads, with its messages; none: never",
        least=1,
    )
    max_transaction_messages: int = _option(
        100_000,
        "messages sent and settled, and keys changed, in one transaction; over the network max_connection_bytes also"
        " limits what it settles",
        least=1,
    )
    max_transaction_bytes: int = _option(256 * MIB, "bytes sent, and put into regions, in one transaction", least=1)
    max_transaction_entries: int = _limit(
        100_000, "places in queues and subscriptions that the messages and changes of one transaction take", least=1
    )
    max_producers: int = _option(
        100_000,
        "producers whose last numbers are remembered, to reject repetitions; the oldest is forgotten",
        least=1,
    )
    commit_memory_seconds: float = _limit(
        7 * 86400.0,
        "time for which the last commit of a session is remembered while the engine runs, so that a client that lost"
        " its connection can ask whether it was done",
        least=60,
    )
    publish_memory_seconds: float = _limit(
        400 * 86400.0,
        "time for which the last published batch of a group (of a Spark query) is remembered while the engine runs, so"
        " that it is not published again",
        least=60,
    )
    max_durable_clients: int = _option(100_000, "durable clients that have a queue; a further one is refused", least=1)
    max_client_interests: int = _option(10_000, "interests of a durable client, in all regions", least=1)
    max_client_queue_events: int = _option(
        1_000_000,
        "events that may wait for a durable client; beyond it, its queue is dropped",
        least=1,
    )
    tombstone_seconds: float = _option(
        600.0, "time for which a destroyed key is remembered, while the engine runs", least=0
    )
    site_tombstone_seconds: float = _option(
        10 * 86400.0,
        "the same of an engine that is a site: an older change of a key that was destroyed may come as late as this",
        least=0,
    )
    region_snapshot_seconds: float = _limit(
        600.0,
        "time after which a snapshot of a region is dropped that was not read, as Spark reads them; its age is limited"
        " to twelve times this. While one is open, room that is freed in the store is not used again",
        least=1,
    )
    site: int = _option(
        0, "number of the site that the engine is, for gateways (docs/gateways.md); 0: none", least=0, most=255
    )
    gateway_retry_seconds: float = _option(
        5.0, "time after which a gateway tries again to send, where that failed", least=0.001
    )
    resolver: str | None = _option(
        None,
        "module:function that says which value a key gets that two sites have changed (docs/gateways.md)",
    )
    max_gateway_batch_bytes: int = _limit(
        8 * MIB, "bytes of the messages of one batch that the gateway of another site sends", least=MIB
    )
    staged_timeout_seconds: float = _option(
        3600.0,
        "time after which an unpublished staged transaction is dropped, while the engine runs, since its batch"
        " last got a message or was renewed",
        least=1,
    )


def _as_option(option: str) -> Any:
    """Make a field that an option of the engine gives where no policy does."""
    field = attrs.fields_dict(EngineSettings)[option]
    info = field.metadata
    made = _option(field.default, info["text"], least=info["least"], most=info["most"])
    made.metadata["option"] = option
    return made


@attrs.frozen(kw_only=True)
class PolicySettings:
    """What a policy may give to queues (docs/server.md)."""

    max_deliveries: int | None = _as_option("max_deliveries")
    redelivery_delay_seconds: float = _as_option("redelivery_delay_seconds")
    keep_order: bool = _option(
        False, "whether what is behind a message that has failed waits for it: all its consumers have keep_order=True"
    )
    dead_letter_queue: str = _as_option("dead_letter_queue")
    expiry_queue: str | None = _as_option("expiry_queue")
    time_to_live: float | None = _option(
        None,
        "seconds after which a message that comes in expires, unless it expires earlier; none: as it says",
        least=0.001,
    )
    max_messages: int | None = _as_option("max_queue_messages")
    max_bytes: int | None = _as_option("max_queue_bytes")
    when_full: str = _option(
        "block",
        "what becomes of a send at such a limit: it waits (block), is refused at once (refuse), or is taken, and the"
        " oldest messages that wait are dropped soon after (drop_oldest)",
        choices=("block", "refuse", "drop_oldest"),
    )
    delete_idle_seconds: float | None = _as_option("delete_idle_queues_seconds")
    consumer_timeout_seconds: float | None = _as_option("consumer_timeout_seconds")


@attrs.frozen(kw_only=True)
class ServerSettings:
    """The limits of the AMQP server in front of an engine."""

    max_connections: int = _option(
        10_000,
        "connections; a further one is refused; fewer if the process may open fewer files",
        least=1,
    )
    max_login_connections: int = _limit(
        200,
        "connections in their TLS handshake or login at once; others wait; one address has at most half of the places",
        least=1,
    )
    max_login_connections_per_address: int | None = _limit(
        None,
        "connections of one address (of IPv6: of one /64 network) that have not logged in yet; a further one is"
        " dropped; none: half of max_connections + 100",
        least=1,
    )
    handshake_timeout_seconds: float = _option(
        10.0, "longest time from a connection to its login and open", least=0.001
    )
    failed_login_delay_seconds: float = _option(
        0.5,
        "pause after three wrong passwords of a user from one address; doubles with each further one; 0: none",
        least=0,
    )
    max_failed_login_delay_seconds: float = _limit(
        5.0,
        "longest such pause; passwords that are not verified within handshake_timeout_seconds are dropped",
        least=0,
    )
    idle_timeout_seconds: float = _option(
        60.0,
        "time without data from a client after which it is dropped; 0: no limit; the SDK keeps at least 0.5",
        least=0,
    )
    max_frame_bytes: int = _option(
        MIB, "largest AMQP frame that the server accepts after the login", least=512, most=16 * MIB
    )
    max_sessions: int = _limit(256, "sessions of a connection", least=1, most=65536)
    max_links: int = _option(
        1024, "links of a connection, beside those for requests and transactions", least=1, most=65536
    )
    link_credit_messages: int = _option(
        1000, "messages that a producer may send ahead (link credit)", least=1, most=100_000
    )
    max_input_bytes: int = _limit(
        16 * MIB,
        "bytes of messages that a producer may send ahead, estimated by the size of its last messages",
        least=64 * KIB,
    )
    max_output_bytes: int = _option(
        4 * MIB, "bytes waiting for a slow client before deliveries to it pause", least=64 * KIB
    )
    max_connection_bytes: int = _option(
        128 * MIB,
        "bytes kept for one connection (docs/promises.md, Limits)",
        least=MIB,
    )
    transaction_timeout_seconds: float | None = _option(
        3600.0,
        "time without a change after which a transaction is rolled back; none: no limit",
        least=0.001,
    )


@attrs.frozen
class OptionInfo:
    """One option, as documentation and error messages need it."""

    name: str
    type: str
    default: Any
    text: str
    least: float | None
    most: float | None


def options_of(*classes: type) -> list[OptionInfo]:
    """Return all options of these settings classes, in order."""
    return [
        OptionInfo(f.name, str(f.type), f.default, f.metadata["text"], f.metadata["least"], f.metadata["most"])
        for cls in classes
        for f in attrs.fields(cls)
        if "fixed" not in f.metadata
    ]


def limits_of(*classes: type) -> dict[str, Any]:
    """Return the limits of these settings classes that are no options, with their values."""
    return {f.name: f.default for cls in classes for f in attrs.fields(cls) if "fixed" in f.metadata}


def parse_option(info: OptionInfo, text: str) -> Any:
    """The value that ``text`` stands for; raises ValueError where it does not fit the option's type."""
    if text == "" or (text.lower() == "none" and "None" in info.type):
        if "None" in info.type:
            return None
        raise ValueError(f"{info.name} needs a value")
    if info.type.startswith("bool"):
        if text.lower() in ("true", "1", "yes", "on"):
            return True
        if text.lower() in ("false", "0", "no", "off"):
            return False
        raise ValueError(f"{info.name}={text!r} is neither true nor false")
    try:
        if info.type.startswith("int"):
            return int(text)
        if info.type.startswith("float"):
            value = float(text)
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError(text)
            return value
    except ValueError as error:
        whole = ": a whole one" if info.type.startswith("int") else ""
        none = ", or none" if "None" in info.type else ""
        raise ValueError(f"{info.name}={text!r} is not a number{whole}{none}") from error
    return text


def settings_from(cls: type, values: dict[str, str]) -> Any:
    """An instance of a settings class from those of ``values`` (all strings) that are its options.

    Raises:
        ValueError: a value has the wrong type or is out of its range.
    """
    infos = {info.name: info for info in options_of(cls)}
    return cls(**{name: parse_option(infos[name], text) for name, text in values.items() if name in infos})
