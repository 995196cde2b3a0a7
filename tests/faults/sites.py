"""Two sites, each a server in a process of its own, and a proxy on the way from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdk import Connection, ConnectionFactory, Message
from tests.faults.proxy import Proxy
from tests.faults.scenarios import wait_for
from tests.server_process import ServerProcess

#: Short pauses: every network here is on this machine.
OPTIONS = "idle_timeout_seconds=5&connect_timeout_seconds=5&request_timeout_seconds=60"
RETRY = ("--option", "gateway_retry_seconds=0.05")


class SiteClient:
    """A client of a site, which may be a group of servers.

    Args:
        url: of the site.
    """

    def __init__(self, url: str) -> None:
        self.connection: Connection = ConnectionFactory(url).create_connection()
        self.connection.start()
        self.session = self.connection.create_session()

    def close(self) -> None:
        self.connection.close()

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self.connection.request(operation, arguments)

    def gateway(self, name: str, url: str, *destinations: str, batch_ms: int = 0, **options: Any) -> None:
        """Create and start a gateway."""
        given = {"name": name, "url": url, "destinations": list(destinations), "state": "running"}
        self.ask("create_gateway", **given, batch_ms=batch_ms, **options)

    def gateways(self, name: str) -> dict[str, Any]:
        """What is known of a gateway; its counters agree with each other."""
        (found,) = self.ask("gateways", name=name)
        assert found["received"] == found["queued"] + found["filtered"] + found["not_queued"], found
        ended = ("distributed", "refused", "conflated", "expired", "dropped", "lost", "waiting")
        assert found["queued"] == sum(found[each] for each in ended), found
        return dict(found)

    def send(self, queue: str, bodies: Sequence[str], **options: Any) -> None:
        with self.session.create_producer(self.session.create_queue(queue)) as producer:
            producer.send_all(list(bodies), **options)

    def waiting(self, queue: str) -> list[Message]:
        """What a queue has."""
        return list(self.session.create_browser(self.session.create_queue(queue)))

    def bodies(self, queue: str) -> list[str]:
        return [str(each.body) for each in self.waiting(queue)]

    def drained(self, name: str) -> dict[str, Any]:
        """Wait until nothing waits for a gateway; returns what is known of it."""
        assert wait_for(lambda: self.gateways(name)["waiting"] == 0), self.gateways(name)
        return self.gateways(name)


class Site(SiteClient):
    """A server that is a site, with a client.

    Args:
        number: of the site.
        path: of its store.
        arguments: further ones of ``holdfast serve``.
        log: file that gets what the server logs.
    """

    def __init__(self, number: int, path: Path, *arguments: str, log: Path | None = None) -> None:
        self._log = log
        self.server = ServerProcess(path, "--site", str(number), *RETRY, *arguments, log=log)
        self.server.start()
        super().__init__(f"{self.server.url}?reconnect_delay_seconds=0.01&close_timeout_seconds=2")

    def close(self) -> None:
        super().close()
        self.server.__exit__(None, None, None)

    def restart(self) -> None:
        """SIGKILL, and a new start; the connection is restored."""
        self.server.kill()
        self.server.start()

    def log(self) -> str:
        assert self._log is not None
        return self._log.read_text()


def numbered(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def url_of(proxy: Proxy, options: str = "") -> str:
    return f"{proxy.url}?{OPTIONS}{options and '&'}{options}"
