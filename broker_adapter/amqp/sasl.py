"""The login ahead of AMQP (AMQP 1.0 part 5.3), both ends: ANONYMOUS, PLAIN and SCRAM-SHA-256; no I/O.

Theory of operation
    Each end says ``AMQP 3 1 0 0``; then frames of five kinds go to and fro: the server's mechanisms, the client's init,
    challenges and responses, and the server's outcome.  After an outcome of 0 both ends start AMQP itself with a new
    header.

    A client that has not logged in may be hostile: frames are small, rounds are few, nothing of the engine is touched,
    and a server answers an unknown user exactly as it answers a wrong password.  Whatever bytes come, ``receive`` does
    not raise: it ends in ``done`` or in ``error``, or waits for more.

    What takes long (the hash of a password), or has to wait for its turn (the judgement of one), is handed to
    ``carry_out`` as a piece of :class:`Work`.  Until it is resumed the exchange is suspended: what comes is kept, up to
    a limit.  Then ``receive(b"")`` goes on with it.

    A server without users accepts every login: ANONYMOUS, and PLAIN with any name and password, without verification
    (so that a client that is configured with a user works there).  A client with a user name does not fall back to
    ANONYMOUS by itself: its owner would take the connection for one that was verified.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from scramp import ScramClient, ScramException, ScramMechanism

from broker_adapter.amqp.messages.values import Described, Reader, Symbol, Symbols, UByte, ULong, encode
from broker_adapter.errors import ConnectionLostException, JMSException, JMSSecurityException, ProtocolException
from broker_adapter.mechanisms import (
    ANONYMOUS,
    EXTERNAL,
    GIVE_LOGIN,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    PLAIN,
    SCRAM_SHA_256,
)

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"

#: Largest frame of a login.
MAX_FRAME_BYTES: Final = 8192
#: Most frames that one side may send in a login.
MAX_FRAMES: Final = 8
#: Most values in one frame, nested ones counted.
MAX_FRAME_VALUES: Final = 1000
#: Most bytes that the other side may send while the exchange is suspended: its first frames of AMQP, ahead of time.
MAX_AHEAD_BYTES: Final = 64 * 1024
#: Longest first message of a SCRAM client, in bytes: a name of 255 characters, escaped, and a nonce.
MAX_CLIENT_FIRST_BYTES: Final = 2048

_MECHANISMS: Final = 0x40
_INIT: Final = 0x41
_CHALLENGE: Final = 0x42
_RESPONSE: Final = 0x43
_OUTCOME: Final = 0x44
_NAMES: Final = {
    _MECHANISMS: "amqp:sasl-mechanisms:list",
    _INIT: "amqp:sasl-init:list",
    _CHALLENGE: "amqp:sasl-challenge:list",
    _RESPONSE: "amqp:sasl-response:list",
    _OUTCOME: "amqp:sasl-outcome:list",
}
_CODES: Final[dict[Any, int]] = {name: code for code, name in _NAMES.items()} | {code: code for code in _NAMES}

OK: Final = 0
AUTH: Final = 1  #: wrong credentials
SYS: Final = 2

#: What SCRAM needs of a user: salt, stored key, server key, iterations.
Verifier = tuple[bytes, bytes, bytes, int]


class Login(Protocol):
    """The SASL exchange ahead of AMQP, sans I/O."""

    #: Gets what takes long, or has to wait; ``receive(b"")`` goes on once it was resumed.
    carry_out: Callable[[Work], None]

    def receive(self, data: bytes) -> None:
        """Take bytes from the server."""

    def pending_output(self) -> bytes:
        """The bytes to send now."""

    @property
    def done(self) -> bool:
        """Whether the login succeeded; AMQP begins with ``leftover()``."""

    @property
    def error(self) -> JMSException | None:
        """Why the login failed, where it did."""

    def leftover(self) -> bytes:
        """Bytes that came after the exchange."""


class Users(Protocol):
    """The users that may log in."""

    def verifier(self, username: str) -> Verifier | None:
        """Return what proves this user's password; for an unknown one None, or a decoy of their own (see
        :func:`decoy`).
        """

    def check(self, username: str, password: str) -> bool:
        """Return whether this is the password; takes as long for unknown users."""

    def has(self, username: str) -> bool:
        """Return whether there is such a user, who is authenticated in another way."""


class Work(NamedTuple):
    """Something that a login needs before it can go on."""

    username: str  #: of the user that logs in
    is_costly: bool  #: whether it takes long, so that it has to be done in another thread
    compute: Callable[[], Any]  #: does it; in any thread, once
    resume: Callable[[Any], None]  #: goes on with its result, in the connection's thread


def _at_once(work: Work) -> None:
    work.resume(work.compute())


class _Exchange:
    """What both ends have in common: the header, the frames, their limits.

    Attributes:
        carry_out: called with each piece of work, in the connection's thread; by default it is done at once.
        is_suspended: whether a piece of work is under way.
        done: whether the login succeeded.
        error: why it failed, where it did.
    """

    def __init__(self) -> None:
        self._input = b""
        self._output: list[bytes] = []
        self._header_seen = False
        self._frames = 0
        self.carry_out: Callable[[Work], None] = _at_once
        self.is_suspended = False
        self.done = False
        self.error: JMSException | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes from the other side; after an error they are dropped."""
        if self.error is not None:
            return
        self._input += data
        if self.is_suspended and len(self._input) > MAX_AHEAD_BYTES:
            self._break(f"more than {MAX_AHEAD_BYTES} bytes came ahead of the outcome of the login")
        while not self.done and self.error is None and not self.is_suspended:
            if not self._header_seen:
                if len(self._input) < 8 and SASL_HEADER.startswith(self._input):
                    return
                head = self._input[:8]
                if head == SASL_HEADER:
                    self._input = self._input[8:]
                    self._header_seen = True
                    self._on_header()
                elif len(head) < 8 and AMQP_HEADER.startswith(head):
                    return
                else:
                    self._on_other_header(head)
                    return
                continue
            if not self._take_frame():
                return

    def _take_frame(self) -> bool:
        data = self._input
        if len(data) < 8:
            return False
        size = int.from_bytes(data[:4])
        if not 8 <= size <= MAX_FRAME_BYTES:
            self._break(f"a frame of the login has {size} bytes; the limits are 8 and {MAX_FRAME_BYTES}")
            return False
        if len(data) < size:
            return False
        self._input = data[size:]
        self._frames += 1
        start = 4 * data[4]
        if data[5] != 1 or start < 8 or self._frames > MAX_FRAMES:
            self._break("what came is no frame of a login, or one too many")
            return False
        try:
            performative = Reader(data, start, size, MAX_FRAME_VALUES).value()
            if not isinstance(performative, Described) or not isinstance(performative.value, list):
                raise ValueError(f"{performative!r:.100} is no part of a login")
            descriptor = performative.descriptor
            code = _CODES.get(descriptor) if isinstance(descriptor, int | Symbol) else None
            if code is None:
                raise ValueError(f"{descriptor!r:.100} is no part of a login")
            self._on_frame(code, [*performative.value, None, None, None])
        except (ValueError, ScramException) as error:
            self._break(f"the login cannot be understood: {error}")
        return True

    def _suspend(
        self, username: str, compute: Callable[[], Any], then: Callable[[Any], None], *, is_costly: bool
    ) -> None:
        """Have something computed, and go on with its result."""
        self.is_suspended = True

        def resume(result: Any) -> None:
            self.is_suspended = False
            if self.error is not None:
                return
            try:
                then(result)
            except (ValueError, ScramException) as error:
                self._break(f"the login cannot be understood: {error}")

        self.carry_out(Work(username, is_costly, compute, resume))

    def pending_output(self) -> bytes:
        """The bytes to send now."""
        output, self._output = self._output, []
        return b"".join(output)

    def leftover(self) -> bytes:
        """Return what came after the login."""
        rest, self._input = self._input, b""
        return rest

    def _send(self, code: int, *fields: Any) -> None:
        body = encode(Described(ULong(code), list(fields)))
        self._output.append((len(body) + 8).to_bytes(4) + b"\x02\x01\x00\x00" + body)

    def _break(self, reason: str) -> None:
        self.error = ProtocolException(reason, error_code="amqp:connection:framing-error")

    def _on_header(self) -> None:
        raise NotImplementedError

    def _on_other_header(self, head: bytes) -> None:
        raise NotImplementedError

    def _on_frame(self, code: int, fields: list[Any]) -> None:
        raise NotImplementedError


class ClientLogin(_Exchange):
    """The client's end.

    Args:
        mechanisms: what may be used, the preferred one first.
        username: None where there is none; then only mechanisms that need none are used.
        password: of the user.
        hostname: the host that the client means to speak to.
        withheld: mechanisms that are not used to protect the client, and why; told where the broker offers only those.
        is_unverified: whether it is not known yet that this is the broker: where it offers too little, or proves
            nothing, the attempt to connect has failed, and not the login of the user.
        on_welcome: called with the mechanism when the login has succeeded.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        username: str | None,
        password: str | None,
        hostname: str | None = None,
        *,
        withheld: Mapping[str, str] | None = None,
        is_unverified: bool = False,
        on_welcome: Callable[[str], None] = lambda _mechanism: None,
    ) -> None:
        super().__init__()
        named = username is not None and password is not None
        self._mechanisms = tuple(
            name for name in mechanisms if name in (EXTERNAL, ANONYMOUS) or (named and name in _WITH_PASSWORD)
        )
        self._username = username
        self._password = password
        self._hostname = hostname
        self._withheld = dict(withheld or {})
        self._is_unverified = is_unverified
        self._on_welcome = on_welcome
        self.mechanism: str | None = None
        self._scram: Any = None
        self._scram_stage = 0
        self._output.append(SASL_HEADER)

    def _on_header(self) -> None:
        pass  # the server's mechanisms follow

    def _on_other_header(self, head: bytes) -> None:
        if head == AMQP_HEADER:
            self.error = JMSSecurityException(
                "the broker takes no login (SASL), and this client always makes one; switch SASL on at the broker,"
                " with ANONYMOUS where it has no users"
            )
        else:
            self.error = ConnectionLostException(
                f"the port does not speak AMQP 1.0: it answered {head!r}{_guess(head, 'use amqps:// with this port')}"
            )

    def _on_frame(self, code: int, fields: list[Any]) -> None:
        if code == _MECHANISMS and self.mechanism is None:
            self._choose(fields[0])
        elif code == _CHALLENGE and self._scram is not None:
            self._answer(_binary(fields[0]))
        elif code == _OUTCOME:
            self._on_outcome(fields)
        else:
            raise ValueError(f"{_NAMES[code]} comes out of turn")

    def _choose(self, offered: Any) -> None:
        names = [str(name) for name in (offered if isinstance(offered, list) else [offered])]
        mechanism = next((name for name in self._mechanisms if name in names), None)
        if mechanism is None:
            self._fail_unproven(
                f"the broker offers the SASL mechanisms {', '.join(names)!a:.300}, and this client can use"
                f" {', '.join(self._mechanisms) or 'none'} here; {self._advice(names)}"
            )
            return
        self.mechanism = mechanism
        try:
            response = self._first_response(mechanism)
        except (ScramException, UnicodeEncodeError) as error:
            self.error = JMSSecurityException(f"the user name or password cannot be used with {mechanism}: {error}")
            return
        self._send(_INIT, Symbol(mechanism), response, self._hostname)

    def _advice(self, offered: Sequence[str]) -> str:
        if self._username is None:
            return GIVE_LOGIN
        reasons = [reason for mechanism, reason in self._withheld.items() if mechanism in offered]
        if reasons:
            return "; ".join(reasons)
        if PLAIN in offered and PLAIN not in self._mechanisms:
            return "the option sasl_mechanisms excludes PLAIN"
        if ANONYMOUS in offered:
            return "it verifies no user: leave the user name out, or set sasl_mechanisms=ANONYMOUS"
        return "switch one of these on at the broker"

    def _first_response(self, mechanism: str) -> bytes:
        if mechanism == ANONYMOUS:
            return b"anonymous"
        if mechanism == EXTERNAL:
            return b""  # the user that the certificate names
        assert self._username is not None
        assert self._password is not None
        if mechanism == PLAIN:
            if "\0" in self._username + self._password:
                raise ScramException("it has a character of code 0")
            return f"\0{self._username}\0{self._password}".encode()
        self._scram = ScramClient([SCRAM_SHA_256], self._username, self._password)
        first: str = self._scram.get_client_first()
        return first.encode()

    def _answer(self, challenge: bytes) -> None:
        self._scram_stage += 1
        if self._scram_stage == 1:
            text = challenge.decode()
            asked = _ITERATIONS.search(text)
            if asked is not None and not _is_allowed(asked[1]):
                self._fail_unproven(
                    f"the broker asks for {_shortened(asked[1])} iterations of the hash of user {self._username!r}, and"
                    f" this client does {MIN_ITERATIONS} to {MAX_ITERATIONS}; set the password at the broker again,"
                    " with a number in between"
                )
                return
            try:
                self._scram.set_server_first(text)
            except ScramException as error:
                self.error = JMSSecurityException(
                    f"the login of user {self._username!r} cannot go on: {error}", error_code="amqp:unauthorized-access"
                )
                return
            assert self._username is not None
            self._suspend(self._username, self._scram.get_client_final, self._prove, is_costly=True)
        elif self._scram_stage == 2:
            if self._is_proven(challenge):
                self._send(_RESPONSE, b"")
        else:
            raise ValueError("a challenge too many")

    def _prove(self, client_final: str) -> None:
        self._send(_RESPONSE, client_final.encode())

    def _is_proven(self, proof: Any) -> bool:
        """Return whether the broker, too, knows the password; notes the error where it does not."""
        try:
            self._scram.set_server_final(_binary(proof).decode())
        except (ScramException, ValueError):
            self._fail_unproven(
                f"the broker did not prove that it knows the password of {self._username!r}: it may not be the one that"
                " it says it is"
            )
            return False
        return True

    def _fail_unproven(self, reason: str) -> None:
        """This is another broker than expected, or it is configured in another way."""
        self.error = ConnectionLostException(reason) if self._is_unverified else JMSSecurityException(reason)

    def _on_outcome(self, fields: list[Any]) -> None:
        code, data = fields[0], fields[1]
        if self.mechanism is None:
            raise ValueError("the outcome comes out of turn")
        if code == AUTH:
            who = "an anonymous client" if self._username is None else f"user {self._username!r}"
            if self.mechanism == EXTERNAL:
                who = "the user that the client's certificate names"
            self.error = JMSSecurityException(
                f"the broker refused the login of {who} ({self.mechanism}): check the user name and the password",
                error_code="amqp:unauthorized-access",
            )
            return
        if code != OK:
            self.error = JMSSecurityException(
                f"the broker could not carry out the login (SASL outcome {code!a:.20}); its log may say why"
            )
            return
        if self._scram is not None and self._scram_stage < 2:
            if self._scram_stage != 1:
                raise ValueError("the outcome comes out of turn")
            if not self._is_proven(data):
                return
        self.done = True
        self._on_welcome(self.mechanism)


class ServerLogin(_Exchange):
    """The server's end.

    Args:
        users: that may log in; None: any client, with any name and password.
        plain: whether a password may come as it is (PLAIN): over TLS, or from this machine.
    """

    def __init__(self, users: Users | None, *, plain: bool) -> None:
        super().__init__()
        self._users = users
        if users is None:
            self.mechanisms: tuple[str, ...] = (ANONYMOUS, PLAIN)
        else:
            self.mechanisms = (SCRAM_SHA_256, PLAIN) if plain else (SCRAM_SHA_256,)
        self.username: str | None = None
        self._scram: Any = None
        self._claimed = ""
        self._certified: str | None = None

    def offer_external(self, username: str) -> None:
        """Offer EXTERNAL first, to a client whose verified certificate names this user; ahead of the first byte."""
        self._certified = username
        self.mechanisms = (EXTERNAL, *self.mechanisms)

    def _on_header(self) -> None:
        self._output.append(SASL_HEADER)
        self._send(_MECHANISMS, Symbols(self.mechanisms))

    def _on_other_header(self, head: bytes) -> None:
        if head == AMQP_HEADER and self._users is None:
            self.done = True  # no login is required
            return
        # The specification: answer with the header that is expected, and close.
        self._output.append(SASL_HEADER)
        if head == AMQP_HEADER:
            self.error = JMSSecurityException("the client did not log in; users are required here")
        else:
            self.error = ProtocolException(f"what came is not AMQP 1.0: {head!r}{_guess(head, 'this port has no TLS')}")

    def _on_frame(self, code: int, fields: list[Any]) -> None:
        if code == _INIT and self._scram is None:
            self._on_init(str(fields[0]), fields[1])
        elif code == _RESPONSE and self._scram is not None:
            self._on_response(_binary(fields[0]))
        else:
            raise ValueError(f"{_NAMES[code]} comes out of turn")

    def _on_init(self, mechanism: str, response: Any) -> None:
        if mechanism not in self.mechanisms:
            self._refuse(f"mechanism {mechanism!a:.100} is not offered")
        elif mechanism == ANONYMOUS:
            self._welcome("")
        elif mechanism == EXTERNAL:
            self._on_external(b"" if response is None else _binary(response))
        elif mechanism == PLAIN:
            parts = _binary(response).decode().split("\0")
            if len(parts) != 3:
                raise ValueError("a response of PLAIN has three parts")
            asked, username, password = parts
            if self._users is None:
                self._welcome(username)
            elif asked not in ("", username):
                self._refuse(f"{username!a:.100} may not act as {asked!a:.100}")
            else:
                self._claimed = username
                check = partial(self._users.check, username, password)
                self._suspend(username, check, self._on_checked, is_costly=True)
        else:
            if len(_binary(response)) > MAX_CLIENT_FIRST_BYTES:
                raise ValueError(f"a first message of SCRAM has at most {MAX_CLIENT_FIRST_BYTES} bytes")
            self._scram = ScramMechanism(SCRAM_SHA_256).make_server(self._verifier)
            self._scram.set_client_first(_binary(response).decode())
            self._send(_CHALLENGE, self._scram.get_server_first().encode())

    def _on_external(self, response: bytes) -> None:
        assert self._certified is not None
        if response.decode() not in ("", self._certified):
            self._refuse(f"the certificate of {self._certified!a:.100} does not allow to act as {response!r:.100}")
        elif self._users is not None and not self._users.has(self._certified):
            self._refuse(f"the certificate names {self._certified!a:.100}, which is not one of the users")
        else:
            self._welcome(self._certified)

    def _verifier(self, username: str) -> Verifier:
        self._claimed = username
        assert self._users is not None
        return self._users.verifier(username) or decoy(username)

    def _on_checked(self, is_right: bool) -> None:
        if is_right:
            self._welcome(self._claimed)
        else:
            self._refuse_claim()

    def _on_response(self, response: bytes) -> None:
        self._suspend(self._claimed, partial(self._verified, response.decode()), self._on_verified, is_costly=False)

    def _verified(self, client_final: str) -> bytes | None:
        """The proof that the server knows the password, too; None where the client does not."""
        try:
            self._scram.set_client_final(client_final)
            final: str = self._scram.get_server_final()
        except ScramException:
            return None
        return final.encode()

    def _on_verified(self, server_final: bytes | None) -> None:
        if server_final is None:
            self._refuse_claim()
        else:
            self._welcome(self._claimed, server_final)

    def _refuse_claim(self) -> None:
        self._refuse(f"wrong user name or password of {self._claimed!a:.100}")

    def _welcome(self, username: str, data: bytes | None = None) -> None:
        self.username = username or None
        self._send(_OUTCOME, UByte(OK), data)
        self.done = True

    def _refuse(self, reason: str) -> None:
        self._send(_OUTCOME, UByte(AUTH))
        self.error = JMSSecurityException(f"refused the login: {reason}", error_code="amqp:unauthorized-access")


_decoy_key: Final = secrets.token_bytes(32)


def decoy(
    username: str, key: bytes = _decoy_key, *, salt_bytes: int = 32, iterations: int = MIN_ITERATIONS
) -> Verifier:
    """Return what an unknown user seems to have: the same each time, so that asking twice tells nothing; no password
    fits it.

    Args:
        username: of the user that there is not.
        key: a secret; another one gives other salts.
        salt_bytes: length of the salt, up to 32; as real users have it.
        iterations: as real users have them.
    """
    salt, stored, server = (
        hmac.digest(key, f"{what}{username}".encode(errors="replace"), "sha256") for what in ("a", "b", "c")
    )
    return salt[:salt_bytes], stored, server, iterations


#: The iterations in the first message of a SCRAM server.
_ITERATIONS: Final = re.compile("(?:^|,)i=([0-9]+)(?:,|$)")


def _shortened(digits: str) -> str:
    return digits if len(digits) <= 20 else f"{digits[:20]}..."


def _is_allowed(iterations: str) -> bool:
    """Return whether so many iterations, in digits, are done."""
    return len(iterations) <= len(str(MAX_ITERATIONS)) and MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS


_WITH_PASSWORD: Final = (PLAIN, SCRAM_SHA_256)
_HTTP: Final = (b"HTTP/", b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"CONNECT ", b"DELETE ", b"PRI * ")


def _guess(head: bytes, about_tls: str) -> str:
    """Return what the other side seems to speak instead, in brackets; empty where there is no telling."""
    if head.startswith(_HTTP):
        return " (that is HTTP)"
    if head[:1] in (b"\x15", b"\x16") and head[1:2] == b"\x03":
        return f" (that is TLS; {about_tls})"
    if head.startswith(b"AMQP"):
        version = {b"\x00\x00\x09\x01": "0-9-1", b"\x01\x01\x00\x0a": "0-10"}.get(head[4:])
        return f" (that is AMQP {version})" if version else " (another version of AMQP, or of its login)"
    return ""


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r:.100} is not binary")
    return value
