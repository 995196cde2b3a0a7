"""The users file: one line for each, a name and what proves their password, never the password itself.

::

    alice SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy

The second word is the SCRAM verifier (iterations, salt, stored key, server key), in the form that PostgreSQL uses.
A line that begins with ``#`` is a comment, until the file is written again.

The file is always replaced as a whole, and a server that runs sees the change at the next login.  Two commands that
change it at the same moment may lose the change of one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections import Counter
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from scramp import ScramException, ScramMechanism
from scramp.utils import saslprep

from broker_adapter.amqp.sasl import Verifier, decoy
from broker_adapter.engine.store.files import sync_directory
from broker_adapter.errors import JMSSecurityException
from broker_adapter.mechanisms import ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS, SCRAM_SHA_256
from broker_adapter.wording import counted

_log = logging.getLogger(f"holdfast.{__name__}")

#: Largest users file.
MAX_FILE_BYTES = 16 * 1024 * 1024
#: Longest user name and password, in characters.
MAX_NAME_LENGTH = 255
MAX_PASSWORD_LENGTH = 1024

_LINE = re.compile(
    r"(?P<name>\S+)\s+SCRAM-SHA-256\$(?P<iterations>\d{1,8}):(?P<salt>[^$]+)\$(?P<stored>[^:]+):(?P<server>\S+)"
)


class _Known(NamedTuple):
    """The users of a file, and what unknown ones seem to have."""

    users: dict[str, Verifier]
    salt_bytes: int
    iterations: int
    decoy_key: bytes


class UsersFile:
    """The users that may log in, as a file says.

    Args:
        path: the file.

    Raises:
        JMSSecurityException: it cannot be read, or a line of it cannot be understood (the error says which).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._use({})
        self._seen: tuple[int, ...] | None = None
        self._load()

    def __repr__(self) -> str:
        return f"<UsersFile {str(self.path)!r}, {len(self._known.users)} users>"

    def _load(self) -> None:
        """Read the file; where that fails, the users stay as they were."""
        self._seen = identity_of(self.path)  # first: a change while the file is read is noticed next time
        self._use(_read(self.path))

    def _use(self, users: dict[str, Verifier]) -> None:
        """Unknown users get a decoy that is like most real ones, and the same until the file changes."""
        shapes = Counter((len(salt), iterations) for salt, _, _, iterations in users.values())
        shape = shapes.most_common(1)[0][0] if shapes else (32, ITERATIONS)
        keys = b"".join(users[name][1] for name in sorted(users))
        decoy_key = hashlib.sha256(keys).digest() if keys else secrets.token_bytes(32)
        self._known = _Known(users, *shape, decoy_key)  # at once, for the threads that read it

    def _refresh(self) -> None:
        """Read the file if it has changed."""
        if identity_of(self.path) != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file again.  One that cannot be read or understood changes nothing, and is logged."""
        try:
            self._load()
        except JMSSecurityException as error:
            _log.error("! the users stay as they were: %s", error)
            return
        _log.info("= users file %s was read again: %s", self.path, counted(len(self._known.users), "user"))

    @property
    def names(self) -> list[str]:
        """The users' names, sorted."""
        return sorted(self._known.users)

    @property
    def iterations(self) -> dict[str, int]:
        """The iterations of the hash of each user's password, by name, sorted."""
        return {name: iterations for name, (_, _, _, iterations) in sorted(self._known.users.items())}

    def verifier(self, username: str) -> Verifier:
        """Return what proves this user's password; for an unknown one a decoy.  Reads the file if it has changed."""
        self._refresh()
        prepared = _prepared(username)
        known = self._known
        found = known.users.get(username if prepared is None else prepared)
        if found is not None:
            return found
        return decoy(username, known.decoy_key, salt_bytes=known.salt_bytes, iterations=known.iterations)

    def check(self, username: str, password: str) -> bool:
        """Return whether this is the password; takes as long for unknown users.  Reads the file if it has changed.

        It takes as long as its hash does, up to a second or more.  Any thread may call it.
        """
        salt, stored, _, iterations = self.verifier(username)
        if len(password) > MAX_PASSWORD_LENGTH:  # no user has such a one, and preparing it takes long
            password = password[:MAX_PASSWORD_LENGTH]
            stored = b""
        try:
            _, claimed, _, _ = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, iterations, salt)
        except ScramException:  # no user can have such a password
            return False
        return compare_digest(claimed, stored)

    def has(self, username: str) -> bool:
        """Return whether there is such a user.  Reads the file if it has changed."""
        self._refresh()
        prepared = _prepared(username)
        return (username if prepared is None else prepared) in self._known.users

    def add(self, username: str, password: str, iterations: int = ITERATIONS) -> bool:
        """Add a user, or change the password; returns whether the user is new.

        Args:
            username: of the user.
            password: that they log in with.
            iterations: of the hash of the password: each guess, and each login, costs as many.

        Raises:
            JMSSecurityException: the name, the password or the number of iterations cannot be used.
        """
        name = _prepared(username)
        if name is None or len(name) > MAX_NAME_LENGTH:
            raise JMSSecurityException(
                f"user name {username!r:.300} cannot be used: 1 to {MAX_NAME_LENGTH} printable characters without"
                " spaces, of which the first is not '#'"
            )
        if not 0 < len(password) <= MAX_PASSWORD_LENGTH:
            raise JMSSecurityException(f"a password has 1 to {MAX_PASSWORD_LENGTH} characters")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise JMSSecurityException(f"iterations are from {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {iterations}")
        try:
            verifier = ScramMechanism(SCRAM_SHA_256).make_auth_info(password, iterations)
        except ScramException as error:
            raise JMSSecurityException(f"the password cannot be used: {error}") from error
        users = {**self._known.users, name: verifier}
        is_new = len(users) > len(self._known.users)
        self._write(users)
        return is_new

    def remove(self, username: str) -> None:
        """Remove a user.

        Raises:
            JMSSecurityException: there is no such user.
        """
        users = dict(self._known.users)
        if users.pop(_prepared(username) or username, None) is None:
            raise JMSSecurityException(f"there is no user {username!r:.300} in {str(self.path)!r}")
        self._write(users)

    def _write(self, users: dict[str, Verifier]) -> None:
        """Replace the file as a whole; only its owner may read it."""
        lines = [f"{name} {_encoded(verifier)}\n" for name, verifier in sorted(users.items())]
        target = self.path.resolve()  # what a link points to, not the link
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            sync_directory(target.parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._use(users)
        self._seen = identity_of(self.path)

    @classmethod
    def open_or_make(cls, path: str | os.PathLike[str]) -> UsersFile:
        """The file, made empty where it does not exist, so that only its owner may read it."""
        try:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            parent = Path(path).parent
            reason = error.strerror or str(error)
            if not parent.is_dir():
                reason = f"there is no directory {str(parent)!r}; make it first"
            raise JMSSecurityException(f"users file {str(path)!r} cannot be made: {reason}") from error
        return cls(path)


def identity_of(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """Return what changes when a file does; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _prepared(username: str) -> str | None:
    """A user name in the one form that it has in the file and in SCRAM; None where it cannot be one."""
    if len(username) > MAX_NAME_LENGTH:
        return None
    try:
        name: str = saslprep(username)
    except ScramException:
        return None
    if not name or not name.isprintable() or name.startswith("#") or any(character.isspace() for character in name):
        return None
    return name


def _encoded(verifier: Verifier) -> str:
    salt, stored, server, iterations = verifier
    texts = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${iterations}:{texts[0]}${texts[1]}:{texts[2]}"


def _read(path: Path) -> dict[str, Verifier]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise JMSSecurityException(
                f"users file {str(path)!r} is larger than the limit of {MAX_FILE_BYTES} bytes; remove the"
                " lines of users that are not needed"
            )
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise JMSSecurityException(
            f"users file {str(path)!r} cannot be read: {error}; make one with: holdfast user add {path} NAME"
        ) from error
    users: dict[str, Verifier] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        try:
            if match is None:
                raise ValueError("it is not of the form: NAME SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER")
            salt, stored, server = (
                base64.b64decode(match[part], validate=True) for part in ("salt", "stored", "server")
            )
            if len(stored) != 32 or len(server) != 32 or not 12 <= len(salt) <= 32:
                raise ValueError("a salt has 12 to 32 bytes, a key 32")
            if not MIN_ITERATIONS <= int(match["iterations"]) <= MAX_ITERATIONS:
                raise ValueError(f"iterations are from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
            if _prepared(match["name"]) != match["name"]:
                raise ValueError(f"{match['name']!r:.300} is no user name; add the user again")
        except ValueError as error:
            raise JMSSecurityException(f"line {number} of users file {str(path)!r} is wrong: {error}") from error
        if match["name"] in users:
            raise JMSSecurityException(f"line {number} of users file {str(path)!r} names {match['name']!r} again")
        users[match["name"]] = (salt, stored, server, int(match["iterations"]))
    return users
