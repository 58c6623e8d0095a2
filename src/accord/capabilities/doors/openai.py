"""OpenAI-compatible routes below `/v1`: completions of chats and texts, embeddings, models."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from accord.capabilities.doors import openai_format
from accord.capabilities.doors.caller import BusCaller
from accord.capabilities.doors.errors import OpenAiError, error_body, error_response, unknown_model
from accord.capabilities.doors.guard import LocalGuard
from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.web import bodies, sse

_log = structlog.stdlib.get_logger(__name__)

_MAX_BODY: Final = 8 * 1024 * 1024
_MIN_RATE: Final = 64 * 1024
_SMALL: Final = "the small built-in model"


def openai_routes(caller: BusCaller, clock: Clock, token: str) -> Sequence[Route]:
    """Return the routes, each behind `LocalGuard`."""
    door = _OpenAiApi(caller, clock)
    paths: Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = (
        ("/v1/chat/completions", "POST", door.chat),
        ("/v1/completions", "POST", door.complete),
        ("/v1/embeddings", "POST", door.embed),
        ("/v1/models", "GET", door.models),
        ("/v1/models/{model:path}", "GET", door.model),
    )
    return [
        Route(path, LocalGuard(_OpenAiEndpoint(serve), token), methods=[method])
        for path, method, serve in paths
    ]


class _OpenAiEndpoint:
    """One path; every error is answered in OpenAI's format."""

    def __init__(self, serve: Callable[[Request], Awaitable[Response]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._serve(request)
        except sse.ClientGoneError:
            return  # nobody hears it
        except CommunityError as error:
            response = error_response(error)
        except Exception:  # noqa: BLE001 - no request may bring down the server, or see inside
            _log.exception("request to a local API failed", path=request.url.path)
            response = error_response(
                CommunityError(Code.INTERNAL_ERROR, "the station failed to do this")
            )
        await response(scope, receive, send)


class _OpenAiApi:
    def __init__(self, caller: BusCaller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._ids = UlidSource(clock)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, is_chat=True)

    async def complete(self, request: Request) -> Response:
        return await self._generate(request, is_chat=False)

    async def embed(self, request: Request) -> Response:
        body = await _json(request)
        model, texts, as_bytes = openai_format.read_embedding(body)
        self._check_model("embed.text", model)
        rows: list[list[float]] = []
        for batch in openai_format.embedding_batches(texts):
            told = await self._caller.call("embed.text", {"model": model}, {"texts": batch})
            openai_format.check_dimensions(body, told["output"]["dim"])
            rows += told["output"]["embeddings"]
        return JSONResponse(openai_format.embedding_answer(model, rows, as_bytes=as_bytes))

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(self._models().values())})

    async def model(self, request: Request) -> Response:
        found = self._models().get(request.path_params["model"])
        if found is None:
            raise unknown_model(request.path_params["model"])
        return JSONResponse(found)

    def _models(self) -> dict[str, dict[str, Any]]:
        names = [*self._caller.models("llm.chat"), *self._caller.models("embed.text")]
        built_in = self._caller.built_in("llm.chat")
        return {
            name: {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": "accord",
                **({"description": _SMALL} if name in built_in else {}),
            }
            for name in names
        }

    def _check_model(self, capability: str, model: str) -> None:
        if model not in self._caller.models(capability):
            raise unknown_model(model)

    async def _generate(self, request: Request, *, is_chat: bool) -> Response:
        wanted = openai_format.read_completion(await _json(request), is_chat=is_chat)
        self._check_model(wanted.capability, wanted.params["model"])
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{self._ids.new()}"
        writer = openai_format.CompletionAnswer(wanted, name, int(self._clock.now()))
        if not wanted.stream:
            calling = self._caller.call(wanted.capability, wanted.params, wanted.input)
            return JSONResponse(writer.whole(await sse.while_connected(request.receive, calling)))
        frames = self._caller.stream(wanted.capability, wanted.params, wanted.input)
        try:
            # An error before the first frame is answered with its status.
            first = await sse.while_connected(request.receive, _next(frames))
        except BaseException:
            await frames.aclose()
            raise
        return sse.EventStream(_stream_parts(writer, first, frames), held=aclosing(frames))


async def _stream_parts(
    writer: openai_format.CompletionAnswer, first: Frame, frames: AsyncGenerator[Frame]
) -> AsyncGenerator[bytes, None]:
    """Yield a completion as OpenAI's stream of chunks; an error is its last chunk."""
    yield _write(*writer.first(), *writer.chunks(first))
    try:
        async for frame in frames:
            yield _write(*writer.chunks(frame))
    except CommunityError as error:
        yield _write(error_body(error))
    yield sse.write_event(b"[DONE]")


def _write(*chunks: Any) -> bytes:
    return b"".join(sse.write_event(orjson.dumps(chunk)) for chunk in chunks)


async def _next(frames: AsyncGenerator[Frame]) -> Frame:
    return await anext(frames)


async def _json(request: Request) -> Any:
    try:
        raw = await bodies.read(request, bodies.BodyLimits(_MAX_BODY, rate=_MIN_RATE))
        return canonical.decode(raw, max_bytes=_MAX_BODY)
    except bodies.BodyError as error:
        if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise CommunityError(Code.BAD_REQUEST, error.what, mend=error.mend) from None
        raise OpenAiError(
            Code.BAD_REQUEST,
            f"The request is larger than {_MAX_BODY} bytes.",
            param=None,
            openai_code="request_too_large",
        ) from None
    except canonical.CanonicalError as error:
        raise CommunityError(Code.BAD_REQUEST, f"the body is not JSON: {error.what}") from None
