"""A listener on an engine of the driver, for Spark's worker processes: with one user, whose password is made for it."""

from __future__ import annotations

import secrets
from typing import Final

from scramp import ScramMechanism

from broker_adapter.amqp.sasl import ServerLogin, Verifier
from broker_adapter.engine.broker import Broker
from broker_adapter.mechanisms import SCRAM_SHA_256
from broker_adapter.server.listener import Listener
from broker_adapter.settings import ServerSettings

_USER: Final = "spark"
LOOPBACK: Final = "127.0.0.1"


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


def listen(broker: Broker, host: str = LOOPBACK, bound: str | None = None) -> tuple[Listener, str]:
    """Make an engine reachable for worker processes.

    Args:
        broker: the engine; it is not closed with the listener.
        host: by which the workers reach it.
        bound: the address to listen on; None: the same.

    Returns:
        The listener, to be stopped by the caller, and the URL for the workers, with the user and the password.

    Raises:
        ConnectionLostException: the address cannot be listened on.
    """
    password = secrets.token_urlsafe(24)
    users = _OneUser(password)
    listener = Listener(broker, bound or host, 0, ServerSettings(), lambda: ServerLogin(users, plain=False))
    _, port = listener.start()
    shown = f"[{host}]" if ":" in host else host
    return listener, f"amqp://{_USER}:{password}@{shown}:{port}"
