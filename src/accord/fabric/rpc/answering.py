"""The answering side of an RPC: gate, request, handler, answer, in this order.

Owns what a caller is told when a handler fails, and what the journal is told of the call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from nats.aio.msg import Msg

from accord.fabric import payloads
from accord.fabric.calls import ABSENT, Calls
from accord.fabric.errors import DeadlineError, FabricError, ValidationError
from accord.fabric.reception import Handle, Reception, Request
from accord.fabric.terms import Rpc
from accord.kernel import canonical

Handler = Callable[[Request, Any], Awaitable[Any]]

_log = structlog.stdlib.get_logger(__name__)


def answering(
    reception: Reception, rpc: Rpc, handler: Handler, calls: Calls | None, deadline: float
) -> Handle:
    """What answers the requests of an RPC, each within so many seconds."""
    gate, what = rpc.gates["call"], f"call {rpc.name}"

    async def answer(request: Request, msg: Msg) -> None:
        asked: Any = ABSENT
        try:
            request.who.require(gate, what)
            asked = payloads.read(rpc.input, msg.data, "the request")
            answered = await _within(deadline, handler(request, asked))
            data = _written(rpc, answered)
        except FabricError as error:
            _check_declared(rpc, error)
            if calls is not None:
                await _tell_failure(calls, rpc.name, request, asked, error.type)
            raise
        except Exception:
            if calls is not None:
                await _tell_failure(calls, rpc.name, request, asked, FabricError.type)
            raise
        if calls is not None:
            await _tell(calls, rpc.name, request, asked, answered)
        await reception.answer(msg, data)

    return answer


async def _tell(calls: Calls, name: str, request: Request, asked: Any, answered: Any) -> None:
    who, request_id = request.who, request.id
    await calls.tell("rpc", name, "input", caller=who, request_id=request_id, payload=asked)
    await calls.tell(
        *("rpc", name, "output"),
        caller=who,
        request_id=request_id,
        payload=answered,
        since=request.at,
    )


async def _tell_failure(calls: Calls, name: str, request: Request, asked: Any, kind: str) -> None:
    """A request that could not be read failed as such; any other failed to be answered."""
    who, request_id = request.who, request.id
    part = "input"
    if asked is not ABSENT:
        await calls.tell("rpc", name, part, caller=who, request_id=request_id, payload=asked)
        part = "output"
    await calls.tell(
        *("rpc", name, part), caller=who, request_id=request_id, error=kind, since=request.at
    )


def _written(rpc: Rpc, answered: Any) -> bytes:
    """The answer's bytes; a handler that breaks its own contract is at fault, not its caller."""
    try:
        return payloads.write(rpc.output, answered, "the answer")
    except ValidationError as error:
        _log.error("a handler broke its contract", rpc=rpc.name, issues=error.issues[:5])
        raise FabricError("the service's answer does not keep the contract") from error


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await answer
    except TimeoutError:
        if deadline.expired():
            raise DeadlineError("the service took too long to answer") from None
        raise


def _check_declared(rpc: Rpc, error: FabricError) -> None:
    """Take note of a declared error that does not keep its schema; it is said all the same."""
    schema = rpc.errors.get(error.type)
    if schema is None:
        return
    try:
        said = canonical.decode(canonical.encode(error.members() | {"id": "0"}))
    except canonical.CanonicalError:
        said = None
    if not schema.is_valid(said):
        _log.error("a handler's error breaks its schema", rpc=rpc.name, type=error.type)
