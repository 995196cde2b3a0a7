"""The users file: one line for each, a name and what proves their password, never the password itself.

::

    alice SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy

The second word is the SCRAM verifier (iterations, salt, stored key, server key), in the form that PostgreSQL uses.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import tempfile
from hmac import compare_digest
from pathlib import Path

from scramp import ScramException, ScramMechanism

from broker_adapter.amqp.sasl import ITERATIONS, SCRAM_SHA_256, Verifier, decoy
from broker_adapter.errors import JMSSecurityException

#: Largest users file.
MAX_FILE_BYTES = 16 * 1024 * 1024
#: Longest user name and password, in characters.
MAX_NAME_LENGTH = 255
MAX_PASSWORD_LENGTH = 1024

_NAME = re.compile(r"[^\s\x00-\x1f\x7f#][^\s\x00-\x1f\x7f]*")
_LINE = re.compile(
    r"(?P<name>\S+)\s+SCRAM-SHA-256\$(?P<iterations>\d{1,8}):(?P<salt>[^$]+)\$(?P<stored>[^:]+):(?P<server>\S+)"
)


class UsersFile:
    """Who may log in, as a file says.

    Args:
        path: the file.

    Raises:
        JMSSecurityException: it cannot be read, or a line of it cannot be understood (the error says which).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._users: dict[str, Verifier] = _read(self.path)

    @property
    def names(self) -> list[str]:
        """The users' names, sorted."""
        return sorted(self._users)

    def verifier(self, username: str) -> Verifier | None:
        """What proves this user's password; None where there is no such user."""
        return self._users.get(username)

    def check(self, username: str, password: str) -> bool:
        """Whether this is the password; takes as long for unknown users."""
        found = self._users.get(username)
        salt, stored, _, iterations = found or decoy(username)
        try:
            _, claimed, _, _ = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, iterations, salt)
        except ScramException:
            return False
        return compare_digest(claimed, stored) and found is not None

    def add(self, username: str, password: str) -> bool:
        """Add a user, or change the password; returns whether the user is new.

        Raises:
            JMSSecurityException: the name or the password cannot be used.
        """
        if not _NAME.fullmatch(username) or len(username) > MAX_NAME_LENGTH:
            raise JMSSecurityException(
                f"user name {username!r:.300} cannot be used: 1 to {MAX_NAME_LENGTH} characters without spaces"
            )
        if not 0 < len(password) <= MAX_PASSWORD_LENGTH:
            raise JMSSecurityException(f"a password has 1 to {MAX_PASSWORD_LENGTH} characters")
        try:
            verifier = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, ITERATIONS)
        except ScramException as error:
            raise JMSSecurityException(f"the password cannot be used: {error}") from error
        is_new = username not in self._users
        self._users[username] = verifier
        self._write()
        return is_new

    def remove(self, username: str) -> None:
        """Remove a user.

        Raises:
            JMSSecurityException: there is no such user.
        """
        if self._users.pop(username, None) is None:
            raise JMSSecurityException(f"there is no user {username!r:.300} in {str(self.path)!r}")
        self._write()

    def _write(self) -> None:
        """Replace the file as a whole; only its owner may read it."""
        lines = [f"{name} {_encoded(verifier)}\n" for name, verifier in sorted(self._users.items())]
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    @classmethod
    def open_or_make(cls, path: str | os.PathLike[str]) -> UsersFile:
        """The file, made empty where it does not exist."""
        file = Path(path)
        if not file.exists():
            file.touch(mode=0o600)
        return cls(file)


def _encoded(verifier: Verifier) -> str:
    salt, stored, server, iterations = verifier
    texts = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${iterations}:{texts[0]}${texts[1]}:{texts[2]}"


def _read(path: Path) -> dict[str, Verifier]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise JMSSecurityException(f"users file {str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JMSSecurityException(
            f"users file {str(path)!r} cannot be read: {error}; make one with: holdfast user add {path} NAME"
        ) from error
    users: dict[str, Verifier] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        try:
            if match is None:
                raise ValueError("it is not of the form: NAME SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER")
            salt, stored, server = (
                base64.b64decode(match[part], validate=True) for part in ("salt", "stored", "server")
            )
            if len(stored) != 32 or len(server) != 32 or len(salt) < 12 or int(match["iterations"]) < 4096:
                raise ValueError("its salt, keys or iterations are too short")
        except ValueError as error:
            raise JMSSecurityException(f"line {number} of users file {str(path)!r} is wrong: {error}") from error
        if match["name"] in users:
            raise JMSSecurityException(f"line {number} of users file {str(path)!r} names {match['name']!r} again")
        users[match["name"]] = (salt, stored, server, int(match["iterations"]))
    return users
