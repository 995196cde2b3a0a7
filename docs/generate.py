"""Writes the pages that are generated from the code: ``python docs/generate.py``.

``docs/options.md`` comes from the settings classes, ``docs/requests.md`` from those of the requests, and
``docs/api.md`` from what the packages export.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_origin

import attrs

from broker_adapter.engine.commands.identities import MAX_NUMBER
from broker_adapter.engine.operations import durable_clients, ranges, whole_queues
from broker_adapter.engine.operations.request import NEEDED, Argument, Request
from broker_adapter.engine.operations.requests import REQUESTS
from broker_adapter.engine.operations.steps import OfQueue
from broker_adapter.settings import (
    AmqpSettings,
    ClientSettings,
    EmbeddedSettings,
    EngineSettings,
    FailoverSettings,
    OptionInfo,
    PolicySettings,
    ServerSettings,
    limits_of,
    options_of,
)
from spark_connector.options import ConnectionOptions, SinkOptions, SourceOptions, describe

HEAD = """# Options

Every option with its default and, if it has one, its range; its unit is in its name. `make docs` generates this page
from the code.

| URL, with `?name=value&name=value` | options |
|---|---|
| `embedded:PATH` (durable), `embedded:` (in memory, until its last connection closes) | client, embedded, engine |
| `amqp://HOST:PORT`, `amqps://HOST:PORT` (or `amqp://user:password@HOST`) | client, network, failover |
| `failover:(URL,URL,...)`, each URL one of the line above | client, network, failover; of each URL: network |
| `amqp://user:password@clientid/vhost?brokerlist='tcp://HOST:PORT;tcp://HOST'` | of Qpid ([failover.md](failover.md)) |

The first connection to an embedded engine sets the engine's options while it is open; further ones give the same, or
none. `holdfast serve` takes the options of the engine and of the server as `--option NAME=VALUE`. An unknown option is
an error that lists the known ones. `none` means no limit, or not set, where an option may be without (an error says
where not); of Spark's options only numbers take it: omit the others. What happens at a limit of the engine:
[promises.md](promises.md#limits).
"""


POLICIES_HEAD = """What a policy is: [server.md](server.md#settings-of-single-queues). Defaults are the engine options.

"""


REQUESTS_HEAD = """# Requests

The operations of a Holdfast broker, embedded or a server, beyond messaging. This page is generated from the code by
`make docs`.

    connection.request("bounds", {"destination": "orders"})
    connection.request("purge", {"destination": "news", "kind": "topic", "subscription": "reader"}, timeout=60)

The call waits at most `timeout` seconds (`request_timeout_seconds` of the URL). An operation that the broker refuses
raises a `JMSException` with the reason; an unknown operation or argument, or a value of another type,
`MessageFormatException`. `connection.statistics()` returns the result of `statistics` as an object.

Arguments and results are plain data (what msgpack carries): names, `run` and `incarnation` are strings; positions and
numbers integers from 0 to 2^64 - 1, and no booleans. A queue is named by `destination`, `kind` ("queue", the default,
or "topic") and for a topic `subscription` and `client_id`. Of two subscriptions with one name the durable one is meant.

"""


REQUESTS_TAIL = """
{once} take effect once, however often they are repeated under one `request_id` (a word of at most 100 characters, made
up by the client for this request) and `request_run` (the `run` that `bounds` returns). After a restart of the engine,
which does not remember what it carried out, a repetition is refused. An answer is remembered for ten minutes, unless
1,000 others came after it. A connection that restores itself adds both arguments. Other operations ignore them.

Reading a range takes nothing: it returns the same messages until they are settled. The *incarnation* tells a queue from
an earlier one of its name, the *run* the starts of the engine apart: a store that was replaced by an older copy may
give positions again, to other messages, so a request that names the run in which a position was seen is refused then.
"""


#: The files whose requests programs make, not only the SDK and the Spark connector.
FOR_PROGRAMS = (whole_queues, ranges, durable_clients)
#: The exceptions in these files.
FOR_SPARK = ("bounds_of_queues", "claim", "end_claim")

OF_THE_SDK = """The SDK and the Spark connector also make these requests; the docstrings of their classes in
`broker_adapter/engine/operations/` describe them: {names}."""


def requests() -> str:
    """The page of the requests: of each that programs make its arguments, and below them its docstring."""
    files = [
        [each for name, each in REQUESTS.items() if each.__module__ == file.__name__ and name not in FOR_SPARK]
        for file in FOR_PROGRAMS
    ]
    described = [each for file in files for each in file]
    blocks = ["\n".join(map(_described, each)) for each in files]
    others = sorted(f"`{each.operation}`" for each in REQUESTS.values() if each not in described)
    once = [f"`{each.operation}`" for each in described if each.once]
    tail = REQUESTS_TAIL.format(once=_listed(once)).strip().split("\n\n")
    own = OF_THE_SDK.format(names=", ".join(others))
    return REQUESTS_HEAD + "\n\n".join([*blocks, *map(_wrapped, [*tail, " ".join(own.split())])]) + "\n"


def _described(request: type[Request]) -> str:
    """A request as an entry of a list."""
    assert request.__doc__ is not None
    shared = attrs.fields_dict(OfQueue) if issubclass(request, OfQueue) else {}
    given = [_given(name, each) for name, each in request.arguments.items() if name not in shared]
    what = " of a queue" if shared else "" if given else " without arguments"
    head = f"- `{request.operation}`{what}{',' if shared and given else ''}{' with ' if given else ''}{_listed(given)}:"
    text = " ".join(inspect.cleandoc(request.__doc__).split()).replace("``", "`")
    return f"{_wrapped(head, '  ')}\n{_wrapped(f'  {text}', '  ')}"


def _given(name: str, argument: Argument) -> str:
    """An argument, and what is to be known of it."""
    notes = [argument.note.replace("``", "`")] if argument.note else []
    if argument.default is None:
        notes.append("or None")
    elif argument.default is not NEEDED and argument.default != ():
        notes.append(f"default: {_shown(argument.default)}")
    if argument.most_values:
        notes.append(f"at most {argument.most_values:,} values")
    elif argument.kind is int and argument.most < MAX_NUMBER:
        notes.append(f"at most {argument.most:,}")
    return f"`{name}` ({'; '.join(notes)})" if notes else f"`{name}`"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _wrapped(text: str, indent: str = "") -> str:
    """The text in lines of at most 120 characters; ``indent`` begins all but the first."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def options() -> str:
    """The page of the options."""
    parts = [HEAD]
    for title, cls in (
        ("Client: every connection", ClientSettings),
        ("Embedded: an engine in this process", EmbeddedSettings),
        ("Network: amqp:// and amqps://", AmqpSettings),
        ("Failover: when the network is lost", FailoverSettings),
        ("Engine: embedded, or in a server", EngineSettings),
        ("Server: holdfast serve", ServerSettings),
        ("Policies: single queues", PolicySettings),
    ):
        head = POLICIES_HEAD if cls is PolicySettings else ""
        parts.append(f"\n## {title}\n\n{head}| option | default | meaning |\n|---|---|---|\n")
        parts += [
            f"| `{info.name}` | {_shown(info.default)}{_range(info)} | {info.text} |\n" for info in options_of(cls)
        ]
        fixed = [f"`{name}` {_shown(value)}" for name, value in limits_of(cls).items()]
        if fixed:
            parts.append("\n" + _wrapped(f"Limits that are no options: {', '.join(fixed)}.") + "\n")
    shared = {name for name, _, _ in describe(ConnectionOptions)}
    for title, cls in (("Spark: reading", SourceOptions), ("Spark: writing", SinkOptions)):
        parts.append(f"\n## {title}\n\n")
        if cls is SinkOptions:
            parts.append("And those from `url` to `retrySeconds` above.\n\n")
        parts.append("| option | default | meaning |\n|---|---|---|\n")
        parts += [
            f"| `{name}` | {_shown(default)} | {text} |\n"
            for name, default, text in describe(cls)
            if cls is SourceOptions or name not in shared
        ]
    return "".join(parts)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _range(info: OptionInfo) -> str:
    """The least and the greatest value, where they are not only to be above 0."""
    if info.most is not None:
        return f" ({info.least:,} to {info.most:,})"
    return f" (from {info.least:,})" if info.least is not None and info.least > 1 else ""


API_HEAD = """# The names

The names that each package exports; `help(NAME)` in Python has the rest: parameters with units, the result, the errors
raised, what blocks and for how long. A class also has what the classes in brackets have. `make docs` generates this
page from the code. Programs use `sdk` (also called `holdfast`) and `spark_connector`; authors of another transport,
another acknowledge mode, or tools around the engine also use the other two. Any other name may change at any time.
"""

#: The packages, and whether their names are explained on the page.
PACKAGES = {"sdk": True, "sdk.aio": False, "spark_connector": True, "broker_adapter": False, "ack_modes": False}


def api() -> str:
    """The page of what the packages export; a name that an earlier package exports is there only."""
    parts = [API_HEAD]
    named: set[str] = set()
    for package, is_explained in PACKAGES.items():
        module = importlib.import_module(package)
        names = sorted(set(module.__all__) - named, key=str.lower)
        named.update(names)
        parts.append(f"\n## {package}\n\n{_wrapped(_summary(module))}\n\n")
        if not is_explained:
            parts.append(_wrapped(", ".join(f"`{name}`" for name in names) + ", and names of `sdk`.") + "\n")
            continue
        exported = {getattr(module, each) for each in module.__all__ if inspect.isclass(getattr(module, each))}
        for name in names:
            thing = getattr(module, name)
            head = f"- `{name}{_parameters(thing)}`{_base(thing, exported)}: {_summary(thing)}"
            parts.append(_wrapped(head, "  ") + "\n")
            if inspect.isclass(thing):
                parts += _member_lines(thing, exported)
    return "".join(parts)


def _base(thing: Any, exported: set[type]) -> str:
    """The first class on the page that a class is made from, in brackets."""
    base = next((base for base in getattr(thing, "__mro__", ())[1:] if base in exported), None)
    return f" (`{base.__name__}`)" if base else ""


def _member_lines(cls: type, exported: set[type]) -> Iterator[str]:
    """The attributes of a class by name, and its methods with a sentence; none that a base on the page has."""
    above = {name for base in cls.__mro__[1:] if base in exported for name in (*dir(base), *_attributes(base))}
    bases = [base for base in reversed(cls.__mro__) if base.__module__.split(".")[0] in PACKAGES]
    members = {name: member for base in bases for name, member in _members(base) if name not in above}
    names = [name for base in bases for name in _attributes(base) if name not in above]
    names += [name for name, member in members.items() if isinstance(member, property)]
    if names:
        yield _wrapped(f"  - {', '.join(f'`{name}`' for name in dict.fromkeys(names))}", "    ") + "\n"
    if cls.__name__ in _MADE_BY_APPLICATIONS:
        yield _wrapped(f"  - `{cls.__name__}{_parameters(cls.__init__)}`", "    ") + "\n"
    plain = []
    for name, member in members.items():
        if not isinstance(member, property):
            signature = f"`{name}{_parameters(member)}`"
            if _is_told_by_its_name(name) or _summary(member).startswith(("See ", "Close; legal twice.")):
                plain.append(signature)
            else:
                yield _wrapped(f"  - {signature}: {_summary(member)}", "    ") + "\n"
    if plain:
        yield _wrapped(f"  - {', '.join(plain)}", "    ") + "\n"


#: Classes whose constructor is called by applications, beside messages.
_MADE_BY_APPLICATIONS = ("ConnectionFactory", "Requestor")


def _is_told_by_its_name(name: str) -> bool:
    """Whether a method is one of many alike, such as ``read_int``."""
    return re.match(r"(read|write|get|set)_(?!all|body)|create_\w*message", name) is not None


def _attributes(cls: type) -> Iterator[str]:
    """The names of what instances have beside methods and properties."""
    members = vars(cls)
    documented = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2].split("\n\n")[0]
    names = [
        *(map(str, cls.__members__) if issubclass(cls, Enum) else ()),
        *members.get("__annotations__", ()),
        *(name for line in re.findall(r"^    (\S[^:]*): ", documented, re.MULTILINE) for name in line.split(", ")),
        *members.get("__slots__", ()),
    ]
    yield from (name for name in names if not name.startswith("_") and not isinstance(members.get(name), property))


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines, in the order of the source."""
    if issubclass(cls, (BaseException, Enum)):
        return
    for name, member in vars(cls).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not name.startswith("_") and (isinstance(plain, property) or inspect.isfunction(plain)):
            yield name, plain


def _parameters(thing: Any) -> str:
    """The names of the parameters of a function, in brackets; nothing for what is not called."""
    if not inspect.isfunction(thing):
        return ""
    parameters = inspect.signature(thing).parameters.values()
    plain = [
        each.replace(annotation=inspect.Parameter.empty) for each in parameters if each.name not in ("self", "cls")
    ]
    return str(inspect.Signature(plain))


def _summary(thing: Any) -> str:
    if get_origin(thing) is not None:
        return "an alias for annotations."
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].replace("``", "`").split())
    return re.split(r"(?<=[.]) (?=[A-Z])", re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text))[0]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    for name, page in (("options.md", options()), ("requests.md", requests()), ("api.md", api())):
        Path(__file__).with_name(name).write_text(page, encoding="utf-8")
