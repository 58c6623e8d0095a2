"""Capabilities as tools: what each one takes, and how it is called.

Owns the names and schemas under which capabilities appear, and how a stream becomes one answer.
"""

import json
from collections.abc import Mapping
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from typing import Any, Final

from accord.capabilities.doors.calling import Caller
from accord.community.bus import Offer
from accord.community.envelope.schemas import schema_hash
from accord.community.errors import Code, CommunityError

_MOST_FRAMES: Final = 4096
_MOST_BYTES: Final = 4 * 1024 * 1024
_USE_STREAM: Final = "use stream"  # how a client says that the answer is a stream


def tool_name(capability: str) -> str:
    """The name of a capability's tool: dots are not welcome everywhere."""
    return capability.replace(".", "_")


def input_schema(offer: Offer) -> dict[str, Any]:
    """What a tool takes: the request of its capability."""
    known = _requests().get(offer.descriptor.schema_hash)
    plain = {"type": "object", "properties": {"params": {}, "input": {}}}
    return {name: value for name, value in (known or plain).items() if name != "$schema"}


def is_read_only(offer: Offer) -> bool:
    """Whether calling it certainly changes nothing: what the specification calls a query."""
    return offer.descriptor.name in _QUERIES


_QUERIES: Final = frozenset(
    {
        "llm.chat",
        "llm.complete",
        "embed.text",
        "rag.query",
        "rag.list_corpora",
        "file.read",
        "file.list",
        "market.list",
        "market.search",
        "chat.history",
    }
)


async def use(caller: Caller, offer: Offer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a capability with the arguments of its tool.

    Raises:
        CommunityError: With the node's code; `bad_request` when the answer is too long for a tool.
    """
    name = offer.descriptor.name
    params, given = arguments.get("params", {}), arguments.get("input", {})
    if (
        not isinstance(params, dict)
        or not isinstance(given, dict)
        or not arguments.keys() <= _MEMBERS
    ):
        raise CommunityError(Code.BAD_REQUEST, "expected the objects params and input")
    if name.startswith("llm."):
        given = {**given, "stream": False}
    if offer.descriptor.response is not None:
        try:
            return await caller.call(name, params, given)
        except CommunityError as error:
            if error.mend != _USE_STREAM:
                raise
    return await _gather(caller, name, params, given)


_MEMBERS: Final = {"params", "input"}


async def _gather(
    caller: Caller, name: str, params: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """All frames of a stream, as long as they are not too many."""
    frames: list[dict[str, Any]] = []
    size = 0
    async with aclosing(caller.stream(name, params, given)) as stream:
        async for frame in stream:
            frames.append({"event": frame.event, "data": dict(frame.data)})
            size += len(json.dumps(frames[-1]))
            if len(frames) > _MOST_FRAMES or size > _MOST_BYTES:
                raise CommunityError(Code.BAD_REQUEST, "the answer is too long for a tool")
    return {"frames": frames}


@cache
def _requests() -> dict[str, dict[str, Any]]:
    """The request schemas of our capabilities, by the hash of all their schemas."""
    found: dict[str, dict[str, Any]] = {}
    for family in files("accord.capabilities").iterdir():
        folder = family.joinpath("data")
        if not folder.is_dir():
            continue
        for file in folder.iterdir():
            if file.name.endswith(".json"):
                form = json.loads(file.read_bytes())
                digest = schema_hash(
                    form["name"],
                    form["version"],
                    form["request_schema"],
                    form.get("response_schema"),
                    form.get("stream_schema"),
                )
                found[digest] = form["request_schema"]
    return found
