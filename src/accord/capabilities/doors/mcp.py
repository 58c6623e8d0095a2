"""The MCP server at `/mcp`: every capability is a tool, every corpus a resource.

It runs the official library without sessions. Tools take the request schemas of their capabilities;
a stream becomes one result.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from accord import __version__
from accord.capabilities import models
from accord.capabilities.doors.guard import DoorAccess, DoorGuard, scope_of
from accord.capabilities.doors.local import BusCaller, descriptions
from accord.capabilities.doors.rules import Door, DoorScope, tool_name
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.capabilities import CapabilityDescriptor

_MOST_FRAMES: Final = 4096
_MOST_BYTES: Final = 4 * 1024 * 1024
_ANY_REQUEST: Final = {"type": "object", "properties": {"params": {}, "input": {}}}
_USE_STREAM: Final = "use stream"  # how a client says that the answer is a stream


def input_schema(described: CapabilityDescriptor) -> dict[str, Any]:
    """Return the request schema of a tool's capability."""
    known = descriptions().get(described.schema_hash)
    schema = _ANY_REQUEST if known is None else known["request_schema"]
    return {name: value for name, value in schema.items() if name != "$schema"}


def is_read_only(described: CapabilityDescriptor) -> bool:
    """Whether the capability is a query."""
    return described.name in _QUERIES


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
        "experimental.rag.search",
        "experimental.rag.corpora",
        "experimental.rag.answer",
        "experimental.stt.transcribe",
        "experimental.tts.speak",
        "experimental.ocr.read",
        "experimental.trans.translate",
        "experimental.img.describe",
    }
)


async def call_tool(
    caller: BusCaller, described: CapabilityDescriptor, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Call a capability with a tool's arguments; `bad_request` if the result is too long."""
    name = described.name
    params, given = arguments.get("params", {}), arguments.get("input", {})
    if (
        not isinstance(params, dict)
        or not isinstance(given, dict)
        or not arguments.keys() <= _MEMBERS
    ):
        raise bad_request("expected the objects params and input")
    if name.startswith("llm.") or name == "experimental.rag.answer":
        given = {**given, "stream": False}
    if described.response is not None:
        try:
            return await caller.call(name, params, given)
        except CommunityError as error:
            if error.mend != _USE_STREAM:
                raise
    return await _gather_frames(caller, name, params, given)


_MEMBERS: Final = {"params", "input"}


def _check_model(scope: DoorScope, arguments: Mapping[str, Any]) -> None:
    """Raise `unauthorized` for a model that the key does not open."""
    params = arguments.get("params")
    model = params.get("model") if isinstance(params, dict) else None
    if model is not None and not scope.allows_model(str(model)):
        raise CommunityError(
            Code.UNAUTHORIZED, "the key does not open this model", where="/params/model"
        )


async def _gather_frames(
    caller: BusCaller, name: str, params: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    frames: list[dict[str, Any]] = []
    size = 0
    async with aclosing(caller.stream(name, params, given)) as stream:
        async for frame in stream:
            frames.append({"event": frame.event, "data": dict(frame.data)})
            size += len(json.dumps(frames[-1]))
            if len(frames) > _MOST_FRAMES or size > _MOST_BYTES:
                raise bad_request("the answer is too long for a tool")
    return {"frames": frames}


_CORPORA: Final = "accord://corpora/"
_SEARCH: Final = "experimental.rag.search"
_QUERY: Final = "rag.query"
_CORPORA_CALL: Final = "experimental.rag.corpora"
_JSON: Final = "application/json"
_INSTRUCTIONS: Final = (
    "Each tool is a capability of this node or of another in its community: `params` say what it "
    "is about, `input` what it is given. A model or corpus is named in `params`. Corpora are "
    "listed as resources; accord://corpora/NAME/QUERY searches one. experimental_rag_answer "
    "answers a question from all documents, with sources."
)


@asynccontextmanager
async def mcp_routes(caller: BusCaller, access: DoorAccess) -> AsyncIterator[tuple[Route, Route]]:
    """Yield the routes of the MCP server for this machine and for the home network.

    Raises `not_implemented` if the library is not installed.
    """
    if find_spec("mcp") is None:
        models.library("mcp")
    server = _McpServer(caller)
    try:
        local = DoorGuard(server, access, Door.MCP)
        yield Route("/mcp", local), Route("/mcp", replace(local, network=True))
    finally:
        await server.close()


class _McpServer:
    """The library's server, created on the first request.

    Importing the library takes half as long as the start of a station, and few stations use it.
    """

    def __init__(self, caller: BusCaller) -> None:
        self._caller = caller
        self._opening = asyncio.Lock()
        self._sessions: Any = None
        self._running: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opening:
            if self._sessions is None:
                self._sessions = await self._opened()
        await self._sessions.handle_request(scope, receive, send)

    async def close(self) -> None:
        """Stop the server if it was started."""
        self._ended.set()
        if self._running is not None:
            await self._running

    async def _opened(self) -> Any:
        lowlevel = await asyncio.to_thread(models.library, "mcp.server.lowlevel")
        manager = await asyncio.to_thread(models.library, "mcp.server.streamable_http_manager")
        door = _McpApi(self._caller)
        server = lowlevel.Server(
            "accord",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=door.list_tools,
            on_call_tool=door.call_tool,
            on_list_resources=door.list_resources,
            on_list_resource_templates=door.list_templates,
            on_read_resource=door.read_resource,
        )
        sessions = manager.StreamableHTTPSessionManager(server, stateless=True, json_response=True)
        begun = asyncio.Event()

        async def run() -> None:
            async with sessions.run():
                begun.set()
                await self._ended.wait()

        # The library must leave its context in the task that entered it.
        self._running = asyncio.create_task(run(), name="mcp")
        await begun.wait()
        return sessions


class _McpApi:
    def __init__(self, caller: BusCaller) -> None:
        self._caller = caller
        self._types: Any = models.library("mcp_types")

    def _offered(self, context: Any) -> dict[str, CapabilityDescriptor]:
        """What the holder of the request's key may call, by the name of its tool."""
        scope: DoorScope = scope_of(context.request.scope)
        return {
            tool_name(name): described
            for name, described in self._caller.descriptors().items()
            if scope.allows_tool(name)
        }

    async def list_tools(self, context: Any, _params: Any) -> Any:
        types = self._types
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=described.description or described.name,
                    input_schema=input_schema(described),
                    annotations=types.ToolAnnotations(
                        title=described.key,
                        read_only_hint=is_read_only(described),
                        idempotent_hint=described.idempotent,
                        open_world_hint=True,
                    ),
                )
                for name, described in self._offered(context).items()
            ]
        )

    async def call_tool(self, context: Any, params: Any) -> Any:
        described = self._offered(context).get(params.name)
        if described is None:
            raise self._error("there is no such tool, or the key does not open it")
        try:
            _check_model(scope_of(context.request.scope), params.arguments or {})
            answer = await call_tool(self._caller, described, params.arguments or {})
        except CommunityError as error:
            return self._types.CallToolResult(
                content=[self._text(f"{error.code.value}: {error}")], is_error=True
            )
        return self._types.CallToolResult(
            content=[self._text(_readable(answer))], structured_content=answer
        )

    async def list_resources(self, context: Any, _params: Any) -> Any:
        types = self._types
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=_CORPORA + quote(corpus["name"], safe=""),
                    name=corpus["name"],
                    description=f"A corpus of {corpus['docs']} documents.",
                    mime_type=_JSON,
                )
                for corpus in await self._corpora(context)
            ]
        )

    async def list_templates(self, _context: Any, _params: Any) -> Any:
        types = self._types
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=_CORPORA + "{corpus}/{query}",
                    name="search",
                    description="The passages of a corpus that are nearest to a query.",
                    mime_type=_JSON,
                )
            ]
        )

    async def read_resource(self, context: Any, params: Any) -> Any:
        uri = str(params.uri)
        corpus, _, query = uri.removeprefix(_CORPORA).partition("/")
        if not uri.startswith(_CORPORA) or not corpus:
            raise self._error("there is no such resource")
        try:
            told = await self._read(context, unquote(corpus), unquote(query))
        except CommunityError as error:
            raise self._error(str(error)) from error
        content = self._types.TextResourceContents(
            uri=uri, mime_type=_JSON, text=json.dumps(told, ensure_ascii=False)
        )
        return self._types.ReadResourceResult(contents=[content])

    async def _read(self, context: Any, corpus: str, query: str) -> Any:
        if query:
            offered = self._offered(context)
            if tool_name(_SEARCH) not in offered and tool_name(_QUERY) not in offered:
                raise CommunityError(Code.UNAUTHORIZED, "the key does not open searches")
            if tool_name(_SEARCH) in offered:
                params = {"corpora": [corpus]}
                answer = await self._caller.call(_SEARCH, params, {"query": query})
            else:
                answer = await self._caller.call(_QUERY, {"corpus": corpus}, {"query": query})
            return answer["output"]
        for found in await self._corpora(context):
            if found["name"] == corpus:
                return found
        raise CommunityError(Code.NOT_FOUND, "there is no such corpus")

    async def _corpora(self, context: Any) -> list[dict[str, Any]]:
        """Each corpus once, with the documents of all nodes."""
        offered = self._offered(context)
        name = _CORPORA_CALL if tool_name(_CORPORA_CALL) in offered else "rag.list_corpora"
        if tool_name(name) not in offered:
            return []
        answer = await self._caller.call(name, {}, {})
        found: dict[str, dict[str, Any]] = {}
        for each in answer["output"]["corpora"]:
            known = found.setdefault(each["name"], {**each, "docs": 0, "chunks": 0})
            known["docs"] += each["docs"]
            known["chunks"] += each["chunks"]
            if "node" in known:
                del known["node"], known["node_id"]
            if "node" in each:
                known.setdefault("nodes", []).append(each["node"])
        return list(found.values())

    def _text(self, text: str) -> Any:
        return self._types.TextContent(type="text", text=text)

    def _error(self, message: str) -> Exception:
        errors = models.library("mcp.shared.exceptions")
        error: Exception = errors.MCPError(self._types.INVALID_PARAMS, message)
        return error


def _readable(answer: dict[str, Any]) -> str:
    """Return the text of an answer if it has one, else its JSON."""
    output = answer.get("output")
    if isinstance(output, dict):
        message = output.get("message")
        text = message.get("content") if isinstance(message, dict) else output.get("text")
        if isinstance(text, str) and text:
            return text
    return json.dumps(answer, ensure_ascii=False)
