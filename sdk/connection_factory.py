"""The way in: makes connections to the broker that a URL names."""

from __future__ import annotations

from ack_modes import AcknowledgeMode
from broker_adapter import (
    Credentials,
    EmbeddedURL,
    InvalidClientIDException,
    InvalidDestinationException,
    Refresh,
    checked_name,
    parse_url,
    transport_for,
)
from sdk.checks import check_timeout
from sdk.connection import Connection
from sdk.context import JMSContext, open_context

#: Seconds for which the engine keeps the events of a durable client that is away, where nothing else is said; and the
#: most that can be said.
DURABLE_TIMEOUT = 300.0
MOST_DURABLE_SECONDS = 1e9


class ConnectionFactory:
    """Makes connections.  For any number of threads.

    The forms of URLs and all options are in ``docs/options.md``.
    """

    # A misspelt attribute is an error.
    __slots__ = (
        "__weakref__",
        "_client_id",
        "_is_local",
        "_password",
        "_refresh",
        "_url",
        "_username",
        "_username_in_url",
    )

    def __init__(
        self,
        url: str,
        username: str | None = None,
        password: str | None = None,
        *,
        refresh_credentials: Refresh | None = None,
    ) -> None:
        """A factory for one broker, or for several of which one is connected at a time; nothing is connected yet.

        Args:
            url: ``embedded:PATH``, ``embedded:``, ``amqp://HOST:PORT`` or ``amqps://HOST:PORT``, with
                ``?option=value``; ``failover:(URL,URL,...)?option=value``; or the form of Qpid, with a ``brokerlist``.
            username: for connections that are not given another.
            password: of that user.
            refresh_credentials: called, by whichever thread, when a broker refuses the login or closes the connection
                because a permission is missing: once, before the connection is given up.  It returns a user name and a
                password.

        Raises:
            InvalidURLException: the URL has another form, an unknown option or a wrong value.
        """
        parsed = parse_url(url)
        self._url = url
        self._is_local = isinstance(parsed, EmbeddedURL)
        self._username_in_url = None if isinstance(parsed, EmbeddedURL) else parsed.addresses[0].username
        self._client_id = None if isinstance(parsed, EmbeddedURL) else parsed.client_id
        self._refresh = refresh_credentials
        self._username = username
        self._password = password

    def __repr__(self) -> str:
        return f"<ConnectionFactory for {self._username or 'any user'}>"

    def create_connection(
        self,
        username: str | None = None,
        password: str | None = None,
        client_id: str | None = None,
        *,
        durable_timeout: float | None = DURABLE_TIMEOUT,
        timeout: float | None = None,
    ) -> Connection:
        """Connect; the connection is stopped until its ``start()``.

        Args:
            username: None: the factory's, or the one in the URL.  It is not the client id, which is given by name.  An
                embedded engine has no users: it takes any name and asks for no password, and messages carry the name
                as that of their sender where ``populate_user_id`` asks for it.
            password: of that user.
            client_id: names this client to the broker, and its durable subscriptions, in at most 400 bytes; None: one
                is invented.  The events of regions that are queued for it are dropped by ``close()`` and by the end of
                a ``with`` block, and kept by ``close(keep_alive=True)``.
            durable_timeout: seconds for which a Holdfast engine keeps the events of regions that a client with a
                client id has a durable interest in while it is away, counted while the engine runs; None: for ever.  It
                replaces what the last connection of this client gave.
            timeout: longest wait in seconds, more than 0; None: ``connect_timeout_seconds`` of the URL for each
                attempt.  A new connection tries each address once, and again as the options say.

        Raises:
            ConnectionLostException: no server answers there, or not in AMQP.
            JMSSecurityException: the broker refuses the user.
            InvalidClientIDException: the client id is in use, or cannot be one.
            StoreLockedException: another process owns the embedded store.
            StoreException: the embedded store cannot be used.
            OperationTimedOutException: a server took the connection, or an embedded engine was opened, and did not
                answer in time.
            ValueError: the timeout is no number of seconds above 0, or ``durable_timeout`` none.
        """
        check_timeout(durable_timeout, "None keeps events for ever", name="durable_timeout")
        if durable_timeout is not None and not 0.001 <= durable_timeout <= MOST_DURABLE_SECONDS:
            raise ValueError(f"durable_timeout={durable_timeout!r} is not from 0.001 to {MOST_DURABLE_SECONDS} seconds")
        check_timeout(timeout, "None waits connect_timeout_seconds for each attempt")
        if timeout == 0:
            raise ValueError(f"timeout={timeout!r} leaves no time to connect; None waits connect_timeout_seconds")
        if client_id is None:
            client_id = self._client_id
        if client_id is not None:
            try:
                checked_name(client_id, "client")
            except InvalidDestinationException as error:
                raise InvalidClientIDException(f"no client id: {error.reason}") from None
        if username is None:
            username, password = self._username, self._password if password is None else password
        transport, settings = transport_for(self._url, refresh=self._refresh)
        return Connection(
            transport,
            settings,
            Credentials(username, password, client_id),
            timeout,
            user_id=username if username is not None else self._username_in_url,
            is_local=self._is_local,
            durable_timeout=0 if client_id is None else durable_timeout,
        )

    def create_context(
        self,
        mode: AcknowledgeMode = AcknowledgeMode.AUTO,
        username: str | None = None,
        password: str | None = None,
        client_id: str | None = None,
        *,
        durable_timeout: float | None = DURABLE_TIMEOUT,
        timeout: float | None = None,
    ) -> JMSContext:
        """Connect, for the simplified API; the connection is started with the first consumer.

        Args:
            mode: how the context's deliveries end.
            username, password, client_id, durable_timeout, timeout: see ``create_connection``.

        Raises:
            JMSException: see ``create_connection``.
        """
        return open_context(
            self.create_connection(username, password, client_id, durable_timeout=durable_timeout, timeout=timeout),
            mode,
        )
