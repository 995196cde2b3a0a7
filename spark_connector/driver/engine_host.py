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
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker_adapter.amqp.loop_thread import LoopThread
from broker_adapter.in_process import EngineLease
from broker_adapter.limited_log import LimitedLog
from broker_adapter.server.listener import Listener
from broker_adapter.urls.url import EmbeddedURL, parse_url
from sdk import JMSException
from spark_connector.driver import engine_registry as wire
from spark_connector.driver.engine_listener import listen
from spark_connector.driver.engine_registry import EngineRegistry, proof

_log = logging.getLogger(f"holdfast.{__name__}")
#: Callers at once; one more is turned away.
MAX_CALLERS: Final = 200
#: Connections that the system keeps until they are accepted.
_BACKLOG: Final = 128


class EngineHost:
    """The driver's side: the registry, and a listener for each engine that was asked for."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._addresses: dict[str, str] = {}
        self._open: list[tuple[EngineLease, Listener]] = []
        self._opener = ThreadPoolExecutor(1, "holdfast-spark-opener")
        self._callers = 0
        self._limited_log = LimitedLog(_log)
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
                raise PermissionError(f"the engine registry answers at most {MAX_CALLERS} callers at a time")
            async with asyncio.timeout(wire.CALLER_SECONDS):
                request = await self._request(reader, writer)
            answer = json.dumps(await self._answer(request)).encode()
            async with asyncio.timeout(wire.CALLER_SECONDS):
                writer.write(len(answer).to_bytes(4) + answer)
                await writer.drain()
        except TimeoutError:
            self._warn(f"it was silent for {wire.CALLER_SECONDS:g} s")
        except Exception as error:
            self._warn(str(error) or type(error).__name__)
        except asyncio.CancelledError:
            pass  # the registry is closed; asyncio 3.11 would complain of a task that ends so
        finally:
            self._callers -= 1
            writer.close()

    def _warn(self, reason: str) -> None:
        """Any process can cause this, so it is logged a few times a minute at most."""
        self._limited_log.write("turned away", "turned a caller away at the registry of the engine: %s", reason)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, str]:
        """Return what a caller that has the key asks for.

        Raises:
            OSError, EOFError, ValueError: it has not, or does not speak as a worker process does.
        """
        nonces = secrets.token_bytes(wire.NONCE_BYTES)
        writer.write(nonces)
        nonces += await reader.readexactly(wire.NONCE_BYTES)
        if not hmac.compare_digest(await reader.readexactly(wire.HASH_BYTES), proof(self._key, wire.CALLER, nonces)):
            raise PermissionError("it has not the key of this driver")
        writer.write(proof(self._key, wire.REGISTRY, nonces))
        size = int.from_bytes(await reader.readexactly(4))
        if size > wire.MAX_BYTES:
            raise ValueError(f"a request of {size} bytes is larger than the limit of {wire.MAX_BYTES}")
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
        try:
            listener, url = listen(lease.broker)
        except JMSException:
            lease.release()
            raise
        self._open.append((lease, listener))
        return url

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
