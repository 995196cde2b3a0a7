"""Sites whose gateways are driven by hand, for tests: what a sender does, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_adapter.destination import Destination, queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.regions.key_records import Wanted
from broker_adapter.envelope import BodyKind, Envelope, pack, read_head, unpack
from broker_adapter.gateways.sender import columns_of
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.driving import WAIT, connect, drained

Q = queue("q")
URL = "amqp://me:secret@far:5672"


def text_message(body: str, to: Destination = Q, **fields: Any) -> c.NewMessage:
    payload = pack(Envelope(to, BodyKind.TEXT, body, **fields))
    return c.from_head(payload, read_head(payload))


class Site:
    """An engine that is a site.

    Args:
        number: of the site.
        path: of its store; None: in memory.
    """

    def __init__(self, number: int, path: Path | None = None, **settings: Any) -> None:
        self.number = number
        self._path = path
        self._settings = settings
        self.start()

    def start(self) -> None:
        """Start, or start again."""
        settings = EngineSettings(site=self.number, **self._settings)
        self.broker = Broker(settings, None if self._path is None else str(self._path))
        self.client = connect(self.broker, "me")

    def restart(self) -> None:
        self.broker.close()
        self.start()

    def kill(self) -> None:
        """Start again as after the end of the process: with the store as the last commit left it."""
        assert self._path is not None
        path = self._path.with_name(f"{self._path.name}+")
        shutil.copytree(self._path, path)
        self.broker.close()
        self._path = path
        self.start()

    def ask(self, operation: str, **arguments: Any) -> Any:
        return self.broker.request(operation, arguments, WAIT, client=self.client)

    def gateway(self, name: str, *destinations: str, state: str = "running", **options: Any) -> None:
        """Create a gateway."""
        self.ask("create_gateway", name=name, url=URL, destinations=list(destinations), state=state, **options)

    def gateways(self, name: str) -> dict[str, Any]:
        """What is known of a gateway; its counters agree with each other."""
        (found,) = self.ask("gateways", name=name)
        assert found["received"] == found["queued"] + found["filtered"] + found["not_queued"], found
        ended = ("distributed", "refused", "conflated", "expired", "dropped", "lost", "waiting")
        assert found["queued"] == sum(found[each] for each in ended), found
        assert all(found[each] >= 0 for each in (*ended, "filtered", "not_queued")), found
        return dict(found)

    def send(self, to: str | Destination, *bodies: str, **fields: Any) -> None:
        """Send messages, in one command."""
        destination = queue(to) if isinstance(to, str) else to
        self.send_messages(destination, *(text_message(body, destination, **fields) for body in bodies))

    def send_messages(self, to: Destination, *messages: c.NewMessage) -> None:
        assert self.broker.call(c.Enqueue(self.client, to, messages), WAIT) is None

    def commit(self, bodies: Sequence[str], values: Mapping[str, str]) -> None:
        """Send messages to the queue ``q``, and put values into the region ``quotes``, in one transaction."""
        sends = [(Q, text_message(body)) for body in bodies]
        changes = [e.KeyChange(key, Wanted.PUT, text_message(value)) for key, value in values.items()]
        parts = [e.ChangeKeys("quotes", changes)]
        self.broker.call(c.Commit(self.client, None, sends, [], changes=parts if changes else ()), WAIT)

    def change(self, region: str, *changes: tuple[str, str | None]) -> None:
        """Put values for keys of a region, and destroy those without one."""
        made = [
            e.KeyChange(key, Wanted.DESTROY if value is None else Wanted.PUT, text_message(value or ""))
            for key, value in changes
        ]
        self.broker.call(e.ChangeKeys(region, made), WAIT)

    def bodies(self, name: str) -> list[str]:
        """What a queue has."""
        return [str(unpack(each.payload).body) for each in drained(self.broker, self.client, name)]

    def values(self, region: str) -> dict[str, str]:
        """What a region has."""
        found = self.ask("read_keys", region=region)["entries"]
        return {key: str(unpack(payload).body) for key, _, _, _, payload in found if payload is not None}


def read(sender: Site, gateway: str, **arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = sender.ask("read_gateway", name=gateway, **arguments)
    return found


def apply(sender: Site, receiver: Site, found: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Hand over what was read, as a sender does; ``more`` are further arguments."""
    batch = {"site": sender.number, "sender": found["sender"], "after": found["applied"], "joined": found["joined"]}
    answer: dict[str, Any] = receiver.ask("apply_batch", **batch, **columns_of(found["entries"]), **more)
    return answer


def end(sender: Site, gateway: str, found: dict[str, Any], answer: dict[str, Any] | None) -> int:
    """End what was read and handed over, as a sender does; returns how many messages were removed."""
    through, more = found["through"], {}
    if answer is not None:
        more = {"refused": answer["refused"], "applied": answer["applied"]}
        through = through if answer["through"] == found["entries"][-1][0] else answer["through"]
    left_out = {each: found[each] for each in ("sender", "expired", "filtered", "conflated")}
    removed: int = sender.ask("end_gateway_batch", name=gateway, through=through, **left_out, **more)
    return removed


def pump(sender: Site, gateway: str, receiver: Site, **limits: Any) -> int:
    """Send until nothing waits; returns how many batches that took."""
    batches = 0
    while True:
        found = read(sender, gateway, remote_site=receiver.number, **limits)
        if not found["through"]:
            return batches
        answer = apply(sender, receiver, found) if found["entries"] else None
        assert end(sender, gateway, found, answer) > 0
        batches += 1


def in_queue(site: Site, name: str = "q") -> list[str]:
    """What a queue has, in the order in which it came."""
    found = site.ask("read_range", destination=name, first=1, last=1 << 40)
    return [str(unpack(payload).body) for _, _, _, payload, _ in found["messages"]]
