"""An embedded engine for the worker processes of Spark: opened in the driver's process, reached over loopback.

Theory of operation
    Only one process may own a store, but Spark plans, reads and writes in processes of its own.  So ``register`` starts
    a small desk in the driver's process.  Whoever gets an ``embedded:`` URL asks there, once, and is answered with the
    ``amqp:`` address of a listener on the driver's engine, with a user and a password made for it.  Nothing is opened
    before somebody asks.  All of it listens on 127.0.0.1 only, and the desk answers only who has the
    key that the registered data source carries.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import NamedTuple, TypeVar

import attrs
from scramp import ScramMechanism

from broker_adapter.amqp.sasl import ServerLogin, Verifier
from broker_adapter.in_process import EngineLease
from broker_adapter.mechanisms import SCRAM_SHA_256
from broker_adapter.server.listener import Listener as AmqpListener
from broker_adapter.settings import ServerSettings
from broker_adapter.url import EmbeddedURL, parse_url
from sdk import JMSException
from spark_connector.options import ConnectionOptions

_log = logging.getLogger(__name__)
Options = TypeVar("Options", bound=ConnectionOptions)
_USER = "spark"
#: Largest request and answer of the desk.
_MAX_BYTES = 64 * 1024


class Desk(NamedTuple):
    """Where the desk of a driver is, and what opens it."""

    port: int
    key: bytes


class _OneUser:
    """Who may log in: the worker processes."""

    def __init__(self, password: str) -> None:
        self._password = password
        self._verifier: Verifier = ScramMechanism(SCRAM_SHA_256).make_auth_info(password)

    def verifier(self, username: str) -> Verifier | None:
        return self._verifier if username == _USER else None

    def check(self, username: str, password: str) -> bool:
        return username == _USER and secrets.compare_digest(password, self._password)

    def has(self, username: str) -> bool:
        return username == _USER


class EngineHost:
    """The driver's side: the desk, and a listener for each engine that was asked for."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._listener = Listener(("127.0.0.1", 0), authkey=self._key)
        self._addresses: dict[str, str] = {}
        self._open: list[tuple[EngineLease, AmqpListener]] = []
        threading.Thread(target=self._serve, name="holdfast-spark-desk", daemon=True).start()

    @property
    def desk(self) -> Desk:
        """What the worker processes need to know."""
        return Desk(self._listener.address[1], self._key)

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (AuthenticationError, EOFError, ConnectionError) as error:
                _log.warning("refused somebody at the desk of the engine: %s", error)
                continue
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: Connection) -> None:
        try:
            url = connection.recv_bytes(_MAX_BYTES).decode()
            connection.send_bytes(json.dumps(self._address(url)).encode())
        except (OSError, EOFError, ValueError) as error:
            _log.warning("the desk of the engine could not answer: %s", error)

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
        """Close the desk, the listeners and the engines that nobody else uses."""
        self._listener.close()
        while self._open:
            lease, listener = self._open.pop()
            listener.stop()
            lease.release()
        self._addresses.clear()


def reachable(options: Options, desk: Desk | None) -> Options:
    """These options with a URL that any process on this machine can use.

    Raises:
        JMSException: the engine of an ``embedded:`` URL cannot be opened in the driver's process.
        ValueError: nobody registered the data source in the driver's process.
    """
    if not options.url.startswith("embedded:"):
        return options
    if desk is None:
        raise ValueError("an embedded: URL needs register(spark) from spark_connector in the driver's program")
    with Client(("127.0.0.1", desk.port), authkey=desk.key) as connection:
        connection.send_bytes(options.url.encode())
        answer = json.loads(connection.recv_bytes(_MAX_BYTES))
    if "error" in answer:
        raise JMSException(answer["error"])
    return attrs.evolve(options, url=answer["url"], username=None, password=None)
