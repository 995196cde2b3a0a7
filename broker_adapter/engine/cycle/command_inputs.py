"""What commands need of the stores before the rules decide on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from broker_adapter.engine.commands import gateways as g
from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands.identities import LastNumbers
from broker_adapter.engine.cycle.entry_reads import EntryReads
from broker_adapter.engine.cycle.event_reads import EventReads
from broker_adapter.engine.queues.losses import Place
from broker_adapter.engine.queues.queue import QueueState
from broker_adapter.engine.records.layout import LAST_POSITION, RawEntry
from broker_adapter.engine.rules.deliveries import Deliveries
from broker_adapter.engine.rules.staging import batch_of
from broker_adapter.engine.store.stores import Stores

#: Messages, and transactions, that a publication moves in its own commit; more are moved by a background job.
MOVED_AT_ONCE: Final = 1000
#: Messages of a gateway that end in one commit.
ENDED_AT_ONCE: Final = 10_000

#: Commands that are carried out with what is in memory.
NEED_NOTHING: Final = frozenset({c.Enqueue, c.Settle, c.Credit, c.TakeInHand})


class CommandInputs:
    """Reads what a command asks for: entries, annotations, and the last numbers of names.

    Args:
        stores: of the engine.
        reads: of its entries.
        commits: the commits that were done.
        published: the batches that were published.
        deliveries: knows what lost connections had.
        events: reads what commands about regions and durable clients ask for.
        staged: the staged transactions by name.
    """

    def __init__(
        self,
        stores: Stores,
        reads: EntryReads,
        commits: LastNumbers,
        published: LastNumbers,
        deliveries: Deliveries,
        events: EventReads,
        staged: Mapping[str, QueueState],
    ) -> None:
        self._stores = stores
        self._reads = reads
        self._commits = commits
        self._published = published
        self._deliveries = deliveries
        self._look_up = stores.look_up
        self._event_reads = events.by_kind
        self._keys_read = events.keys
        self._staged = staged

    def supplied(self, command: c.Command) -> c.Command:
        """The command with the entries that it asks for, as the stores have them in this cycle."""
        if (type(command) is c.Trim and not command.found) or type(command) is c.SetAside:
            found, after = self._reads.of_range(command.range)
            if type(command) is c.SetAside:
                found = [each for each in found if self._stores.set_body_aside(each.number)]
            return command._replace(found=found, next=after)
        if type(command) is g.EndBatch:
            found, after = self._reads.of_range(c.Range(command.queue, command.first, command.through, ENDED_AT_ONCE))
            return command._replace(found=found, next=after)
        if type(command) is c.PutBack and self._stores.disk is not None:
            return command._replace(there=self._stores.disk.in_quarantine([key for key, _ in command.messages]))
        if type(command) is c.Redrive:
            found, after = self._reads.of_range(command.range)
            return command._replace(found=[(each, self._stores.annotations_of(each)) for each in found], next=after)
        if type(command) is c.Uncount or type(command) is c.UncountRest:
            return command._replace(found=self._entries_at(self._deliveries.lost_elsewhere(command)))
        if type(command) is c.Commit or type(command) is c.ResolveCommit:
            if command.commit_id is not None:
                self._look_up(self._commits, command.commit_id.session)
            if type(command) is c.Commit and command.batch is not None:
                self._look_up(self._published, command.batch.group)
                for group in {*command.batch.groups([destination for destination, _ in command.sends])} - {""}:
                    self._look_up(self._published, group)
            if type(command) is c.Commit and command.changes:
                return command._replace(changes=[self._keys_read(part) for part in command.changes])
        elif type(command) is c.Publish:
            self._look_up(self._published, command.group)
            return command._replace(found=self._staged_by(command.transactions))
        elif type(command) is c.Stage:
            group, number = batch_of(command.transaction)
            if number is not None:
                self._look_up(self._published, group)
        elif (read := self._event_reads.get(type(command))) is not None:
            return read(command)
        return command

    def _staged_by(self, transactions: Sequence[str]) -> list[RawEntry]:
        """All entries of some staged transactions, one behind the other; none where there are many."""
        if len(transactions) > MOVED_AT_ONCE:
            return []
        queues = [queue for queue in map(self._staged.get, dict.fromkeys(transactions)) if queue is not None]
        if sum(queue.depth for queue in queues) > MOVED_AT_ONCE:
            return []
        found: list[RawEntry] = []
        for queue in queues:
            found += self._reads.of_range(c.Range(queue.id, 0, LAST_POSITION, MOVED_AT_ONCE + 1))[0]
        return found

    def _entries_at(self, places: Sequence[Place]) -> list[RawEntry]:
        found: list[RawEntry] = []
        for queue, lane, position in places:
            read = self._reads.repaired(self._stores.load, queue, lane, position - 1, 1).entries
            found += [each for each in read if each.position == position]
        return found
