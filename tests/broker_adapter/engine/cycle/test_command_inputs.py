"""What commands get of the stores before they are decided on."""

from __future__ import annotations

import pytest

from broker_adapter.destination import queue
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.cycle.command_inputs import CommandInputs
from broker_adapter.engine.records.layout import entry_key
from tests.broker_adapter.engine.driving import WAIT, Engines, connect, message, send


def inputs_of(engines: Engines) -> CommandInputs:
    """Those of a new engine with the messages "a" and "b" in queue 1, behind the dead-letter queue."""
    broker = engines.start()
    send(broker, connect(broker), "q", "a", "b")
    state = broker._state
    return CommandInputs(
        *(broker._stores, broker._reads, state.commits, state.published, state.deliveries, broker._event_reads),
        state.directory.staged,
    )


def number_of(engines: Engines) -> int:
    assert engines.broker is not None
    return engines.broker._state.directory.by_destination[queue("q")].id


def test_a_range_is_read_in_parts(engines: Engines) -> None:
    inputs = inputs_of(engines)
    for kind in (c.Trim, c.Redrive):
        first = inputs.supplied(kind(c.Range(number_of(engines), 0, 9, 1)))
        assert isinstance(first, c.Trim | c.Redrive)
        assert (len(first.found), first.next) == (1, 2)
        rest = inputs.supplied(kind(c.Range(number_of(engines), 2, 9, 5)))
        assert isinstance(rest, c.Trim | c.Redrive)
        assert (len(rest.found), rest.next) == (1, None)
    nothing = inputs.supplied(c.Trim(c.Range(number_of(engines), 2, 1, 5)))
    assert isinstance(nothing, c.Trim)
    assert (list(nothing.found), nothing.next) == ([], None)


def test_a_redrive_gets_annotations_with_each_entry(engines: Engines) -> None:
    found = inputs_of(engines).supplied(c.Redrive(c.Range(number_of(engines), 0, 9, 5)))
    assert isinstance(found, c.Redrive)
    assert [(entry.position, annotations) for entry, annotations in found.found] == [(1, None), (2, None)]


@pytest.mark.damages
def test_what_is_set_aside_is_in_quarantine_when_its_command_is_decided_on(disk: Engines) -> None:
    inputs = inputs_of(disk)
    number = number_of(disk)
    wanted = c.Range(number, 2, 2, 1, frozenset((2,)))
    found = inputs.supplied(c.SetAside(wanted))
    assert isinstance(found, c.SetAside)
    assert [each.position for each in found.found] == [2]
    assert disk.broker is not None
    assert disk.broker.store.quarantined() == 1


def test_a_message_that_is_put_back_comes_with_what_is_in_quarantine(disk: Engines) -> None:
    inputs = inputs_of(disk)
    key = entry_key(number_of(disk), 5, 1)
    found = inputs.supplied(c.PutBack(queue("q"), [(key, message("a"))]))
    assert isinstance(found, c.PutBack)
    assert found.there == frozenset()


def test_names_are_looked_up_in_the_store(disk: Engines) -> None:
    broker = disk.start()
    broker.call(c.Stage("group/4/a", queue("q"), 0, [message("a")]), WAIT)
    assert broker.call(c.Publish("group", 4, ["group/4/a"]), WAIT)
    broker = disk.start()
    state = broker._state
    inputs = CommandInputs(
        *(broker._stores, broker._reads, state.commits, state.published, state.deliveries, broker._event_reads),
        state.directory.staged,
    )
    assert state.published.needs("group")
    inputs.supplied(c.Stage("group/4/b", queue("q"), 0, []))
    assert state.published.last("group") == 4
    inputs.supplied(c.Publish("other", 1, []))
    assert not state.published.needs("other")
    inputs.supplied(c.ResolveCommit(c.CommitId("session", 1)))
    assert not state.commits.needs("session")
