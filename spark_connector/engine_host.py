"""An embedded engine for the worker processes of Spark: opened in the driver's process, reached over loopback.

Theory of operation
    Only one process may own a store, but Spark plans, reads and writes in processes of its own.  So ``register`` starts
    a small registry in the driver's process.  A process that gets an ``embedded:`` URL asks there, once, and is
    answered with the ``amqp:`` address of a listener on the driver's engine, with a user and a password made for it.
    Nothing is opened before a process asks.  All of it listens on 127.0.0.1 only, and the registry answers only callers
    that have the key that the registered data source carries.

    Any process on this machine can connect to the registry.  A caller shows first that it has the key (each side sends
    a random number, and the keyed hash of both numbers), and has a few seconds for that; until then 64 bytes of it are
    read.  Callers do not wait for each other, but for engines that are being opened, one at a time.

    The registry takes warnings as well, for the log of the driver's program: what Spark's own Python processes log ends
    up in the standard error of the JVM, or, with ``spark.sql.pyspark.worker.logging.enabled``, in the log of a session
    that only the query has.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import attrs
from scramp import ScramMechanism

from broker_adapter.amqp.loop_thread import LoopThread
from broker_adapter.amqp.sasl import ServerLogin, Verifier
from broker_adapter.in_process import EngineLease
from broker_adapter.mechanisms import SCRAM_SHA_256
from broker_adapter.server.listener import Listener as AmqpListener
from broker_adapter.server.log_limiter import LogLimiter
from broker_adapter.settings import ServerSettings
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import JMSException
from spark_connector.options import ConnectionOptions

_log = logging.getLogger(f"holdfast.{__name__}")
Options = TypeVar("Options", bound=ConnectionOptions)
_USER: Final = "spark"
#: Largest request and answer of the registry.
_MAX_BYTES: Final = 64 * 1024
#: Bytes of the random number that each side sends, and of a keyed hash.
_NONCE_BYTES: Final = 32
_HASH_BYTES: Final = 32
#: What the two hashes begin with, so that none can stand for the other.
_CALLER: Final = b"holdfast registry, caller"
_REGISTRY: Final = b"holdfast registry, registry"
#: Longest time that a caller has to show its key and to ask, in seconds; and to take the answer.
CALLER_SECONDS = 10.0
#: Longest time that a worker process waits for an answer, in seconds: an engine may have to be opened first.
ANSWER_SECONDS = 120.0
#: Callers at once; one more is turned away.
MAX_CALLERS: Final = 200
#: Connections that the system keeps until they are accepted.
_BACKLOG: Final = 128
#: Longest wait for the registry to take a warning, in seconds.
WARNING_SECONDS: Final = 5.0
#: Longest warning, in characters; in JSON none of them has more than twelve bytes.
_MOST_TEXT: Final = 4000


class EngineRegistry(NamedTuple):
    """Where the registry of a driver is, and what opens it."""

    port: int
    key: bytes


class _OneUser:
    """The user of the worker processes, the only one that may log in."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._verifier: Verifier = ScramMechanism(SCRAM_SHA_256).make_auth_info(password)

    def verifier(self, username: str) -> Verifier | None:
        return self._verifier if username == _USER else None

    def check(self, username: str, password: str) -> bool:
        return username == _USER and secrets.compare_digest(password, self._password)

    def has(self, username: str) -> bool:
        return username == _USER


def _proof(key: bytes, side: bytes, nonces: bytes) -> bytes:
    """What shows that a side has the key."""
    return hmac.digest(key, side + nonces, "sha256")


class EngineHost:
    """The driver's side: the registry, and a listener for each engine that was asked for."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._addresses: dict[str, str] = {}
        self._open: list[tuple[EngineLease, AmqpListener]] = []
        self._opener = ThreadPoolExecutor(1, "holdfast-spark-opener")
        self._callers = 0
        self._log_limiter = LogLimiter()
        self._thread = LoopThread("holdfast-spark-registry")
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1024, backlog=_BACKLOG)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._thread.loop).result()
        self._port: int = self._server.sockets[0].getsockname()[1]

    @property
    def registry(self) -> EngineRegistry:
        """What the worker processes need to know."""
        return EngineRegistry(self._port, self._key)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one caller."""
        self._callers += 1
        try:
            if self._callers > MAX_CALLERS:
                raise PermissionError(f"{MAX_CALLERS} callers are here already")
            async with asyncio.timeout(CALLER_SECONDS):
                request = await self._request(reader, writer)
            answer = json.dumps(await self._answer(request)).encode()
            async with asyncio.timeout(CALLER_SECONDS):
                writer.write(len(answer).to_bytes(4) + answer)
                await writer.drain()
        except TimeoutError:
            self._warn(f"it was silent for {CALLER_SECONDS:g} s")
        except Exception as error:
            self._warn(str(error) or type(error).__name__)
        except asyncio.CancelledError:
            pass  # the registry is closed; asyncio 3.11 would complain of a task that ends so
        finally:
            self._callers -= 1
            writer.close()

    def _warn(self, reason: str) -> None:
        """Any process can cause this, so it is logged a few times a minute at most."""
        now = time.monotonic()
        self._log_limiter.suppressed(now)  # a new minute begins
        if self._log_limiter.may_write(now):
            _log.warning("turned a caller away at the registry of the engine: %s", reason)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, str]:
        """What a caller that has the key asks for.

        Raises:
            OSError, EOFError, ValueError: it has not, or does not speak as a worker process does.
        """
        nonces = secrets.token_bytes(_NONCE_BYTES)
        writer.write(nonces)
        nonces += await reader.readexactly(_NONCE_BYTES)
        if not hmac.compare_digest(await reader.readexactly(_HASH_BYTES), _proof(self._key, _CALLER, nonces)):
            raise PermissionError("it has not the key of this driver")
        writer.write(_proof(self._key, _REGISTRY, nonces))
        size = int.from_bytes(await reader.readexactly(4))
        if size > _MAX_BYTES:
            raise ValueError(f"a request of {size} bytes is larger than the limit of {_MAX_BYTES}")
        request: dict[str, str] = json.loads(await reader.readexactly(size))
        return request

    async def _answer(self, request: dict[str, str]) -> dict[str, str]:
        if "warning" in request:
            _log.warning("%s", request["warning"])
            return {}
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._opener, self._address, request["url"])

    def _address(self, url: str) -> dict[str, str]:
        try:
            address = self._addresses.get(url)
            if address is None:
                address = self._addresses[url] = self._listen(url)
            return {"url": address}
        except JMSException as error:
            return {"error": str(error)}

    def _listen(self, url: str) -> str:
        parsed = parse_url(url)
        assert isinstance(parsed, EmbeddedURL)
        lease = EngineLease(parsed)
        password = secrets.token_urlsafe(24)
        users = _OneUser(password)
        listener = AmqpListener(lease.broker, "127.0.0.1", 0, ServerSettings(), lambda: ServerLogin(users, plain=False))
        try:
            _, port = listener.start()
        except JMSException:
            lease.release()
            raise
        self._open.append((lease, listener))
        return f"amqp://{_USER}:{password}@127.0.0.1:{port}"

    def close(self) -> None:
        """Close the registry, the listeners and the engines that nothing else uses.

        Waits for one that is being opened.
        """
        self._thread.loop.call_soon_threadsafe(self._server.close)
        self._thread.stop()
        self._opener.shutdown()
        while self._open:
            lease, listener = self._open.pop()
            listener.stop()
            lease.release()
        self._addresses.clear()


def reachable(options: Options, registry: EngineRegistry | None) -> Options:
    """These options with a URL that any process on this machine can use.

    Raises:
        JMSException: the engine of an ``embedded:`` URL cannot be opened in the driver's process.
        ValueError: the data source is not registered in the driver's process.
    """
    if not options.url.startswith("embedded:"):
        return options
    if registry is None:
        raise ValueError("an embedded: URL needs register(spark) from spark_connector in the driver's program")
    answer = _ask(registry, {"url": options.url})
    if "error" in answer:
        raise JMSException(answer["error"])
    return attrs.evolve(options, url=answer["url"], username=None, password=None)


def _ask(registry: EngineRegistry, request: dict[str, str], timeout: float = ANSWER_SECONDS) -> dict[str, str]:
    """The registry's answer to a request.

    Raises:
        OSError: no process listens there, it does not answer in time, or one of both does not have the key.
    """
    asked = json.dumps(request).encode()
    deadline = time.monotonic() + timeout
    with socket.create_connection(("127.0.0.1", registry.port), min(timeout, CALLER_SECONDS)) as asking:
        own = secrets.token_bytes(_NONCE_BYTES)
        nonces = _received(asking, _NONCE_BYTES, deadline) + own
        asking.sendall(own + _proof(registry.key, _CALLER, nonces))
        if not hmac.compare_digest(_received(asking, _HASH_BYTES, deadline), _proof(registry.key, _REGISTRY, nonces)):
            raise PermissionError("the process that listens at the port of the driver's registry is not the driver")
        asking.sendall(len(asked).to_bytes(4) + asked)
        size = int.from_bytes(_received(asking, 4, deadline))
        if size > _MAX_BYTES:
            raise PermissionError(f"the driver's registry answers with {size} bytes; the limit is {_MAX_BYTES}")
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
