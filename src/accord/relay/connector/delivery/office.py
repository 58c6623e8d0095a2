"""What a connection asks of the connector; `reception` answers."""

from typing import Protocol

from accord.relay.connector.control.directory import Principal
from accord.relay.connector.delivery.entries import Claim, Row
from accord.relay.wire.actions import Result
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.frames import Hello, Outbound


class Office(Protocol):
    """Everything that a gateway's frames can lead to."""

    async def greet(self, principal: Principal, hello: Hello) -> Descriptor | str:
        """The descriptor for an identity, or why it is refused."""
        ...

    async def act(self, principal: Principal, outbound: Outbound) -> Result | None:
        """Do what an agent asked for; never raises. None leaves it for the next connection."""
        ...

    async def interrupt(self, principal: Principal, session_key: str) -> None:
        """Stop the turn of one session of this instance."""
        ...

    async def load(self, instance: str, after: int, limit: int) -> list[Row]:
        """Rows of the buffer after a number."""
        ...

    async def bury(self, claim: Claim, seqs: list[int], reason: str) -> None:
        """Let rows not be delivered again."""
        ...
