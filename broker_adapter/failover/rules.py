"""Which address is tried when, and when to give up: the rules of reconnecting; no I/O, clock or thread.

Theory of operation
    ``process(event, now)`` answers with what is to be done: try an address at some instant, give up, or nothing.  The
    instants are seconds of any steady clock.

    Addresses are tried in *rounds*, each address once (and again for its ``retries``) in a round.  Within a round the
    next address is tried at once; between rounds there is a pause that grows.  After a loss the address that was lost
    comes first: a server that is still there knows what it had from us.

    ============  =========  =============  =============  =========  =========  ======
    state         connected  failed         lost           announced  abandoned  close
    ============  =========  =============  =============  =========  =========  ======
    CONNECTING    CONNECTED  next, or give  -              -          FAILED     CLOSED
                             up: FAILED
    CONNECTED     -          -              RECONNECTING:  new list   -          CLOSED
                                            first attempt
    RECONNECTING  CONNECTED  next, or give  -              -          FAILED     CLOSED
                             up: FAILED
    FAILED        -          -              -              -          -          -
    CLOSED        -          -              -              -          -          -
    ============  =========  =============  =============  =========  =========  ======

    A refused login asks for fresh credentials once, and ends everything the second time.  A connection that is lost
    again within ``stable_seconds`` counts as a failed attempt: rounds and pauses go on from where they were.

    A redirect is followed at once, a limited number of times in a row.  Where it leads nowhere, the attempt at the
    address that redirected has failed, and the next attempt follows as after any other failure.  An address that held,
    and was not tried since, is tried again first.

    A client id that is in use may be so by our own connection, whose loss the broker has not noticed yet.  So the first
    attempts to reconnect that are refused for it are repeated; past the time in which a broker notices the loss,
    somebody else has the id, and the connection has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import attrs

from broker_adapter.errors import (
    ConnectionLostException,
    InvalidClientIDException,
    InvalidURLException,
    JMSException,
    JMSSecurityException,
    Redirect,
)
from broker_adapter.settings import FailoverSettings
from broker_adapter.urls.url import MAX_ADDRESSES, AmqpURL

#: Redirects that are followed in a row; one more counts as a failed attempt.
MAX_REDIRECTS: Final = 8
#: A client id that is refused for so many idle time-outs of the broker is somebody else's: what a broker announces is
#: half of its own (AMQP 1.0 section 2.4.5), and it may notice the loss a little late.
_IDLE_TIMEOUTS: Final = 2.5
#: The idle time-out of a broker that announces none, and of a client that has none, in seconds.
_USUAL_IDLE_SECONDS: Final = 30.0
#: Where a pause stops growing in any case: 2.0 ** 1024 has no number.
_MOST_DOUBLINGS: Final = 1000


class State(Enum):
    """Where a connection stands."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    CLOSED = "closed"


@attrs.frozen
class Connected:
    """The attempt succeeded, and everything is restored; the broker announced this idle time-out, 0: none."""

    idle_seconds: float = 0.0


@attrs.frozen
class AttemptFailed:
    """The attempt failed, before everything was restored."""

    error: JMSException


@attrs.frozen
class Lost:
    """The connection was lost."""

    error: JMSException


@attrs.frozen
class Announced:
    """The broker says which addresses there are."""

    addresses: Sequence[AmqpURL]
    is_group: bool = False  #: whether they are those of one group of servers


@attrs.frozen
class Abandoned:
    """No further attempt can be made: the time for it is over, or the process has no thread for it."""


@attrs.frozen
class Close:
    """The application closes the connection."""


Event = Connected | AttemptFailed | Lost | Announced | Abandoned | Close


@attrs.frozen
class Try:
    """Try this address at this instant, with fresh credentials where ``fresh_credentials`` is set.

    ``error`` is what happened before, with what is known of its redirect; None for the first attempt of all.
    """

    address: AmqpURL
    at: float
    fresh_credentials: bool = False
    error: JMSException | None = attrs.field(default=None, eq=False)


@attrs.frozen
class GiveUp:
    """The connection has failed, for this reason."""

    error: JMSException


Action = Try | GiveUp | None


class _RedirectFailure(NamedTuple):
    """Why a redirect was not followed, or failed."""

    target: AmqpURL
    told: str  #: in a sentence
    reason: str  #: the part of it that says why


class Reconnect:
    """The rules at work for one connection.  See the module's theory of operation."""

    def __init__(
        self,
        addresses: Sequence[AmqpURL],
        settings: FailoverSettings,
        random: Callable[[], float],
        *,
        may_refresh: bool = False,
    ) -> None:
        """A connection that is not made yet; ``start()`` says what comes first.

        Args:
            addresses: at least one.
            settings: how to go about it.
            random: a number from 0 to below 1 at each call.
            may_refresh: whether fresh credentials can be had.
        """
        self.state = State.CONNECTING
        self.method = settings.failover or ("singlebroker" if len(addresses) == 1 else "roundrobin")
        self._settings = settings
        self._random = random
        self._may_refresh = may_refresh
        self._own = list(addresses)
        self._addresses = self._shuffled(self._own)
        self._index = 0  #: of the address that is tried, or connected
        self._redirected: AmqpURL | None = None  #: tried, or connected, in place of that
        self._redirects = 0  #: that were followed in a row
        self._followed = 0  #: in all, since the connection was last known to be stable
        self._is_tried = False  #: whether the address at the index was tried since then
        self._failure: _RedirectFailure | None = None
        self._refreshed = False
        self._tried_here = 0  #: attempts at this address in this round
        self._tried_in_round = 0  #: addresses of this round
        self._rounds = 0
        self._attempts = 0
        self._connected_at = 0.0
        self._idle_seconds = 0.0  #: that the broker has announced
        self._refused: dict[AmqpURL, float] = {}  #: where, and since when, the client id is refused

    def __repr__(self) -> str:
        return f"<Reconnect {self.method}, {self.state.name}, {self._attempts} attempts, at {self.address}>"

    @property
    def address(self) -> AmqpURL:
        """The one that is tried, or connected."""
        return self._redirected or self._addresses[self._index]

    @property
    def addresses(self) -> tuple[AmqpURL, ...]:
        """Those that are tried in turn."""
        return tuple(self._addresses)

    @property
    def attempts(self) -> int:
        """Attempts since the connection was last known to be stable."""
        return self._attempts

    @property
    def redirect_failure(self) -> str | None:
        """Why the last redirect was not followed, or failed; None where there was none, or it held."""
        return None if self._failure is None else self._failure.told

    def start(self, now: float) -> Try:
        """The first attempt."""
        return self._try(now)

    def process(self, event: Event, now: float) -> Action:
        """Process an event at an instant; return what is to be done."""
        handler = self._TABLE.get((self.state, type(event)))
        return None if handler is None else handler(self, event, now)

    def _connected(self, event: Connected, now: float) -> Action:
        self.state = State.CONNECTED
        self._connected_at = now
        self._idle_seconds = event.idle_seconds
        self._refused.clear()
        return None

    def _failed(self, event: AttemptFailed, now: float) -> Action:
        return self._after(event.error, now)

    def _lost(self, event: Lost, now: float) -> Action:
        if self.method == "nofailover":
            self.state = State.FAILED
            return GiveUp(event.error)
        self.state = State.RECONNECTING
        if now - self._connected_at < self._settings.stable_seconds:
            return self._after(event.error, now)
        self._attempts = self._rounds = self._tried_here = self._tried_in_round = self._redirects = self._followed = 0
        self._refreshed = self._is_tried = False
        if self._redirected is not None:
            self._failure = None
        if _redirect(event.error) is not None:
            return self._after(event.error, now)
        self._redirected = None
        if isinstance(event.error, JMSSecurityException):
            return self._after(event.error, now)
        if self._settings.max_reconnect_attempts == 0:
            return self._give_up(event.error, self.address)
        return self._try(now + self._settings.initial_reconnect_delay_seconds, event.error)

    def _announced(self, event: Announced, now: float) -> Action:
        """The list follows the broker, or gets the nodes of its group; the address in use stays the first one."""
        adds = event.is_group and self.method != "nofailover"
        if not event.addresses or not (adds or self.method == "failover_exchange"):
            return None
        current = self.address
        announced = [self._as_named(each) for each in event.addresses]
        known = [*self._own, *announced] if adds or self._settings.failover_server_list == "add" else announced
        others = [each for each in known if (each.host, each.port) != (current.host, current.port)]
        unique = list({(each.host, each.port): each for each in others}.values())
        self._addresses = [current, *self._shuffled(unique)[: MAX_ADDRESSES - 1]]
        self._index = 0
        self._redirected = None
        self._is_tried = True
        return None

    def _abandoned(self, event: Abandoned, now: float) -> Action:
        self.state = State.FAILED
        return None

    def _close(self, event: Close, now: float) -> Action:
        self.state = State.CLOSED
        return None

    # After something failed.

    def _after(self, error: JMSException, now: float) -> Action:
        redirect = _redirect(error)
        if redirect is not None:
            target = self._target(redirect)
            reason = self._why_not_followed(target)
            if reason is None:
                told = self._with_failure_before(error, target)
                self._redirects += 1
                self._followed += 1
                self._redirected = target
                return self._try(now, told)
            self._failure = _RedirectFailure(target, f"the redirect to {target} is not followed: {reason}", reason)
            error = _with_more(error, self._failure.told)
        if isinstance(error, JMSSecurityException):
            # Repeated logins with the same refused password could lock the account.
            if self._refreshed or not self._may_refresh:
                return self._give_up(error, self.address)
            self._refreshed = True
            return self._try(now, error, fresh_credentials=True)
        if isinstance(error, InvalidURLException):
            return self._give_up(error, self.address)
        if not isinstance(error, InvalidClientIDException):
            self._refused.pop(self.address, None)  # the broker may have got a connection of ours that is lost since
            return self._next(error, now)
        if len(self._refused) >= MAX_ADDRESSES:
            self._refused.clear()  # redirects lead to ever other ones
        own = self.address.amqp.idle_timeout_seconds
        until = self._refused.setdefault(self.address, now) + _IDLE_TIMEOUTS * (
            self._idle_seconds or own or _USUAL_IDLE_SECONDS
        )
        if self.state is State.CONNECTING or now >= until:
            return self._give_up(error, self.address)
        following = self._next(error, now)
        return attrs.evolve(following, at=min(following.at, until)) if isinstance(following, Try) else following

    def _target(self, redirect: Redirect) -> AmqpURL:
        """Return where a redirect leads."""
        here = self.address
        tls = here.tls if redirect.scheme is None else redirect.scheme in ("amqps", "ssl", "tls")
        vhost = redirect.hostname or here.amqp.vhost
        return self._as_named(
            attrs.evolve(
                here,
                host=redirect.network_host,
                port=redirect.port,
                tls=tls,
                amqp=attrs.evolve(here.amqp, vhost=vhost),
            )
        )

    def _why_not_followed(self, target: AmqpURL) -> str | None:
        """Why a redirect may not be followed; None where it may."""
        if self.address.tls and not target.tls and not self._settings.allow_insecure_redirects:
            return "it leads from TLS to an address without TLS; set allow_insecure_redirects=true to allow that"
        if self._redirects >= MAX_REDIRECTS:
            return f"{MAX_REDIRECTS} redirects in a row are the limit"
        return None

    def _with_failure_before(self, error: JMSException, target: AmqpURL) -> JMSException:
        """The error of a redirect, with what became of the last one where that led to the same address."""
        failure = self._failure
        if failure is None or failure.target != target:
            return error
        return _with_more(error, f"the last redirect to {target} failed: {failure.reason}")

    def _as_named(self, address: AmqpURL) -> AmqpURL:
        """An address that a broker has announced; one that the URL names has the user and the options of the URL."""
        return next((each for each in self._own if (each.host, each.port) == (address.host, address.port)), address)

    def _next(self, error: JMSException, now: float) -> Action:
        """Another attempt, here or at the next address, at once or after a pause; or the end."""
        failed, was_redirected = self.address, self._redirected is not None
        limit = self._limit()
        if limit is not None and self._attempts >= limit:
            return self._give_up(error, failed)
        told = error
        if was_redirected and _redirect(error) is None:
            text = f"the redirect to {failed} failed: {error.reason}"
            self._failure = _RedirectFailure(failed, text, error.reason)
            told = ConnectionLostException(text, error_code=error.error_code)
            told.__cause__ = error
        self._redirected = None
        self._redirects = 0
        if was_redirected and not self._is_tried:
            return self._try(now + self._settings.initial_reconnect_delay_seconds, told)
        single = len(self._addresses) == 1 and self.method in ("singlebroker", "nofailover")
        here = self._addresses[self._index]
        self._tried_here += 1
        retries = 0 if single else here.amqp.retries or 0
        if self._tried_here <= retries:
            return self._try(now + here.amqp.connect_delay_seconds, told)
        self._tried_here = 0
        self._tried_in_round += 1
        self._index = (self._index + 1) % len(self._addresses)
        if self._tried_in_round < len(self._addresses):
            return self._try(now, told)
        self._tried_in_round = 0
        self._rounds += 1
        rounds = here.amqp.retries if single else self._settings.cycle_count
        if rounds is not None and self._rounds >= rounds + single and self.state is State.RECONNECTING:
            return self._give_up(error, failed)
        pause = self._pause(self._rounds)
        return self._try(now + (max(pause, here.amqp.connect_delay_seconds) if single else pause), told)

    def _limit(self) -> int | None:
        """Most attempts in all."""
        settings = self._settings
        if self.state is not State.CONNECTING:
            return settings.max_reconnect_attempts
        if settings.startup_max_reconnect_attempts is None:
            return None
        once = sum(1 + (each.amqp.retries or 0) for each in self._addresses)
        return once + settings.startup_max_reconnect_attempts + self._followed

    def _pause(self, rounds: int) -> float:
        settings = self._settings
        try:
            grown = settings.reconnect_delay_seconds * settings.reconnect_multiplier ** min(rounds - 1, _MOST_DOUBLINGS)
        except OverflowError:
            grown = settings.max_reconnect_delay_seconds
        pause = min(grown, settings.max_reconnect_delay_seconds)
        return pause * (1 - settings.reconnect_jitter * self._random())

    def _try(self, at: float, error: JMSException | None = None, *, fresh_credentials: bool = False) -> Try:
        self._attempts += 1
        self._is_tried = self._is_tried or self._redirected is None
        return Try(self.address, at, fresh_credentials, error)

    def _give_up(self, error: JMSException, address: AmqpURL) -> GiveUp:
        """The end, after this error at this address."""
        first_of_one = self.state is State.CONNECTING and self._attempts == 1
        self.state = State.FAILED
        says_enough = isinstance(error, JMSSecurityException | InvalidURLException | InvalidClientIDException)
        if says_enough or first_of_one or not self._attempts:
            return GiveUp(error)
        final = ConnectionLostException(
            f"no connection after {self._attempts} attempts; the last one, at {address}: {error.reason}",
            error_code=error.error_code,
        )
        final.__cause__ = error
        return GiveUp(final)

    def _shuffled(self, addresses: Sequence[AmqpURL]) -> list[AmqpURL]:
        if not self._settings.randomize:
            return list(addresses)
        return sorted(addresses, key=lambda _: self._random())

    _TABLE: Final[dict[tuple[State, type], Callable[..., Action]]] = {
        (State.CONNECTING, Connected): _connected,
        (State.CONNECTING, AttemptFailed): _failed,
        (State.CONNECTING, Abandoned): _abandoned,
        (State.CONNECTING, Close): _close,
        (State.CONNECTED, Lost): _lost,
        (State.CONNECTED, Announced): _announced,
        (State.CONNECTED, Close): _close,
        (State.RECONNECTING, Connected): _connected,
        (State.RECONNECTING, AttemptFailed): _failed,
        (State.RECONNECTING, Abandoned): _abandoned,
        (State.RECONNECTING, Close): _close,
    }


def _redirect(error: JMSException) -> Redirect | None:
    return error.redirect if isinstance(error, ConnectionLostException) else None


def _with_more(error: JMSException, more: str) -> ConnectionLostException:
    """The same redirect, with more in its reason."""
    longer = ConnectionLostException(f"{error.reason}; {more}", error_code=error.error_code, redirect=_redirect(error))
    longer.__cause__ = error
    return longer
