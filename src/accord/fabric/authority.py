"""What a service asks the authority while it runs: who its callers are, and that it is still there.

Owns the three messages of the built-in contracts that every service needs. Their forms are read
leniently: what is not needed here may change there.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.fabric import payloads
from accord.fabric.callers import (
    RESOLVE_SUBJECT,
    REVOKED_SUBJECT,
    Caller,
    Callers,
    Resolve,
    read_caller,
)
from accord.fabric.errors import FabricError, NotFoundError, UnauthorizedError, ValidationError
from accord.fabric.link import Link
from accord.fabric.terms import Terms
from accord.fabric.wire import hear
from accord.kernel import canonical
from accord.kernel.schema import compile_schema

HEARTBEAT_SECONDS: Final = 10.0
HEALTH: Final = "trellis.health@v1"
HEARTBEAT: Final = "Health.Heartbeat"
HEARTBEAT_SUBJECT: Final = f"events.v1.{HEARTBEAT}"

_RESOLVE_SECONDS: Final = 5.0
_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_FACTS: Final = compile_schema(
    {
        "type": "object",
        "properties": {
            "holder": _TEXT,
            "subject": _TEXT,
            "contractId": _MAYBE,
            "digest": _MAYBE,
            "capabilities": {"type": "array", "items": _TEXT},
            "expiresAt": {"type": ["number", "null"]},
        },
        "required": ["holder", "subject", "capabilities"],
    }
)
_REVOKED: Final = compile_schema(
    {"type": "object", "properties": {"sessionKey": _TEXT}, "required": ["sessionKey"]}
)

_log = structlog.stdlib.get_logger(__name__)


def resolving(link: Link) -> Resolve:
    """What asks the authority who a session is."""

    async def resolve(session: str) -> Caller:
        data = canonical.encode({"sessionKey": session})
        try:
            msg = await link.request(RESOLVE_SUBJECT, data, _RESOLVE_SECONDS)
            answer = payloads.read(_FACTS, msg.data, "the authority's answer")
        except NotFoundError:
            raise UnauthorizedError("the session is nobody's, or was revoked") from None
        except FabricError as error:
            _log.error("a caller cannot be resolved", why=str(error))
            raise FabricError("the service cannot tell at the moment who is calling") from error
        return read_caller(session, answer)

    return resolve


@asynccontextmanager
async def heeding_revocations(link: Link, callers: Callers) -> AsyncIterator[None]:
    """Forget revoked sessions at once, until the block ends; everybody, where word may be lost."""

    async def heard(msg: Msg) -> None:
        try:
            revoked = payloads.read(_REVOKED, msg.data, "word of a revocation")
        except ValidationError:
            callers.clear()
        else:
            callers.forget(revoked["sessionKey"])

    def denied(_: FabricError) -> None:
        _log.warning("revocations are not heard of; sessions are resolved anew every half minute")

    with link.watching(REVOKED_SUBJECT, denied):
        subscription = await hear(link.nats, REVOKED_SUBJECT, heard)
        link.on_return.append(callers.clear)
        try:
            yield
        finally:
            link.on_return.remove(callers.clear)
            with suppress(NatsError):
                await subscription.unsubscribe()


@asynccontextmanager
async def beating(
    link: Link, terms: Terms, every: float = HEARTBEAT_SECONDS
) -> AsyncIterator[None]:
    """Say from time to time that the session is there, until the block ends."""

    async def beat() -> None:
        while True:
            said = {
                "sessionKey": link.session,
                "contractId": terms.id,
                "contractDigest": terms.digest,
                "status": "healthy",
                "at": link.clock.now(),
            }
            with suppress(NatsError):  # the connection is lost; the next one may get through
                await link.nats.publish(HEARTBEAT_SUBJECT, canonical.encode(said))
            await asyncio.sleep(every)

    if not terms.uses(HEALTH, "events", "publish", HEARTBEAT):
        yield
        return
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
