"""A session's link to the network: its connection, its identity, and what is bound to it.

Everything else of the fabric stands on a link, and a link can be made of any NATS connection.
Owns signing and the reading of errors that come back. Never connects.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from accord import tracing
from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric import proofs
from accord.fabric.errors import FabricError, UnauthorizedError, read_error
from accord.fabric.inbox import Inbox
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource
from accord.tracing import SpanKind

STATUS: Final = "status"
ERROR: Final = "error"

TIMEOUT: Final = 10.0
"""How long an answer may take, in seconds, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What the authority bound to a session when it let it in.

    Attributes:
        resources: By kind (`kv`, `store`, `consumers`, `jobs`, `operations`) and alias.
        deployment: The deployment's id, of a service or device.
        instance: The instance's name.
    """

    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deployment: str | None = None
    instance: str | None = None


class Link:
    """A connection with an identity.

    Args:
        nats: A connection that may be used.
        key: The session's key.
        bound: What is bound to it.

    Attributes:
        session: The session's name, its public key in base64url.
        prefix: What its reply subjects begin with.
        bound: Replaced when the authority binds something else.
        on_return: Called when a connection that was lost is there again.
    """

    def __init__(
        self,
        nats: Client,
        key: SigningKey,
        *,
        bound: Bound | None = None,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
    ) -> None:
        self.nats = nats
        self.key = key
        self.session = session_key(key)
        self.prefix = inbox_prefix(self.session)
        self.bound = bound or Bound()
        self.clock = clock or SystemClock()
        self.ids = ids or UlidSource(self.clock)
        self.js: JetStreamContext = nats.jetstream()
        self.inbox = Inbox(nats, self.prefix)
        self.on_return: list[Callable[[], None]] = []
        self._watching: list[tuple[str, Callable[[FabricError], None]]] = []

    @contextmanager
    def watching(self, subject: str, denied: Callable[[FabricError], None]) -> Iterator[None]:
        """Be told when the server does not let this session subscribe to a subject."""
        entry = (subject, denied)
        self._watching.append(entry)
        try:
            yield
        finally:
            self._watching.remove(entry)

    def deny(self, action: str, subject: str) -> None:
        """The server refused to let this session publish or subscribe somewhere.

        Args:
            action: `publish` or `subscription`.
            subject: Where, in any case of letters.
        """
        if action == "publish":
            self.inbox.refuse(subject.lower())
        for watched, denied in list(self._watching):
            if action == "subscription" and watched.lower() == subject.lower():
                denied(
                    UnauthorizedError(
                        "this session may not subscribe here",
                        where=watched,
                        mend="declare the use in the contract, and have the change accepted",
                    )
                )

    def signed(self, subject: str, data: bytes) -> dict[str, str]:
        """The headers of a request of this session."""
        now = int(self.clock.now())
        headers = proofs.sign(self.key, self.session, subject, data, now, self.ids.new())
        headers[tracing.HEADER] = tracing.header()
        return headers

    async def request(self, subject: str, data: bytes, within: float = TIMEOUT) -> Msg:
        """Send a signed request and return its answer.

        Raises:
            FabricError: What the other side answered, or why nothing came back.
        """
        with tracing.step("fabric request", SpanKind.CLIENT, subject=subject):
            msg = await self.inbox.ask(subject, data, self.signed(subject, data), within)
            raise_error(msg)
            return msg

    @asynccontextmanager
    async def stream(self, subject: str, data: bytes) -> AsyncIterator[AsyncIterator[Msg]]:
        """Send a signed request and hear every frame that answers it, until the block ends."""

        async def frames(heard: AsyncIterator[Msg]) -> AsyncIterator[Msg]:
            async for msg in heard:
                raise_error(msg)
                yield msg

        async with self.inbox.stream(subject, data, self.signed(subject, data)) as heard:
            yield frames(heard)


def raise_error(msg: Msg) -> None:
    """Raise the error that an answer is, if it is one.

    Raises:
        FabricError: The typed error, or RemoteError where the type is not known here.
    """
    if msg.headers is not None and msg.headers.get(STATUS) == ERROR:
        raise read_error(msg.data)
