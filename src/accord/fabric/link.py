"""A session's link: a NATS connection with the session's key and bindings.

Signs requests and raises the errors of answers. Never connects: a link can wrap any connection.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import session_key
from accord.fabric.inbox import Inbox
from accord.fabric.rules import proofs
from accord.fabric.rules.errors import FabricError, UnauthorizedError, read_error
from accord.kernel import traceparent
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

STATUS: Final = "status"
ERROR: Final = "error"

TIMEOUT: Final = 10.0
"""Default number of seconds to wait for an answer."""


@dataclass(frozen=True, slots=True)
class SessionBindings:
    """What the authority bound to a session."""

    # By kind (`kv`, `store`, `consumers`, `jobs`, `operations`) and alias.
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deployment: str | None = None  # the id of a service's or device's deployment
    instance: str | None = None


class Link:
    """A connection with an identity.

    Attributes:
        session: The session key: the public key in base64url.
        prefix: The prefix of its reply subjects.
        bound: Replaced when the authority changes the bindings.
        on_return: Called after a reconnect.
    """

    def __init__(
        self,
        nats: Client,
        key: SigningKey,
        *,
        bound: SessionBindings | None = None,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
    ) -> None:
        self.nats = nats
        self.key = key
        self.session = session_key(key)
        self.prefix = inbox_prefix(self.session)
        self.bound = bound or SessionBindings()
        self.clock = clock or SystemClock()
        self.ids = ids or UlidSource(self.clock)
        self.js: JetStreamContext = nats.jetstream()
        self.inbox = Inbox(nats, self.prefix)
        self.on_return: list[Callable[[], None]] = []
        self._watching: list[tuple[str, Callable[[FabricError], None]]] = []

    @contextmanager
    def watching(self, subject: str, denied: Callable[[FabricError], None]) -> Iterator[None]:
        """Call `denied` if the server refuses a subscription to the subject during the block."""
        entry = (subject, denied)
        self._watching.append(entry)
        try:
            yield
        finally:
            self._watching.remove(entry)

    def deny(self, action: str, subject: str) -> None:
        """Handle a permission error; `action` is `publish` or `subscription`."""
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
        """The signature headers of a request."""
        now = int(self.clock.now())
        headers = proofs.sign(self.key, self.session, subject, data, now, self.ids.new())
        headers[traceparent.HEADER] = tracing.traceparent()
        return headers

    async def request(self, subject: str, data: bytes, within: float = TIMEOUT) -> Msg:
        """Send a signed request and return its answer; raises the error that came instead."""
        with tracing.span("fabric request", SpanKind.CLIENT, subject=subject):
            msg = await self.inbox.ask(subject, data, self.signed(subject, data), within)
            raise_error(msg)
            return msg

    @asynccontextmanager
    async def stream(self, subject: str, data: bytes) -> AsyncIterator[AsyncIterator[Msg]]:
        """Send a signed request and yield every frame of the answer until the block ends."""

        async def frames(heard: AsyncIterator[Msg]) -> AsyncIterator[Msg]:
            async for msg in heard:
                raise_error(msg)
                yield msg

        async with self.inbox.stream(subject, data, self.signed(subject, data)) as heard:
            yield frames(heard)


def raise_error(msg: Msg) -> None:
    """Raise the error that an answer carries, RemoteError if its type is unknown; else return."""
    if msg.headers is not None and msg.headers.get(STATUS) == ERROR:
        raise read_error(msg.data)
