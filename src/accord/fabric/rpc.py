"""RPCs: requests and replies, signed by the caller, validated on both ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from nats.aio.msg import Msg

from accord.fabric.journal import NO_PAYLOAD, CallJournal
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.requests import HandleRequest, Request, RequestDispatcher
from accord.fabric.rules import payloads
from accord.fabric.rules.errors import DeadlineError, FabricError, ValidationError
from accord.fabric.rules.terms import Rpc
from accord.kernel import canonical

RpcHandler = Callable[[Request, Any], Awaitable[Any]]

_log = structlog.stdlib.get_logger(__name__)


def serve_rpc(
    dispatcher: RequestDispatcher,
    rpc: Rpc,
    handler: RpcHandler,
    calls: CallJournal | None,
    deadline: float,
) -> HandleRequest:
    """The request handler of an RPC; `deadline` is in seconds."""
    gate, what = rpc.gates["call"], f"call {rpc.name}"

    async def answer(request: Request, msg: Msg) -> None:
        asked: Any = NO_PAYLOAD
        try:
            request.who.require(gate, what)
            asked = payloads.read(rpc.input, msg.data, "the request")
            answered = await _within(deadline, handler(request, asked))
            data = _written(rpc, answered)
        except FabricError as error:
            _check_declared(rpc, error)
            if calls is not None:
                await _record_failure(calls, rpc.name, request, asked, error.type)
            raise
        except Exception:
            if calls is not None:
                await _record_failure(calls, rpc.name, request, asked, FabricError.type)
            raise
        if calls is not None:
            await _record(calls, rpc.name, request, asked, answered)
        await dispatcher.answer(msg, data)

    return answer


async def _record(
    calls: CallJournal, name: str, request: Request, asked: Any, answered: Any
) -> None:
    who, request_id = request.who, request.id
    await calls.record("rpc", name, "input", caller=who, request_id=request_id, payload=asked)
    await calls.record(
        *("rpc", name, "output"),
        caller=who,
        request_id=request_id,
        payload=answered,
        since=request.at,
    )


async def _record_failure(
    calls: CallJournal, name: str, request: Request, asked: Any, kind: str
) -> None:
    """Record the error for the input if it could not be read, otherwise for the output."""
    who, request_id = request.who, request.id
    part = "input"
    if asked is not NO_PAYLOAD:
        await calls.record("rpc", name, part, caller=who, request_id=request_id, payload=asked)
        part = "output"
    await calls.record(
        *("rpc", name, part), caller=who, request_id=request_id, error=kind, since=request.at
    )


def _written(rpc: Rpc, answered: Any) -> bytes:
    """The answer's bytes; an invalid answer is the service's fault, not the caller's."""
    try:
        return payloads.write(rpc.output, answered, "the answer")
    except ValidationError as error:
        _log.error("a handler's answer breaks its contract", rpc=rpc.name, issues=error.issues[:5])
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
    """Log a declared error that breaks its schema; it is sent all the same."""
    schema = rpc.errors.get(error.type)
    if schema is None:
        return
    try:
        said = canonical.decode(canonical.encode(error.members() | {"id": "0"}))
    except canonical.CanonicalError:
        said = None
    if not schema.is_valid(said):
        _log.error("a handler's error breaks its schema", rpc=rpc.name, type=error.type)


async def call(link: Link, rpc: Rpc, payload: Any, *, within: float = TIMEOUT) -> Any:
    """Call an RPC and return the answer's payload; raises like `Client.call`."""
    data = payloads.write(rpc.input, payload, "the request")
    msg = await link.request(rpc.subject, data, within)
    return payloads.read(rpc.output, msg.data, "the answer")
