"""Commands that wait for a cycle of the engine, and how many of them one cycle takes.  No threads, files or clock."""

from __future__ import annotations

from collections import deque
from typing import Final

from broker_adapter.engine.commands import messaging as c
from broker_adapter.engine.commands import regions as e
from broker_adapter.engine.cycle.split_sends import split
from broker_adapter.engine.queues.directory import Directory

#: Messages, settlements and staged transactions that one commit takes at most; more wait for the next one.
CYCLE_MESSAGES: Final = 10_000
#: Places in queues that the messages of one commit take at most; a single message may take more.
CYCLE_ENTRIES: Final = 20_000
#: Bytes of messages that one commit takes at most.
CYCLE_BYTES: Final = 16 * 1024 * 1024


class Inbox:
    """The commands that were handed over to the engine and are not carried out yet, in order.

    Args:
        directory: of the engine.

    Attributes:
        commands: any thread appends; one at a time takes.
    """

    def __init__(self, directory: Directory) -> None:
        self.commands: deque[c.Command | c.DeferredCommands] = deque()
        self._directory = directory

    def take(self, commands: list[c.Command], most: int) -> int:
        """Take commands, as many as one commit may hold.

        Args:
            commands: get what is taken.
            most: messages and settlements that the commit takes at most.

        Returns:
            The bytes of the messages that come in.
        """
        waiting = self.commands
        weight = size = 0
        while waiting and weight < most and size < CYCLE_BYTES:
            command = waiting.popleft()
            if isinstance(command, c.DeferredCommands):
                waiting.extendleft(reversed(command.take()))
                continue
            if isinstance(command, c.Enqueue):
                fan_out = self._directory.fan_out(command.destination)
                if fan_out * len(command.messages) > CYCLE_ENTRIES and len(command.messages) > 1:
                    command, rest = split(command, max(1, CYCLE_ENTRIES // fan_out))
                    waiting.appendleft(rest)
                weight += fan_out * len(command.messages)
                size += sum([len(message.payload) for message in command.messages])
            elif isinstance(command, c.PutBack):
                weight += max(1, len(command.messages))
                size += sum([len(message.payload) for _, message in command.messages])
            elif isinstance(command, c.Stage):
                weight += max(1, len(command.messages))
                size += sum([len(message.payload) for message in command.messages])
            elif isinstance(command, c.Settle):
                if len(command.numbers) > most:
                    waiting.appendleft(command._replace(numbers=command.numbers[most:]))
                    command = command._replace(numbers=command.numbers[:most], reply=None)
                weight += len(command.numbers)
            elif isinstance(command, c.Discard):
                weight += max(1, len(command.transactions))
            elif isinstance(command, c.Publish):  # which may move all of them in its own commit
                staged = map(self._directory.staged.get, command.transactions)
                weight += max(1, len(command.transactions), sum([queue.depth for queue in staged if queue is not None]))
            elif isinstance(command, c.Seen | c.Uncount):
                weight += max(1, len(command.positions))
            elif isinstance(command, c.Disconnect):
                held = self._directory.in_hand_of(command.client)
                if held > most:
                    # It goes on in the next cycle, and what came behind it waits for its end.
                    commands.append(
                        c.GiveBack(command.client, most, command.failed, command.never_delivered, stops=command.stops)
                    )
                    waiting.appendleft(command)
                    return size
                weight += max(1, held)
            elif isinstance(command, c.Detach) and (command.give_back or command.never_delivered):
                weight += max(1, self._directory.in_hand_of_consumer(command.consumer))
            elif isinstance(command, c.Commit):
                # At least 1: as many names as the commands of a cycle have must fit into CACHED_NAMES.
                weight += max(1, len(command.sends) + len(command.settlements))
                size += sum([len(message.payload) for _, message in command.sends])
                for part in command.changes:
                    weight += len(part.changes)
                    size += part.size
            elif isinstance(command, e.ChangeKeys):
                weight += max(1, len(command.changes))
                size += command.size
            else:
                weight += 1
            commands.append(command)
        return size

    def take_refusable(self) -> list[c.Command]:
        """Take what may be refused where nothing can be carried out: connects, sends and changes of keys that
        have an answer.

        What stays keeps its order.  Other threads may append meanwhile.
        """
        waiting = self.commands
        taken: list[c.Command] = []
        kept: list[c.Command] = []
        for _ in range(len(waiting)):
            first = waiting.popleft()
            for command in first.take() if isinstance(first, c.DeferredCommands) else (first,):
                is_refusable = isinstance(command, c.Connect | c.Enqueue | e.ChangeKeys) and command.reply is not None
                (taken if is_refusable else kept).append(command)
        waiting.extendleft(reversed(kept))
        return taken
