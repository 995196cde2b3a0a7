"""Writes the pages that say what the code says: ``python docs/generate.py``.

``docs/options.md`` is made from the settings classes, ``docs/requests.md`` from the docstring of the operations.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from broker_adapter.engine import operations
from broker_adapter.settings import (
    AmqpSettings,
    ClientSettings,
    EngineSettings,
    FailoverSettings,
    ServerSettings,
    options_of,
)
from spark_connector.options import SinkOptions, SourceOptions, describe

HEAD = """# Options

Every option, with its unit (in its name), its default and its limits. Generated from the code: `make docs`.

Connection URLs take options as `?name=value&name=value`:

| URL | options |
|---|---|
| `embedded:PATH` (durable), `embedded:` (in memory, until the process ends) | client, engine |
| `amqp://HOST:PORT`, `amqps://HOST:PORT` (or `amqp://user:password@HOST`) | client, network, failover |
| `failover:(URL,URL,...)`, each URL one of the line above | client, network, failover; of each URL: network |
| `amqp://user:password@clientid/vhost?brokerlist='tcp://HOST:PORT;tcp://HOST'` | Qpid's own, see failover.md |

`holdfast serve` takes those of the engine and of the server as `--option NAME=VALUE`. An unknown option is an error
that lists the known ones. `none` stands for no limit where the default is one.
"""


REQUESTS_HEAD = """# Requests

What a Holdfast broker, embedded or a server, can be asked beyond messaging. Generated from the code: `make docs`.

    connection.request("bounds", {"destination": "orders"})
    connection.request("purge", {"destination": "news", "kind": "topic", "subscription": "reader"}, timeout=60)

Arguments are a dictionary by name, and the call waits for the result: at most `timeout` seconds, or
`request_timeout_seconds` of the URL. What an operation refuses is raised as a `JMSException` that says why, and an
unknown operation, an unknown argument or one of another type as `MessageFormatException`. `connection.statistics()`
gives `statistics` as an object.

"""


def requests() -> str:
    """The page of the requests."""
    assert operations.__doc__ is not None
    _, *blocks = operations.__doc__.replace("``", "`").replace(".  ", ". ").strip().split("\n\n")
    return REQUESTS_HEAD + "\n\n".join(map(_as_markdown, blocks)) + "\n"


def _as_markdown(block: str) -> str:
    """A paragraph as it is; a list of definitions as a list."""
    lines = block.splitlines()
    if not any(line.startswith("    ") for line in lines):
        return " ".join(lines)
    parts = [
        (is_text, " ".join(line.strip() for line in group))
        for is_text, group in itertools.groupby(lines, lambda line: line.startswith("    "))
    ]
    return "\n".join(f"  {text}" if is_text else f"- {text}:" for is_text, text in parts)


def options() -> str:
    """The page of the options."""
    parts = [HEAD]
    for title, cls in (
        ("Client: every connection", ClientSettings),
        ("Network: amqp:// and amqps://", AmqpSettings),
        ("Failover: when the network is lost", FailoverSettings),
        ("Engine: embedded, or in a server", EngineSettings),
        ("Server: holdfast serve", ServerSettings),
    ):
        parts.append(f"\n## {title}\n\n| option | default | from | to | meaning |\n|---|---|---|---|---|\n")
        parts += [
            f"| `{info.name}` | {_shown(info.default)} | {_limit(info.least)} | {_limit(info.most)} | {info.text} |\n"
            for info in options_of(cls)
        ]
    for title, cls in (("Spark: reading", SourceOptions), ("Spark: writing", SinkOptions)):
        parts.append(f"\n## {title}\n\n| option | default | meaning |\n|---|---|---|\n")
        parts += [f"| `{name}` | {_shown(default)} | {text} |\n" for name, default, text in describe(cls)]
    return "".join(parts)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _limit(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    for name, page in (("options.md", options()), ("requests.md", requests())):
        Path(__file__).with_name(name).write_text(page, encoding="utf-8")
