"""The record of a group in etcd, from version 3.4 on, by its JSON gateway (``/v3/``).

The value is that of one key; its token is the key's ``mod_revision``.  A read is linearizable, which is etcd's default,
and is tried at each endpoint in turn.  A swap is sent once: to another endpoint only where no connection was made, for
otherwise it may have been carried out.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from broker_adapter.errors import (
    ConnectionLostException,
    JMSException,
    JMSSecurityException,
    OperationTimedOutException,
    ProtocolException,
)
from broker_adapter.group.coordinators import Found, Token

#: Longest answer; a record has 4 KiB.
_MAX_ANSWER: Final = 64 * 1024
_NEVER_SENT: Final = (NewConnectionError, ConnectTimeoutError)
#: Status of an answer to a token that is not valid any more; and what etcd says where rights have changed meanwhile.
_UNAUTHENTICATED: Final = 401
_OLD_TOKEN: Final = "revision of auth store is old"
_PORT: Final = 2379


class Access(NamedTuple):
    """Where etcd is, and how to log in there."""

    endpoints: Sequence[str]  #: ``http://HOST:PORT`` or ``https://...``
    user: str = ""
    password: str = ""
    ca_file: str | None = None
    cert_file: str | None = None  #: of this client
    key_file: str | None = None

    def __repr__(self) -> str:
        return f"Access({', '.join(self.endpoints)}{' as ' + self.user if self.user else ''})"


def access_of(url: str) -> Access:
    """Return what ``etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]`` says; ``etcds`` is with TLS.

    With TLS there may follow ``?ca_file=``, ``cert_file=`` and ``key_file=``.

    Raises:
        ValueError: it is no such URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("etcd", "etcds") or parts.path.strip("/") or parts.fragment:
        raise ValueError("the URL of an etcd is etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], with TLS etcds://")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    scheme = "https" if parts.scheme == "etcds" else "http"
    endpoints = []
    for host in hosts.split(","):
        try:
            one = urlsplit(f"//{host}")
            name, port = one.hostname, one.port
        except ValueError:
            name = None
        if not name:
            raise ValueError(f"the URL of the etcd has no host and port in {host!r:.100}")
        endpoints.append(f"{scheme}://{f'[{name}]' if ':' in name else name}:{port or _PORT}")
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    wrong = sorted(files.keys() - {"ca_file", "cert_file", "key_file"}) or (sorted(files) if scheme == "http" else [])
    if wrong:
        raise ValueError(f"the URL of the etcd has the option {wrong[0]!r:.100}, which is none, or none without TLS")
    return Access(endpoints, unquote(user), unquote(password), **files)


class EtcdCoordinator:
    """A value in etcd.  One thread at a time may call it.

    Args:
        access: where it is.
        key: of the value.
        timeout_seconds: for how long a call may block.
    """

    def __init__(self, access: Access, key: str, timeout_seconds: float) -> None:
        self._access = access
        self._key = b64encode(key.encode()).decode()
        self._timeout = timeout_seconds
        self._login = ""  # the token of etcd
        self._place = 0  # of the endpoint that answered last
        self._http = urllib3.PoolManager(
            num_pools=len(access.endpoints),
            retries=False,
            cert_reqs="CERT_REQUIRED",
            ca_certs=access.ca_file,
            cert_file=access.cert_file,
            key_file=access.key_file,
        )

    def __repr__(self) -> str:
        return f"<EtcdCoordinator {self._access!r}>"

    def read(self) -> Found:
        """As the port."""
        answer = self._call("/v3/kv/range", {"key": self._key}, repeats=True)
        try:
            entries = answer.get("kvs", [])
            if not entries:
                return Found(0, b"")
            return Found(_number(entries[0]["mod_revision"]), b64decode(entries[0].get("value", ""), validate=True))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ProtocolException(f"etcd has given an answer that is none: {answer!r:.200}") from error

    def swap(self, token: Token, data: bytes) -> Token | None:
        """As the port."""
        compare = {"key": self._key, "target": "MOD", "result": "EQUAL", "mod_revision": str(token)}
        put = {"key": self._key, "value": b64encode(data).decode()}
        answer = self._call("/v3/kv/txn", {"compare": [compare], "success": [{"request_put": put}]})
        try:
            return _number(answer["header"]["revision"]) if answer.get("succeeded", False) is True else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolException(f"etcd has given an answer that is none: {answer!r:.200}") from error

    def close(self) -> None:
        """End its connections."""
        self._http.clear()

    def _call(self, path: str, body: Mapping[str, Any], repeats: bool = False) -> Any:
        """Return the answer to a request.

        Args:
            path: of the request.
            body: of the request.
            repeats: it may be carried out twice.
        """
        deadline = monotonic() + self._timeout
        if self._access.user and not self._login:
            self._log_in(deadline)
        try:
            return self._answer(path, body, deadline, repeats)
        except _OldLogin:  # etcd has done nothing
            self._log_in(deadline)
            return self._answer(path, body, deadline, repeats)

    def _log_in(self, deadline: float) -> None:
        login = {"name": self._access.user, "password": self._access.password}
        self._login = ""
        answer = self._answer("/v3/auth/authenticate", login, deadline, True)
        token = answer.get("token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ProtocolException("etcd has answered a login without a token")
        self._login = token

    def _answer(self, path: str, body: Mapping[str, Any], deadline: float, repeats: bool) -> Any:
        """Return what the first endpoint answers that does."""
        endpoints = self._access.endpoints
        for left in range(len(endpoints), 0, -1):
            endpoint = endpoints[self._place]
            # Each gets its share of the time; what is sent once gets all for its answer.
            share = max(0.001, (deadline - monotonic()) / left)
            times = urllib3.Timeout(connect=share, read=share if repeats else max(0.001, deadline - monotonic()))
            try:
                return self._ask(endpoint, path, body, times)
            except JMSSecurityException:
                raise
            except JMSException as error:
                self._place = (self._place + 1) % len(endpoints)
                if left == 1 or not (repeats or isinstance(error.__cause__, _NEVER_SENT)):
                    raise
        raise AssertionError("there is an endpoint")

    def _ask(self, endpoint: str, path: str, body: Mapping[str, Any], times: urllib3.Timeout) -> Any:
        headers = {"Content-Type": "application/json", **({"Authorization": self._login} if self._login else {})}
        try:
            response = self._http.request(
                *("POST", endpoint + path, json.dumps(body).encode()),
                headers=headers,
                timeout=times,
                redirect=False,
                preload_content=False,
            )
            try:
                data = response.read(_MAX_ANSWER + 1)
                if len(data) > _MAX_ANSWER:
                    response.close()
            finally:
                response.release_conn()
        except (HTTPError, OSError, ValueError) as error:
            if isinstance(error, ReadTimeoutError | ConnectTimeoutError) and not isinstance(error, NewConnectionError):
                raise OperationTimedOutException(f"etcd at {endpoint} has not answered in time") from error
            raise ConnectionLostException(f"etcd at {endpoint} cannot be reached: {error}") from error
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if response.status == 200 and isinstance(answer, dict):
            return answer
        self._fail(endpoint, response.status, answer)

    def _fail(self, endpoint: str, status: int, answer: Any) -> NoReturn:
        """Raise what an answer means that is no success."""
        reason = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(reason, str):
            raise ProtocolException(f"what answers at {endpoint} is no etcd: status {status}, and no JSON of an etcd")
        if self._login and (status == _UNAUTHENTICATED or _OLD_TOKEN in reason):
            raise _OldLogin(reason)
        if status in (_UNAUTHENTICATED, 403) or "auth" in reason or "user name is empty" in reason:
            raise JMSSecurityException(f"etcd at {endpoint} refuses the login or the key: {reason:.200}")
        if status >= 500:
            raise ConnectionLostException(f"etcd at {endpoint} cannot answer: {reason:.200}")
        raise ProtocolException(f"etcd at {endpoint} refuses the request: {reason:.200}")


class _OldLogin(JMSSecurityException):
    """The token of the login is not valid any more."""


def _number(value: Any) -> int:
    """Return a number of etcd, which its gateway writes as text."""
    number = int(value)
    if number <= 0:
        raise ValueError(value)
    return number
