"""The way from a process of Spark to the registry in the driver's process: for embedded engines, and for the log.

What each side sends is in :mod:`spark_connector.driver.engine_host`.  Each worker process loads this file, and none
that file, which has an engine and a server.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import time
from typing import Final, NamedTuple, TypeVar

import attrs

from sdk import JMSException
from spark_connector.options import ConnectionOptions

# The loggers of both sides have one name.
_log = logging.getLogger("holdfast.spark_connector.engine_host")
Options = TypeVar("Options", bound=ConnectionOptions)
#: Largest request and answer of the registry.
MAX_BYTES: Final = 64 * 1024
#: Bytes of the random number that each side sends, and of a keyed hash.
NONCE_BYTES: Final = 32
HASH_BYTES: Final = 32
#: What the two hashes begin with, so that none can stand for the other.
CALLER: Final = b"holdfast registry, caller"
REGISTRY: Final = b"holdfast registry, registry"
#: Longest time that a caller has to show its key and to ask, in seconds; and to take the answer.
CALLER_SECONDS = 10.0
#: Longest time that a worker process waits for an answer, in seconds: an engine may have to be opened first.
ANSWER_SECONDS = 120.0
#: Longest wait for the registry to take a warning, in seconds.
WARNING_SECONDS: Final = 5.0
#: Longest warning, in characters; in JSON none of them has more than twelve bytes.
_MOST_TEXT: Final = 4000


class EngineRegistry(NamedTuple):
    """Where the registry of a driver is, and what opens it."""

    port: int
    key: bytes


def proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    """Return what shows that a side has the key."""
    return hmac.digest(key, side + nonces, "sha256")


def reachable(options: Options, registry: EngineRegistry | None) -> Options:
    """These options with a URL that any process on this machine can use.

    Raises:
        JMSException: the engine of an ``embedded:`` URL cannot be opened in the driver's process, or that process has
            ended, has closed its engines, or is on another machine.
        ValueError: the data source is not registered in the driver's process.
    """
    if not options.url.startswith("embedded:"):
        return options
    if registry is None:
        raise ValueError("an embedded: URL needs register(spark) from spark_connector in the driver's program")
    try:
        answer = _ask(registry, {"url": options.url})
    except ConnectionRefusedError as error:
        raise JMSException(
            "the engine of an embedded: URL is in the program that has called register(spark), and does not answer"
            f" ({error}): call register(spark) again if close_engines() was called; from another machine use the"
            " amqp: URL of a server"
        ) from error
    if "error" in answer:
        raise JMSException(answer["error"])
    without_login = attrs.evolve(options, username=None, password=None, password_file=None, password_env=None)
    return attrs.evolve(without_login, url=answer["url"])


def _ask(registry: EngineRegistry, request: dict[str, str], timeout: float = ANSWER_SECONDS) -> dict[str, str]:
    """The registry's answer to a request.

    Raises:
        OSError: no process listens there, it does not answer in time, or one of both does not have the key.
    """
    asked = json.dumps(request).encode()
    deadline = time.monotonic() + timeout
    with socket.create_connection(("127.0.0.1", registry.port), min(timeout, CALLER_SECONDS)) as asking:
        own = secrets.token_bytes(NONCE_BYTES)
        nonces = _received(asking, NONCE_BYTES, deadline) + own
        asking.sendall(own + proof(registry.key, CALLER, nonces))
        if not hmac.compare_digest(_received(asking, HASH_BYTES, deadline), proof(registry.key, REGISTRY, nonces)):
            raise PermissionError("the process that listens at the port of the driver's registry is not the driver")
        asking.sendall(len(asked).to_bytes(4) + asked)
        size = int.from_bytes(_received(asking, 4, deadline))
        if size > MAX_BYTES:
            raise PermissionError(f"the driver's registry answers with {size} bytes; the limit is {MAX_BYTES}")
        answer: dict[str, str] = json.loads(_received(asking, size, deadline))
        return answer


def _received(asking: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        asking.settimeout(max(0.001, deadline - time.monotonic()))
        more = asking.recv(size - len(data))
        if not more:
            raise PermissionError("the driver's registry has turned this process away, which has not its key")
        data += more
    return data


@attrs.frozen
class DriverLog:
    """The log of the driver's program, for Spark's processes on the driver's machine.

    Args:
        registry: of the driver; None: the log is that of this process.
    """

    registry: EngineRegistry | None = None

    def __reduce__(self) -> tuple[type[DriverLog], tuple[()]]:
        # What goes to the executors has no use for the registry, and no business with its key.
        return DriverLog, ()

    def warning(self, text: str) -> None:
        """Log a warning.  Never raises; waits for the registry at most :data:`WARNING_SECONDS`."""
        if self.registry is not None:
            try:
                _ask(self.registry, {"warning": text[:_MOST_TEXT]}, WARNING_SECONDS)
                return
            except (OSError, EOFError, ValueError) as error:
                _log.debug("the registry of the driver takes no warning: %s", error)
        _log.warning("%s", text)
