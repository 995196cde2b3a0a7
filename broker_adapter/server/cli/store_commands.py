"""The commands of ``holdfast`` for a store: check, compact, quarantine.

They need a store that no engine has open; a running server can be asked to check its own (``holdfast check --url``).
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import sys
import time
from contextlib import closing
from typing import Any, NamedTuple

from broker_adapter.amqp.messages.amqp_message import decode_ahead
from broker_adapter.amqp.messages.payloads import read_head
from broker_adapter.clock import epoch_ms
from broker_adapter.destination import Destination, checked_name, queue, topic
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.check.findings import Lack
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.selection import Formats
from broker_adapter.engine.records.layout import quarantine_key
from broker_adapter.engine.records.sequences import in_parts
from broker_adapter.engine.store.maintenance import (
    Progress,
    QuarantinedRecord,
    as_answer,
    check_store,
    compact_store,
    drop_quarantined,
    quarantined,
    sound_store,
)
from broker_adapter.envelope import AMQP_FORMAT
from broker_adapter.errors import InvalidDestinationException, MessageFormatException
from broker_adapter.server.cli.terminal import output_errors
from broker_adapter.server.cli.tools import (
    ask,
    check_subscription,
    say,
    settings_of,
)
from broker_adapter.settings import EngineSettings
from broker_adapter.wording import counted

#: Longest wait for a step of putting messages back, in seconds.
_WAIT_SECONDS = 60.0
#: Messages that an error names.
_NAMED = 5
#: Messages that are put back in one step.
_AT_ONCE = 500
_AT_ONCE_BYTES = 16 * 1024 * 1024
#: What to do with messages whose queue is not known.
_NAME_ONE = "name one with --queue, or a subscription with --topic and --subscription"


def check(options: argparse.Namespace) -> int:
    if options.url is not None:
        if options.repair:
            raise ValueError("a running server cannot be repaired; stop it, and give the directory of its store")
        if options.option:
            raise ValueError("--option is for the directory of a store: a running server has its own options")
        answer = ask(options, "check", {})
    else:
        report = check_store(
            options.data, _settings(options), repair=options.repair, progress=progress(), formats=_formats()
        )
        answer = as_answer(report)
    if options.json:
        say(json.dumps(answer))
    else:
        _print_check(answer)
    is_lossless = answer["lost"] == 0 and not answer["lost_places"]
    return 0 if (answer["sound"] or answer["repaired"]) and is_lossless else 1


def _settings(options: argparse.Namespace) -> EngineSettings:
    return settings_of(options.option)[0]


def _formats() -> Formats:
    """The formats of messages that a server stores."""
    formats = Formats()
    formats.learn(AMQP_FORMAT, decode_ahead)
    return formats


def _print_check(answer: dict[str, Any]) -> None:
    if answer["pages"]:
        say(f"pages      {answer['pages']}, {answer['damaged_page_count']} of them damaged")
    for each in answer["damaged_pages"]:
        table = f" {each['table']}" if each["table"] else ""  # a page of the file itself is of no table
        say(f"  page {each['page']}{table}: {each['text']}")
    if answer["damage_count"] > len(answer["damaged_pages"]):
        say(f"  ... and {answer['damage_count'] - len(answer['damaged_pages'])} more")
    if answer["damaged_page_count"] and not answer["damaged_file"]:
        missing = sum(answer["missing"].values())
        many = f"{missing} records or more" if missing else "an unknown number of records"
        say(f"{many} cannot be reached by LMDB, and the others were not checked.")
        say("A repair (--repair) reads every page by itself, writes all records that can be read into a new file,")
        say("keeps this one beside it, and then compares every record with every other.")
        return
    if answer["damaged_file"]:
        say(f"rebuilt    {answer['salvaged']} records from damaged pages, and from those that nothing led to;")
        say(f"           the damaged file is kept as {answer['damaged_file']}")
        if answer["lost"] is None and answer["set_aside"]:
            messages = f"{answer['misplaced']} messages that the store counts" if answer["misplaced"] else "messages"
            say(
                f"           {messages} are not in their place, or an unknown number, if the counters are lost as well;"
            )
            say(f"           {answer['set_aside']} that nothing led to are in quarantine, and may be these")
        elif answer["lost"] is None:
            say("           an unknown number of messages may be lost: the page that counts them is damaged")
        elif answer["lost"]:
            say(f"           {answer['lost']} messages are lost: the store counts them, and no page has them")
        if answer["has_lost_root"]:
            say("           one of the two roots is lost, and the last commit perhaps with it: messages that it may")
            say("           have sent are there, or in quarantine; messages that it settled may be redelivered")
        if not answer["free_is_known"]:
            say("           the list of free pages is lost, so it is unknown which of the messages that nothing led to")
            say("           were consumed long ago: they are in quarantine, where messages are missing")
    if answer.get("lost_places"):
        _print_lost_places(answer)
    say(f"queues     {answer['queues']}")
    say(f"messages   {answer['messages']} ({answer['message_bytes']} bytes), in {answer['entries']} places")
    say(f"delayed    {answer['delayed']}")
    say(f"quarantine {answer['quarantined']}")
    for each in answer["findings"]:
        say(f"  {each['problem']}: {each['text']}")
    shown = len(answer["findings"])
    total = sum(answer["problems"].values())
    if total > shown:
        say(f"  ... and {total - shown} more")
    for problem, count in sorted(answer["problems"].items()):
        say(f"{count:8} {problem}")
    for problem, count in sorted(answer["harmless"].items()):
        say(f"{count:8} {problem} (harmless)")
    if answer["sound"]:
        say("sound")
    elif answer["repaired"]:
        say("repaired; see: holdfast quarantine list DIR")
    else:
        say("NOT SOUND; stop the server and run: holdfast check DIR --repair")


def _print_lost_places(answer: dict[str, Any]) -> None:
    say(f"lost       {answer['lost_places']} places of messages are lost: more queues or subscriptions had them.")
    say("           The messages are still there, and a repair puts a copy of each into quarantine. Put it back into")
    say("           each queue or subscription that lacks it (--keep leaves it in quarantine for the next one):")
    for each in answer["lacking"]:
        lack = Lack(**each)
        name = f"{lack.kind} {lack.name!r}"
        into = f"--queue {shlex.quote(lack.name)}"
        if lack.topic is not None:
            name += f" of topic {lack.topic!r}"
            into = f"--topic {shlex.quote(lack.topic)} --subscription {shlex.quote(lack.name)}"
        if lack.client_id is not None:
            name += f" (client id {lack.client_id!r})"
            into += f" --client-id {shlex.quote(lack.client_id)}"
        say(f"           {name} lacks {lack.messages} messages, by its counters:")
        say(f"             holdfast quarantine put-back DIR RECORD {into}")
    if not answer["lacking"]:
        say("             holdfast quarantine put-back DIR RECORD --queue NAME, or --topic NAME --subscription NAME")
        say("           The counters do not say which ones lack messages.")


def compact(options: argparse.Namespace) -> int:
    before, after = compact_store(options.data, _settings(options), progress())
    say(json.dumps({"before": before, "after": after}) if options.json else f"{before} bytes before, {after} now")
    return 0


def quarantine(options: argparse.Namespace) -> int:
    if options.action == "list" and (options.names or options.all):
        raise ValueError("list takes no RECORD and no --all: it names every record; holdfast quarantine show has one")
    subscription = _subscription(options)
    is_dropping = options.action == "drop"
    settings = _settings(options)
    with sound_store(options.data, settings, progress(), is_kept=not is_dropping) as store:
        records = quarantined(store)
        chosen = records if options.action == "list" else _chosen(options, records)
        if is_dropping:
            drop_quarantined(store, chosen)
    if options.action == "list":
        _list(options, records)
    elif options.action == "show":
        _show(options, chosen)
    elif is_dropping:
        say(json.dumps({"dropped": len(chosen)}) if options.json else f"dropped {len(chosen)}")
    else:
        by_queue, homeless = _homes(chosen, options.queue if subscription is None else str(subscription))
        if homeless and not options.all:
            raise ValueError(
                f"{homeless[0]} does not say to which queue it was sent, or cannot be trusted; {_NAME_ONE}"
            )
        back: dict[str, int] = {}
        try:
            _put_back(options.data, settings, by_queue, back, subscription, keep=options.keep)
        finally:  # also what was put back ahead of an error
            queues = ", ".join(f"{count} into {name}" for name, count in sorted(back.items()))
            answer = {"put_back": sum(back.values()), "queues": back, "left": homeless}
            say(json.dumps(answer) if options.json else f"put back {queues or 'nothing'}")
        others = len([each for each in records if each.payload is None])
        if options.all and others and not options.json:
            print(f"{counted(others, 'record')} not of messages: show or drop them", file=sys.stderr)
        if homeless:
            raise ValueError(
                f"{counted(len(homeless), 'message', ('stays', 'stay'))}: {', '.join(homeless[:_NAMED])}"
                f"{', ...' if len(homeless) > _NAMED else ''}; each does not say to which queue it was sent, or"
                f" cannot be trusted; {_NAME_ONE}"
            )
    return 0


class _Subscription(NamedTuple):
    """The subscription that messages are put back into."""

    topic: str
    name: str
    client_id: str | None

    def __str__(self) -> str:
        return f"{self.topic}:{self.name}"


def _subscription(options: argparse.Namespace) -> _Subscription | None:
    """The subscription that the arguments name; raises ValueError where they do not fit."""
    if options.action != "put-back":
        for name in ("queue", "topic", "subscription", "client_id", "keep"):
            if getattr(options, name):
                raise ValueError(f"--{name.replace('_', '-')} is for put-back: nothing else puts messages into a queue")
    if options.queue is not None and options.topic is not None:
        raise ValueError("give either --queue or --topic with --subscription")
    check_subscription(options, has_topic=options.topic is not None)
    if options.topic is None:
        return None
    if options.subscription is None:
        raise ValueError("--topic needs --subscription: a topic keeps no messages of its own")
    return _Subscription(
        checked_name(options.topic, "topic"), checked_name(options.subscription, "subscription"), options.client_id
    )


def _list(options: argparse.Namespace, records: list[QuarantinedRecord]) -> None:
    if options.json:
        for record in records:
            say(json.dumps(_fields(record)))
    else:
        messages, entries = _with_their_entries(records)
        for record in messages:
            say(_line(record, len(entries.get(record.number, ())) if record.payload is not None else 0))
    if not records and not options.json:
        print("nothing is in quarantine", file=sys.stderr)


def _show(options: argparse.Namespace, records: list[QuarantinedRecord]) -> None:
    """The bytes of one record as they are; those of several under their names."""
    for record in records:
        content = record.payload if record.payload is not None else record.value
        if options.json:
            say(json.dumps({**_fields(record), "content": {"base64": base64.b64encode(content).decode()}}))
        elif len(records) == 1:
            _write(content)
        else:
            _write(b"== %s ==\n%s\n" % (record.name.encode(), content))


def _write(content: bytes) -> None:
    with output_errors():
        sys.stdout.buffer.write(content)


def _chosen(options: argparse.Namespace, records: list[QuarantinedRecord]) -> list[QuarantinedRecord]:
    if options.all:
        return records if options.action == "drop" else [each for each in records if each.payload is not None]
    if not options.names:
        raise ValueError("name the records, as 'holdfast quarantine list' does, or give --all")
    by_name = {record.name: record for record in records}
    for name in options.names:
        if name not in by_name:
            raise ValueError(f"there is no record {name!r} in quarantine; see: holdfast quarantine list")
    chosen = [by_name[name] for name in dict.fromkeys(options.names)]
    if options.action != "drop":
        return chosen
    _, entries = _with_their_entries(records)
    of_messages = [each for record in chosen if record.payload is not None for each in entries.get(record.number, ())]
    return list(dict.fromkeys([*chosen, *of_messages]))


def _homes(records: list[QuarantinedRecord], name: str | None) -> tuple[dict[str, list[QuarantinedRecord]], list[str]]:
    """The messages by the queue or subscription that they go back to: this, or (None) the one to which each was sent.

    Returns:
        They, and the names of those of which that is not known.
    """
    by_queue: dict[str, list[QuarantinedRecord]] = {}
    homeless = []
    for record in records:
        if record.payload is None:
            raise ValueError(f"{record.name} is no message; it can only be shown or dropped")
        home = name if name is not None else _queue_of(record)
        if home is None:
            homeless.append(record.name)
        else:
            by_queue.setdefault(home, []).append(record)
    return by_queue, homeless


def _put_back(
    path: str,
    settings: EngineSettings,
    by_queue: dict[str, list[QuarantinedRecord]],
    counts: dict[str, int],
    subscription: _Subscription | None = None,
    *,
    keep: bool = False,
) -> None:
    """Put messages at the end of queues or of a subscription, as they are.

    Each is dropped from quarantine as it is stored, unless it is to be kept.  ``counts`` gets how many went where.
    """
    # What has expired meanwhile, or is due, is left to the server, which has its own options for that.
    with closing(Broker(settings, path, by_itself=False)) as broker:
        for home, its_records in by_queue.items():
            to = queue(home) if subscription is None else topic(subscription.topic)
            of_topic = None if subscription is None else (subscription.name, subscription.client_id)
            for part in in_parts(its_records, lambda record: len(record.value), _AT_ONCE, _AT_ONCE_BYTES):
                messages = [(quarantine_key(record.table, record.key), _message(record)) for record in part]
                command = c.PutBack(to, messages, subscription=of_topic, keep=keep)
                counts[home] = counts.get(home, 0) + broker.call(command, _WAIT_SECONDS)


def _sent_to(record: QuarantinedRecord) -> Destination | None:
    """The queue or topic to which a message was sent that is as it was written; None: it is not known."""
    if not record.is_sound or record.payload is None:
        return None
    try:
        destination = read_head(record.payload, 0).destination
        if destination is None or destination.is_temporary:
            return None
        checked_name(destination.name)
    except (MessageFormatException, InvalidDestinationException):  # foreign clients send to any string
        return None
    return destination


def _queue_of(record: QuarantinedRecord) -> str | None:
    """The queue to which a message was sent that is as it was written; None: it is not known, or was a topic."""
    sent_to = _sent_to(record)
    return None if sent_to is None or sent_to.is_topic else sent_to.name


def _message(record: QuarantinedRecord) -> c.NewMessage:
    payload = record.payload or b""
    message_format = int.from_bytes(record.value[4:8])
    try:
        message = c.from_head(payload, read_head(payload, epoch_ms()))
    except MessageFormatException:
        # It is damaged beyond decoding: a consumer gets the bytes, or says that it cannot read them.
        message = c.NewMessage(message_format, payload)
    # Neither what it was known as, nor when it was to expire, says anything about it now.
    return message._replace(
        format=message_format, persistent=True, identity=None, expires_at_ms=None, deliver_at_ms=None
    )


def _fields(record: QuarantinedRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"record": record.name, "table": record.table, "bytes": len(record.value)}
    if record.payload is not None:
        sent_to = _sent_to(record)
        topic_of = sent_to.name if sent_to is not None and sent_to.is_topic else None
        fields |= {"message": record.number, "sound": record.is_sound, "queue": _queue_of(record), "topic": topic_of}
    elif record.entry_of is not None:
        fields["entry_of"] = record.entry_of
    return fields


def _with_their_entries(
    records: list[QuarantinedRecord],
) -> tuple[list[QuarantinedRecord], dict[int, list[QuarantinedRecord]]]:
    """The records without the entries of messages that are among them; and these, by the number of the message."""
    numbers = {record.number for record in records if record.payload is not None}
    entries: dict[int, list[QuarantinedRecord]] = {}
    others = []
    for record in records:
        number = record.entry_of
        if number is not None and number in numbers:
            entries.setdefault(number, []).append(record)
        else:
            others.append(record)
    return others, entries


def _line(record: QuarantinedRecord, entries: int = 0) -> str:
    """Return what a person reads of a record; ``entries``: how many of this message are in quarantine with it."""
    kind = record.table
    if record.payload is not None:
        sent_to = _sent_to(record)
        kind = f"message {record.number}"
        if sent_to is not None:
            kind += f" sent to {'topic ' if sent_to.is_topic else ''}{sent_to.name!r}"
        kind += "" if record.is_sound else ", damaged"
        if entries:
            kind += ", with its entry" if entries == 1 else f", with its {entries} entries"
    return f"{record.name}  {len(record.value)} bytes  {kind}"


def progress() -> Progress:
    """A line on the standard error that says how far it is; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        return lambda _what, _done, _of: None
    last = [0.0]

    def show(what: str, done: int, of: int) -> None:
        now = time.monotonic()
        over = done >= of
        if over or now - last[0] > 0.1:
            last[0] = now
            share = done / of if of else 1.0
            bar = "#" * round(30 * share)
            print(f"\r{what:12} [{bar:30}] {share:4.0%}", end="\n" if over else "", file=sys.stderr, flush=True)

    return show
