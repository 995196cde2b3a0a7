"""Entries that are staged, moved and removed as runs end as they do one by one, on disk and in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_adapter.destination import queue
from broker_adapter.engine.broker import Broker
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle import background, command_inputs
from broker_adapter.engine.queues.entries import QueueEntries
from broker_adapter.envelope import ENVELOPE_FORMAT, Envelope, pack, unpack
from broker_adapter.errors import ResourceAllocationException
from broker_adapter.settings import EngineSettings
from tests.broker_adapter.engine.asking import ask
from tests.broker_adapter.engine.driving import (
    WAIT,
    Engines,
    attach,
    come_to_rest,
    connect,
    depth,
    drained,
    payloads,
    send,
    settle,
)

FAR_MS = 1 << 47
#: (priority, whether it expires some time, group) of each message; in a list for each transaction.
MESSAGES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([4, 4, 4, 0, 9]), st.booleans(), st.sampled_from([None, None, "a", "b"])), max_size=25
    ),
    min_size=1,
    max_size=4,
)
SETTINGS = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def payload(body: str, priority: int = 4, expires: bool = False, group: str | None = None) -> bytes:
    envelope = Envelope(queue("target"), body=body, priority=priority, group_id=group)
    return pack(envelope._replace(expires_at_ms=FAR_MS if expires else None))


def bodies(broker: Broker) -> list[str]:
    client = connect(broker)
    found = [unpack(each).body for each in payloads(drained(broker, client, "target"))]
    broker.call(c.Disconnect(client, failed=False), WAIT)
    return found


def stage(broker: Broker, name: str, messages: Sequence[tuple[int, bool, str | None]]) -> list[tuple[int, str]]:
    """Stage messages in two parts; returns the lane and the body of each."""
    found = [(9 - each[0], f"{name}-{index}") for index, each in enumerate(messages)]
    sent = [payload(body, *each) for (_, body), each in zip(found, messages, strict=True)]
    half = len(sent) // 2
    for first, part in ((0, sent[:half]), (half, sent[half:])):
        ask(broker, "stage", transaction=name, queue="target", first=first, messages=part)
    return found


@SETTINGS
@given(MESSAGES, st.integers(10, 14), st.integers(1, 40), st.sampled_from(["none", "waits", "searches"]), st.data())
def test_what_is_published_comes_in_order_and_once_however_it_was_moved(
    transactions: list[list[tuple[int, bool, str | None]]], window: int, chunk: int, consumer: str, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr(background, "CHUNK_ENTRIES", chunk)
        patch.setattr(command_inputs, "MOVED_AT_ONCE", data.draw(st.sampled_from([0, 20, 1000]), "moved at once"))
        engines, limits = Engines(Path(name)), {"window_messages": window, "expiry_queue": "expired"}
        broker = engines.start(**limits)
        client = connect(broker)
        fields = {"selector": "JMSPriority >= 0"} if consumer == "searches" else {}
        _, inbox = attach(broker, client, "target", 30 if consumer != "none" else 0, **fields)
        for earlier in range(data.draw(st.integers(0, 3), "messages that are there")):
            send(broker, client, "target", payload(f"before-{earlier}"))
        expected = [(5, f"before-{earlier}") for earlier in range(depth(broker, "target"))]
        names = [f"g/1/{index}" for index in range(len(transactions))]
        for each, messages in zip(names, transactions, strict=True):
            expected += stage(broker, each, messages)
        if data.draw(st.booleans(), "whether the engine starts again"):
            broker.call(c.Disconnect(client, failed=False), WAIT)
            broker = engines.start(**limits)
            inbox.handouts.clear()
            client = connect(broker)
        assert ask(broker, "publish", group="g", number=1, transactions=names) is True
        come_to_rest(broker)
        assert broker.check() == []
        broker.call(c.Disconnect(client, failed=False), WAIT)
        assert bodies(broker) == [body for _, body in sorted(expected, key=lambda each: each[0])]
        come_to_rest(broker)
        some = data.draw(st.integers(0, len(expected)), "how many are settled")
        ask(broker, "settle_through", destination="target", kind="queue", position=some)
        assert depth(broker, "target") == len(expected) - some
        assert broker.check() == []
        broker = engines.start(**limits)
        assert broker.check() == []
        kept = [body for _, body in sorted(expected[some:], key=lambda each: each[0])]
        assert bodies(broker) == kept
        broker.close()


def test_a_published_batch_is_moved_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, int]] = []
    split = QueueEntries.split_run

    def count(self: QueueEntries, raws: Sequence[c.RawEntry], effects: object) -> object:
        run, others = split(self, raws, effects)  # type: ignore[arg-type]
        found.append((len(run), len(others)))
        return run, others

    monkeypatch.setattr(QueueEntries, "split_run", count)
    broker = Broker(EngineSettings(), str(tmp_path))
    try:
        stage(broker, "g/1/t", [(4, False, None)] * 3000)
        ask(broker, "publish", group="g", number=1, transactions=["g/1/t"])
        assert found == [(3000, 0)]
        assert depth(broker, "target") == 3000
    finally:
        broker.close()


def test_what_a_consumer_holds_stays_where_the_rest_of_its_range_is_settled(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path))
    try:
        stage(broker, "g/1/t", [(4, False, None)] * 50)
        ask(broker, "publish", group="g", number=1, transactions=["g/1/t"])
        client = connect(broker)
        consumer, inbox = attach(broker, client, "target", 3)
        inbox.wait_for(3)
        ask(broker, "purge", destination="target", kind="queue")
        assert depth(broker, "target") == 3
        assert broker.check() == []
        settle(broker, consumer, inbox.handouts)
        assert depth(broker, "target") == 0
    finally:
        broker.close()


def test_a_consumer_that_waits_gets_also_what_came_behind_the_window_in_the_same_cycle(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(window_messages=10), str(tmp_path))
    try:
        _, inbox = attach(broker, connect(broker), "target", 30)
        sent = stage(broker, "g/1/t", [(4, False, None)] * 40)
        ask(broker, "publish", group="g", number=1, transactions=["g/1/t"])
        come_to_rest(broker)
        assert [unpack(each.payload).body for each in inbox.handouts] == [body for _, body in sent[:30]]
        assert broker.check() == []
    finally:
        broker.close()


def test_few_messages_are_published_in_one_commit_and_none_overtakes_an_earlier_publication(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    try:
        stage(broker, "g/1/t", [(4, False, None)] * 3000)
        stage(broker, "h/2/t", [(4, False, None)] * 3)
        replies: list[object] = []
        # In one cycle: the first one is still on its way when the second is decided.
        broker.submit_all(
            (
                c.Publish("g", 1, ["g/1/t"], reply=replies.append),
                c.Publish("h", 2, ["h/2/t"], reply=replies.append),
            )
        )
        come_to_rest(broker)
        assert replies == [True, True]
        assert [body.split("-")[0] for body in bodies(broker)] == ["g/1/t"] * 3000 + ["h/2/t"] * 3
        stage(broker, "g/3/t", [(4, False, None)] * 3)
        come_to_rest(broker)
        before = broker._state.totals.commits
        ask(broker, "publish", group="g", number=3, transactions=["g/3/t"])
        assert broker._state.totals.commits == before + 1
        assert broker.check() == []
    finally:
        broker.close()


def test_what_was_staged_behind_what_the_publication_has_read_is_published_as_well(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(), str(tmp_path))
    try:
        stage(broker, "g/1/t", [(4, False, None)] * 3)
        replies: list[object] = []
        more = [c.NewMessage(ENVELOPE_FORMAT, payload("more"))]
        broker.submit_all(
            (
                c.Stage("g/1/t", queue("target"), 3, more, replies.append),
                c.Publish("g", 1, ["g/1/t"], reply=replies.append),
            )
        )
        come_to_rest(broker)
        assert replies == [True, True]
        assert bodies(broker) == ["g/1/t-0", "g/1/t-1", "g/1/t-2", "more"]
        assert broker.check() == []
    finally:
        broker.close()


def staged(broker: Broker, first: int, *texts: str) -> None:
    messages = [pack(Envelope(queue("q"), body=text)) for text in texts]
    ask(broker, "stage", transaction="g/1/t", queue="q", first=first, messages=messages)


def test_what_changes_after_a_publication_was_refused_is_published_as_it_is_then(tmp_path: Path) -> None:
    broker = Broker(EngineSettings(max_queue_messages=4), str(tmp_path))
    client = connect(broker)
    send(broker, client, "q", *["full"] * 4)
    staged(broker, 0, "0", "1", "2")
    with pytest.raises(ResourceAllocationException, match="publish again later"):
        broker.call(c.Publish("g", 1, ["g/1/t"]), WAIT)
    number = broker._state.directory.staged["g/1/t"].id
    broker.call(c.SetAside(c.Range(number, 2, 2, 1, frozenset((2,)))), WAIT)  # as where its body is damaged
    staged(broker, 3, "3")
    ask(broker, "purge", destination="q", kind="queue")
    assert broker.call(c.Publish("g", 1, ["g/1/t"]), WAIT) is True
    come_to_rest(broker)
    assert [unpack(payload).body for payload in payloads(drained(broker, client, "q"))] == ["0", "2", "3"]
    assert [found.problem for found in broker.check()] == []
    broker.close()
