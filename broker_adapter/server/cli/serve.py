"""The command ``holdfast serve``: a store as an AMQP 1.0 server, until a signal ends it.

SIGHUP has it read its users, its certificates and the settings of its queues again.  It logs to the standard error
stream, and so has no log file to open again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from typing import Protocol

from broker_adapter.amqp.sasl import ServerLogin
from broker_adapter.config_file import read_policies
from broker_adapter.connect import transport_to_site
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.queues.policies import Policies
from broker_adapter.engine.store.files import DATA
from broker_adapter.engine.store.maintenance import check_store
from broker_adapter.errors import JMSException, StoreCorruptException
from broker_adapter.gateways.senders import Senders
from broker_adapter.server.access.certificates import Certificates
from broker_adapter.server.access.origins import is_loopback
from broker_adapter.server.access.users import UsersFile
from broker_adapter.server.announcements import servers_from
from broker_adapter.server.cli.on_demand import command
from broker_adapter.server.cli.store_commands import progress
from broker_adapter.server.cli.terminal import drop_output
from broker_adapter.server.cli.tools import listed, settings_of
from broker_adapter.server.kept_memory import keep_freed_memory
from broker_adapter.server.listener import Listener, ServedEngine
from broker_adapter.server.listening import check_address
from broker_adapter.server.open_files import raise_soft_limit
from broker_adapter.settings import EngineSettings
from broker_adapter.urls.url import masked

_log = logging.getLogger(f"holdfast.{__name__}")

#: Longest time that Python lets one thread run while another waits.  The default, 5 ms, makes the server's two threads
#: wait for each other longer than a message takes.
_SWITCH_SECONDS = 0.0005
#: The thresholds of Python's garbage collector, which stops all threads while it works.  No message leaves a reference
#: cycle behind, and no ended connection, so that it finds next to nothing; with the default, 700, 10 and 10, and 10,000
#: queues it stopped the server for 100 ms and longer to find that out.
_COLLECTOR = (10_000, 10, 50)
#: What ends a server, and SIGHUP, at which it reads its files again.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: How often a server checks whether a signal came.
_LOOK_SECONDS = 1.0
#: The signals that came; None: the engine has ended.
Told = queue.SimpleQueue[int | None]


def serve(options: argparse.Namespace) -> int:
    """Serve a store until a signal comes, or the engine fails; with ``--follow`` keep a copy of another server's."""
    if options.group is None and (options.new_group or options.force):
        raise ValueError("--new-group and --force need --group")
    if options.group is not None and options.follow is not None:
        raise ValueError("a node of a group (--group) follows its primary by itself: leave out --follow")
    if options.follow is not None:
        return int(command("copy_commands", "follow")(options))
    host, port = _address(options.listen)
    site = [] if options.site is None else [f"site={options.site}"]
    engine_settings, server_settings = settings_of([*options.option, *site])
    policies = Policies(engine_settings, read_policies(options.config) if options.config else ())
    servers = servers_from(listed(options.failover_servers))
    users = UsersFile(options.users) if options.users else None
    certificates = _certificates(options)
    if not is_loopback(host) and not options.insecure and (users is None or certificates is None):
        missing = " and ".join(
            name
            for name, value in (("users (--users)", users), ("TLS (--tls-certificate)", certificates))
            if value is None
        )
        raise ValueError(
            f"refusing to listen on {host}, which others can reach, without {missing}; give them, or say --insecure"
        )
    sys.setswitchinterval(_SWITCH_SECONDS)
    if options.check and os.path.exists(os.path.join(options.data, DATA)):
        report = check_store(options.data, engine_settings, progress=progress())
        if not report.is_sound:
            raise StoreCorruptException(
                f"the store in {options.data!r} is damaged: {len(report.damages)} pages and"
                f" {sum(report.summary.problems.values())} records; run: holdfast check {options.data} --repair"
            )
    check_address(host, port)  # ahead of the store, which is made where there is none
    before, after = raise_soft_limit()
    if after > before:
        _log.info("= this process may have %d files open now, instead of %d", after, before)
    told: Told = queue.SimpleQueue()  # its put() may be interrupted by another signal's
    if options.group is None:
        served: Served = _Single(Broker(engine_settings, options.data, policies))
    else:
        served = command("group_node", "node")(options, engine_settings, policies, told)
    plain = certificates is not None or is_loopback(host)
    listener = Listener(
        *(served.engine, host, port, server_settings, lambda: ServerLogin(users, plain=plain)),
        certificates.context if certificates is not None else None,
        servers=servers,
    )

    def look(*, reloads: bool) -> None:
        if users is not None and reloads:
            users.reload()
        if options.config and reloads:
            _reload_policies(options.config, engine_settings, served.engine.use_policies)
        if certificates is not None:
            if reloads:
                certificates.reload()
            certificates.check(time.monotonic())
            listener.tls = certificates.context

    _collect_rarely()
    keep_freed_memory()
    try:
        tell_signals(told)
        _, bound = listener.start()
        served.engine.on_failure(lambda _error: told.put(None))  # behind the listener, which tells its clients first
        served.start(listener)
        scheme = "amqps" if certificates is not None else "amqp"
        say_line(f"holdfast ready on {scheme}://{host}:{bound} with the store in {options.data}")
        if served.failed is None:  # else it failed ahead of the line above
            wait_for_end(told, look)
        if served.failed is not None:
            raise served.failed
        say_line("holdfast stopping")
    finally:
        served.stop()
        listener.stop()
        served.close()
        ignore_signals()
    return 0


class EngineOfServer(ServedEngine, Protocol):
    """The engine that a server has."""

    def use_policies(self, policies: Policies) -> None:
        """Have other settings for the queues."""


class Served(Protocol):
    """An engine with what belongs to it at a server."""

    @property
    def engine(self) -> EngineOfServer:
        """The engine."""

    @property
    def failed(self) -> JMSException | None:
        """Why it has stopped."""

    def start(self, listener: Listener) -> None:
        """Begin to work, once clients are listened to."""

    def stop(self) -> None:
        """Stop what needs the clients' connections still."""

    def close(self) -> None:
        """Stop the engine, and close the store."""


class _Single:
    """The engine of a server that is of no group, with its gateways."""

    def __init__(self, broker: Broker) -> None:
        self.engine = broker
        self._senders = Senders(broker, transport_to_site)

    @property
    def failed(self) -> JMSException | None:
        return self.engine.failed

    def start(self, listener: Listener) -> None:
        self._senders.start()

    def stop(self) -> None:
        self._senders.stop()

    def close(self) -> None:
        self.engine.close()


def tell_signals(told: Told) -> None:
    """Have signals told from now on."""
    for number in _SIGNALS:
        signal.signal(number, lambda number, _frame: told.put(number))


def ignore_signals() -> None:
    """Ignore signals from now on: as Python ends, it gives each handler of ours the default again."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _collect_rarely() -> None:
    """Leave what exists, with the state of the store, out of garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)


def wait_for_end(told: Told, look: Callable[..., None]) -> None:
    """Wait for a signal that ends the server, or for the end of the engine.

    The wait is interrupted now and then: a signal that comes just as Python begins to wait does not end it.

    Args:
        told: the signals that came; None: the engine has ended.
        look: called now and then, and with ``reloads`` true at a SIGHUP.
    """
    while True:
        look(reloads=False)
        with contextlib.suppress(queue.Empty):
            if told.get(timeout=_LOOK_SECONDS) != signal.SIGHUP:
                return
            _log.info("= SIGHUP: reading the users, the certificates and the settings of queues again")
            look(reloads=True)


def _reload_policies(path: str, settings: EngineSettings, use: Callable[[Policies], None]) -> None:
    """Read the settings of queues again.  A file that cannot be read or understood changes nothing, and is logged."""
    try:
        policies = read_policies(path)
    except ValueError as error:
        _log.error("! the settings of queues stay as they were: %s", error)
        return
    use(Policies(settings, policies))
    _log.info("= configuration %s was read again: %s", path, f"{len(policies)} [[policy]]")


def say_line(text: str) -> None:
    """Print a line; the server does not depend on whether it is read."""
    try:
        print(text, flush=True)
    except OSError:
        drop_output()


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or "@" in host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {masked(text)!r} is not of the form HOST:PORT, with a port from 0 to 65535")
    return host.strip("[]"), int(port)


def _certificates(options: argparse.Namespace) -> Certificates | None:
    if options.tls_certificate is None:
        if options.tls_key is not None:
            raise ValueError("--tls-key needs --tls-certificate: without a certificate there is no TLS")
        if options.tls_client_ca is not None:
            raise ValueError("--tls-client-ca needs --tls-certificate: without TLS no client shows a certificate")
        return None
    return Certificates(options.tls_certificate, options.tls_key, options.tls_client_ca)
