"""The operations that change the group of a server."""

from __future__ import annotations

from broker_adapter.engine.operations.copy_states import FollowedEngine, Group
from broker_adapter.engine.operations.request import Beside, Request, Steps, Threads, argument, fields_of, request
from broker_adapter.errors import IllegalStateException


@fields_of
class OfGroup(Request):
    """The requests that change the group of a server."""

    node: str = argument(note="the name of another node")

    def steps(self, client: int) -> Steps:
        def act(engine: FollowedEngine) -> None:
            if engine.copies.group is None:
                raise IllegalStateException("this server is of no group")
            self.act(engine.copies.group)

        return (yield Beside(act))

    def act(self, group: Group) -> None:
        """Carry it out."""
        raise NotImplementedError


@request(Threads.SHORT)
class HandOverRequest(OfGroup):
    """Nothing; the node becomes primary, which the connection to this one does not survive."""

    def act(self, group: Group) -> None:
        group.hand_over(self.node)


@request(Threads.SHORT)
class LeaveGroupRequest(OfGroup):
    """Nothing; the node, which should be stopped, is waited for no more, and not in the group any longer."""

    def act(self, group: Group) -> None:
        group.leave(self.node)


@request(Threads.SHORT, right="follow")
class StopFollowingRequest(OfGroup):
    """Nothing; the node, which asks this as it stops, is not waited for, and is in sync again once it follows again."""

    def act(self, group: Group) -> None:
        group.gone(self.node)
