"""Two ends of a SASL login, and what they say to each other."""

from __future__ import annotations

from typing import Any

from scramp import ScramMechanism

from broker_adapter.amqp.messages.values import Described, Reader, Symbols, ULong, encode
from broker_adapter.amqp.sasl import PLAIN, SASL_HEADER, SCRAM_SHA_256, ClientLogin, ServerLogin, Verifier

PASSWORD = "correct horse"


class OneUser:
    """The user alice, that may log in."""

    def __init__(self, password: str = PASSWORD) -> None:
        self._password = password
        self.alice: Verifier = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, 4096)

    def verifier(self, username: str) -> Verifier | None:
        return self.alice if username == "alice" else None

    def check(self, username: str, password: str) -> bool:
        return (username, password) == ("alice", self._password)


class AnyName(OneUser):
    """Whoever knows the password."""

    def verifier(self, username: str) -> Verifier | None:
        return self.alice


USERS = OneUser()


def server(*, plain: bool = True, users: Any = USERS) -> ServerLogin:
    return ServerLogin(users, plain=plain)


def talk(first: Any, second: Any, *, chunk_bytes: int | None = None) -> None:
    """Carry bytes both ways until nothing moves."""
    moved = True
    while moved:
        moved = False
        for sender, receiver in ((first, second), (second, first)):
            data = sender.pending_output()
            moved = moved or bool(data)
            step = chunk_bytes or max(1, len(data))
            for start in range(0, len(data), step):
                receiver.receive(data[start : start + step])


def raw_frame(body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


def frame(code: int, *fields: Any) -> bytes:
    return raw_frame(encode(Described(ULong(code), list(fields))))


def offer(*mechanisms: str) -> bytes:
    return SASL_HEADER + frame(0x40, Symbols(mechanisms))


def client(*mechanisms: str, username: str | None = "alice", password: str | None = PASSWORD) -> ClientLogin:
    return ClientLogin(mechanisms or (SCRAM_SHA_256, PLAIN), username, password, "host")


def performatives(data: bytes) -> list[Any]:
    """What is in these frames; a header ahead of them is passed over."""
    found = []
    position = 8 if data.startswith(SASL_HEADER) else 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        found.append(Reader(data, position + 8, position + size).value())
        position += size
    return found
