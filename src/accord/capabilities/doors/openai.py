"""OpenAI-compatible routes below `/v1`: completions, embeddings, speech, models."""

import base64
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from accord.capabilities.doors.errors import (
    OpenAiError,
    closed_model,
    error_body,
    error_response,
    missing,
    unknown_model,
    unsupported,
)
from accord.capabilities.doors.guard import DoorAccess, DoorGuard, scope_of
from accord.capabilities.doors.local import BusCaller
from accord.capabilities.doors.rules import Door
from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.web import incoming, sse

# Members that are supported with these values only.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
}
# Those that `llm.complete` does not have.
_CHAT_ONLY: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
}
_SAME: Final = ("temperature", "top_p", "seed")
# What a node offers that has this version of `llm.chat`.
_SHAPED: Final = "1.2"
_REASONS: Final = {"max_tokens": "length"}
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_LONGEST_TEXT: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request as parameters and input of a capability.

    Attributes:
        usage: Whether a stream ends with token counts.
        version: The least version of the capability that can do this.
    """

    capability: str
    params: dict[str, Any]
    input: dict[str, Any]
    stream: bool
    usage: bool
    version: str = "1.0"

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat completion."""
        return self.capability != "llm.complete"

    @property
    def call_params(self) -> dict[str, Any]:
        """The parameters of the call; the model that answers from documents is none."""
        return self.params if self.capability != _ANSWER else {}


def read_completion(body: Any, *, is_chat: bool) -> CompletionRequest:
    """Convert a request, or raise `bad_request` for what is not supported."""
    if not isinstance(body, dict):
        raise bad_request("the body is a JSON object", None)
    refused = _NEUTRAL if is_chat else {**_NEUTRAL, **_CHAT_ONLY}
    for name, neutral in refused.items():
        given = body.get(name)
        if given is not None and given not in neutral:
            raise unsupported(name)
    model = body.get("model")
    if model is None:
        raise missing("model")
    if not isinstance(model, str) or not model:
        raise bad_request("expected the name of a model", "model")
    chosen = {name: body[name] for name in _SAME if body.get(name) is not None}
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is not None:
        chosen["max_tokens"] = most
    version = "1.0"
    stop = body.get("stop")
    if stop is not None:
        chosen["stop"] = [stop] if isinstance(stop, str) else stop
    if is_chat:
        chosen["messages"] = _messages(body.get("messages"))
        chosen |= {name: body[name] for name in ("tools", "tool_choice") if body.get(name)}
        shaping = {
            name: body[name]
            for name, neutral in _CHAT_ONLY.items()
            if body.get(name) is not None and body[name] not in neutral
        }
        chosen |= shaping
        if shaping or any(not isinstance(each["content"], str) for each in chosen["messages"]):
            version = _SHAPED
    else:
        chosen["prompt"] = _prompt(body.get("prompt"))
    stream = body.get("stream") is True
    options = body.get("stream_options")
    return CompletionRequest(
        "llm.chat" if is_chat else "llm.complete",
        {"model": model},
        chosen | {"stream": stream},
        stream,
        isinstance(options, dict) and options.get("include_usage") is True,
        version,
    )


def _messages(given: Any) -> list[dict[str, Any]]:
    if given is None:
        raise missing("messages")
    if not isinstance(given, list) or not given:
        raise bad_request("expected a list of messages", "messages")
    return [_message(each, place) for place, each in enumerate(given)]


def _message(given: Any, place: int) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise bad_request("expected an object with role and content", f"messages[{place}]")
    if given.get("role") not in _ROLES:
        raise OpenAiError(
            Code.BAD_REQUEST,
            f"The role of a message is one of {', '.join(_ROLES)}.",
            param=f"messages[{place}].role",
            openai_code="invalid_value",
        )
    known = ("role", "content", "tool_calls", "tool_call_id")
    message = {name: given[name] for name in known if given.get(name) is not None}
    if message.get("role") == "developer":
        message["role"] = "system"
    content = message.get("content")
    if content is None and message.get("role") == "assistant":
        content = ""  # an assistant that only called tools
    if isinstance(content, list):
        parts = [each if isinstance(each, dict) else {} for each in content]
        if message.get("role") == "user" and any(e.get("type") == "image_url" for e in parts):
            return message | {"content": _parts(parts, f"messages[{place}].content")}
        if any(each.get("type") != "text" for each in parts):
            raise unsupported(
                f"messages[{place}].content", "Only text is offered here, and images from users."
            )
        content = "".join(str(each.get("text", "")) for each in parts)
    return message | {"content": _read_text(content, f"messages[{place}].content")}


def _parts(parts: Sequence[dict[str, Any]], param: str) -> list[dict[str, Any]]:
    """The parts of a message with images, which are in the request: nothing is fetched."""
    found: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        where = f"{param}[{place}]"
        if part.get("type") == "text":
            found.append({"type": "text", "text": _read_text(part.get("text"), f"{where}.text")})
            continue
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if part.get("type") != "image_url" or not isinstance(url, str):
            raise unsupported(where, "Only texts and images are offered here.")
        if not url.startswith("data:image/"):
            raise unsupported(
                f"{where}.image_url.url", "An image is sent as a data: URL; none is fetched."
            )
        found.append({"type": "image_url", "image_url": {"url": url}})
    return found


def _prompt(given: Any) -> str:
    return _read_text(given[0] if isinstance(given, list) and len(given) == 1 else given, "prompt")


def _read_text(given: Any, param: str, longest: int = _LONGEST_TEXT) -> str:
    if not isinstance(given, str):
        raise bad_request("expected a text", param)
    if len(given) > longest:
        raise OpenAiError(
            Code.BAD_REQUEST,
            f"The text has {len(given)} characters, and at most {longest} are taken.",
            param=param,
            openai_code="string_above_max_length",
        )
    return given


class CompletionAnswer:
    """Writes an answer in OpenAI's format; `created` is in whole seconds."""

    def __init__(self, wanted: CompletionRequest, answer_id: str, created: int) -> None:
        self._wanted = wanted
        kind = "chat.completion" if wanted.is_chat else "text_completion"
        is_chunk = wanted.is_chat and wanted.stream
        self._head = {
            "id": answer_id,
            "object": f"{kind}.chunk" if is_chunk else kind,
            "created": created,
            "model": wanted.params["model"],
        }
        self._calls: list[str] = []

    def whole(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a single response."""
        output, meta = answer["output"], answer["meta"]
        calls = output.get("tool_calls", [])
        reason = _reason(meta["stop_reason"], has_calls=bool(calls))
        if self._wanted.is_chat:
            message = dict(output["message"]) | ({"tool_calls": calls} if calls else {})
            choice = {"index": 0, "message": message, "finish_reason": reason}
        else:
            choice = {"index": 0, "text": output["text"], "finish_reason": reason}
        usage = _usage(meta["tokens_in"], meta["tokens_out"])
        return {**self._head, "choices": [choice], "usage": usage}

    def first(self) -> list[dict[str, Any]]:
        """Return the chunks before the first frame."""
        return [self._chunk({"role": "assistant", "content": ""})] if self._wanted.is_chat else []

    def chunks(self, frame: Frame) -> list[dict[str, Any]]:
        """Convert one frame of a stream."""
        data = frame.data
        if frame.event == "token":
            return [self._chunk({"content": data["text"]})]
        if frame.event == "tool_call_delta":
            return [self._chunk({"tool_calls": [self._call(data)]})]
        if frame.event != "done":
            return []
        ended = [self._chunk({}, _reason(data["stop_reason"], has_calls=bool(self._calls)))]
        if self._wanted.usage:
            ended.append(
                {
                    **self._head,
                    "choices": [],
                    "usage": _usage(data.get("tokens_in", 0), data["tokens_out"]),
                }
            )
        return ended

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta}
        if not self._wanted.is_chat:
            said = {"text": delta.get("content", "")}
        return {**self._head, "choices": [{"index": 0, **said, "finish_reason": reason}]}

    def _call(self, data: Mapping[str, Any]) -> dict[str, Any]:
        function = {"arguments": data["arguments_delta"]}
        is_new = data["id"] not in self._calls
        if is_new:
            self._calls.append(data["id"])
        call = {"index": self._calls.index(data["id"]), "function": function}
        if is_new:
            function["name"] = data["name"]
            call |= {"id": data["id"], "type": "function"}
        return call


def _reason(stop_reason: str, *, has_calls: bool) -> str:
    return _REASONS.get(stop_reason) or ("tool_calls" if has_calls else "stop")


def _usage(tokens_in: int, tokens_out: int) -> dict[str, int]:
    return {
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "total_tokens": tokens_in + tokens_out,
    }


TEXTS_PER_CALL: Final = 256
"""The most texts in one call of `embed.text`."""

_MOST_INPUTS: Final = 2048
_LONGEST_INPUT: Final = 8192


def read_embedding(body: Any) -> tuple[str, list[str], bool]:
    """Return model, texts, and whether vectors are wanted as base64; or raise `bad_request`."""
    if not isinstance(body, dict):
        raise bad_request("the body is a JSON object", None)
    texts = [body["input"]] if isinstance(body.get("input"), str) else body.get("input")
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise bad_request("expected a text or a list of texts; tokens are not taken here", "input")
    if not 1 <= len(texts) <= _MOST_INPUTS:
        raise bad_request(f"expected 1 to {_MOST_INPUTS} texts", "input")
    for place, text in enumerate(texts):
        if not _read_text(text, f"input[{place}]", _LONGEST_INPUT):
            raise bad_request("expected a text that is not empty", f"input[{place}]")
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise bad_request("expected float or base64", "encoding_format")
    model = body.get("model")
    if not isinstance(model, str):
        raise bad_request("expected the name of a model", "model")
    return model, texts, form == "base64"


def embedding_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split texts into calls of `embed.text`."""
    for begin in range(0, len(texts), TEXTS_PER_CALL):
        yield list(texts[begin : begin + TEXTS_PER_CALL])


def check_dimensions(body: Any, dimensions: int) -> None:
    """Raise `bad_request` if another vector length than the model's is wanted."""
    if body.get("dimensions") not in (None, dimensions):
        raise bad_request(f"the vectors have {dimensions} dimensions", "dimensions")


def embedding_answer(
    model: str, rows: Sequence[Sequence[float]], *, as_bytes: bool
) -> dict[str, Any]:
    """Convert vectors to an answer. Tokens are not counted, so their number is 0."""
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _bytes(row) if as_bytes else row}
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


def _bytes(row: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode()


_log = structlog.stdlib.get_logger(__name__)

_MAX_BODY: Final = 8 * 1024 * 1024
_MIN_RATE: Final = 64 * 1024
_SMALL: Final = "the small built-in model"
_ANSWER: Final = "experimental.rag.answer"
_CONCIERGE: Final = "answers from the community's documents, with sources, by its best model"
_LONGEST_QUESTION: Final = 4000
_TRANSCRIBE: Final = "experimental.stt.transcribe"
_SPEAK: Final = "experimental.tts.speak"
_LONGEST_SPEECH: Final = 4000
_MOST_AUDIO: Final = 5 * 1024 * 1024

CONCIERGE: Final = "concierge"
"""The model that answers from documents."""


def openai_routes(
    caller: BusCaller, clock: Clock, access: DoorAccess, *, network: bool = False
) -> Sequence[Route]:
    """Return the routes, each behind a `DoorGuard`."""
    door = _OpenAiApi(caller, clock)
    paths: Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = (
        ("/v1/chat/completions", "POST", door.chat),
        ("/v1/completions", "POST", door.complete),
        ("/v1/embeddings", "POST", door.embed),
        ("/v1/audio/transcriptions", "POST", door.transcribe),
        ("/v1/audio/speech", "POST", door.speak),
        ("/v1/models", "GET", door.models),
        ("/v1/models/{model:path}", "GET", door.model),
    )
    return [
        Route(
            path,
            DoorGuard(_OpenAiEndpoint(serve), access, Door.OPENAI, network=network),
            methods=[method],
        )
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
        model, texts, as_bytes = read_embedding(body)
        await self._check_model(request, "embed.text", model)
        rows: list[list[float]] = []
        for batch in embedding_batches(texts):
            told = await self._caller.call("embed.text", {"model": model}, {"texts": batch})
            check_dimensions(body, told["output"]["dim"])
            rows += told["output"]["embeddings"]
        return JSONResponse(embedding_answer(model, rows, as_bytes=as_bytes))

    async def transcribe(self, request: Request) -> Response:
        form, audio = await _form(request)
        model, wanted = _model_of(form), form.get("response_format", "json")
        if wanted not in ("json", "text"):
            raise unsupported("response_format", "Only json and text are offered here.")
        await self._check_model(request, _TRANSCRIBE, model)
        given = {"audio": base64.b64encode(audio).decode()}
        language = form.get("language")
        if isinstance(language, str) and language:
            given["language"] = language
        calling = self._caller.call(_TRANSCRIBE, {"model": model}, given)
        told = await sse.while_connected(request.receive, calling)
        text = told["output"]["text"]
        return JSONResponse({"text": text}) if wanted == "json" else PlainTextResponse(f"{text}\n")

    async def speak(self, request: Request) -> Response:
        body = await _json(request)
        if not isinstance(body, dict):
            raise bad_request("the body is a JSON object", None)
        model, wanted = _model_of(body), body.get("response_format", "wav")
        if wanted != "wav" or body.get("stream_format", "audio") != "audio":
            raise unsupported("response_format", "Only wav is offered here, as a whole.")
        await self._check_model(request, _SPEAK, model)
        given: dict[str, Any] = {"text": _read_text(body.get("input"), "input", _LONGEST_SPEECH)}
        # Names of OpenAI's voices mean nothing to an engine of languages.
        given |= {name: body[name] for name in ("voice", "speed", "language") if name in body}
        calling = self._caller.call(_SPEAK, {"model": model}, given)
        told = (await sse.while_connected(request.receive, calling))["output"]
        return Response(base64.b64decode(told["audio"]), media_type=told["media_type"])

    async def models(self, request: Request) -> Response:
        listed = (await self._models(request)).values()
        return JSONResponse({"object": "list", "data": list(listed)})

    async def model(self, request: Request) -> Response:
        found = (await self._models(request)).get(request.path_params["model"])
        if found is None:
            raise unknown_model(request.path_params["model"])
        return JSONResponse(found)

    async def _models(self, request: Request) -> dict[str, dict[str, Any]]:
        found = {}
        if _ANSWER in self._caller.descriptors():
            found[CONCIERGE] = _listed(CONCIERGE, "accord", _CONCIERGE)
        for capability in ("llm.chat", "embed.text", _TRANSCRIBE, _SPEAK):
            for name, model in (await self._caller.models(capability)).items():
                owner = self._caller.node_name(model.nodes[0])
                found.setdefault(name, _listed(name, owner, _SMALL if model.built_in else ""))
        scope = scope_of(request.scope)
        return {name: each for name, each in found.items() if scope.allows_model(name)}

    async def _check_model(self, request: Request, capability: str, model: str) -> None:
        if not scope_of(request.scope).allows_model(model):
            raise closed_model(model)
        if model not in await self._caller.models(capability):
            raise unknown_model(model)

    async def _generate(self, request: Request, *, is_chat: bool) -> Response:
        wanted = read_completion(await _json(request), is_chat=is_chat)
        model = wanted.params["model"]
        if is_chat and model == CONCIERGE and scope_of(request.scope).allows_model(model):
            wanted = _to_concierge(wanted)
        else:
            await self._check_model(request, wanted.capability, model)
        name = f"{'chatcmpl' if is_chat else 'cmpl'}-{self._ids.new()}"
        writer = CompletionAnswer(wanted, name, int(self._clock.now()))
        if not wanted.stream:
            calling = self._caller.call(
                wanted.capability, wanted.call_params, wanted.input, version=wanted.version
            )
            return JSONResponse(writer.whole(await sse.while_connected(request.receive, calling)))
        frames = self._caller.stream(
            wanted.capability, wanted.call_params, wanted.input, version=wanted.version
        )
        try:
            # An error before the first frame is answered with its status.
            first = await sse.while_connected(request.receive, _next(frames))
        except BaseException:
            await frames.aclose()
            raise
        return sse.EventStream(_stream_parts(writer, first, frames), held=aclosing(frames))


def _listed(name: str, owner: str, about: str) -> dict[str, Any]:
    listed = {"id": name, "object": "model", "created": 0, "owned_by": owner}
    return listed | ({"description": about} if about else {})


def _to_concierge(wanted: CompletionRequest) -> CompletionRequest:
    """The last question of a chat, to be answered from documents."""
    asked = [each for each in wanted.input["messages"] if each["role"] == "user"]
    question = asked[-1]["content"] if asked else ""
    if wanted.version != "1.0":
        raise unsupported("messages", "This model reads text and answers with text.")
    if not 0 < len(question) <= _LONGEST_QUESTION:
        raise bad_request(
            f"the last message of the user is a question of 1 to {_LONGEST_QUESTION} characters",
            "messages",
        )
    given = {"question": question, "stream": wanted.stream}
    return replace(wanted, capability=_ANSWER, params={"model": CONCIERGE}, input=given)


async def _stream_parts(
    writer: CompletionAnswer, first: Frame, frames: AsyncGenerator[Frame]
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


def _model_of(given: Mapping[str, Any]) -> str:
    model = given.get("model")
    if model is None:
        raise missing("model")
    if not isinstance(model, str) or not model:
        raise bad_request("expected the name of a model", "model")
    return model


async def _form(request: Request) -> tuple[FormData, bytes]:
    """Read a form and its file, of no more than a body may have."""
    raw = await _body(request)
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        raise bad_request("the body is a form with a file", None)

    async def parts() -> AsyncGenerator[bytes]:
        yield raw

    try:
        reader = MultiPartParser(
            request.headers, parts(), max_files=1, max_fields=20, max_part_size=_MAX_BODY
        )
        form = await reader.parse()
    except MultiPartException as error:
        raise bad_request(f"the form cannot be read: {error.message}", None) from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise missing("file")
        audio = await file.read()
    finally:
        await form.close()
    if not 0 < len(audio) <= _MOST_AUDIO:
        raise bad_request(f"expected a recording of 1 to {_MOST_AUDIO} bytes", "file")
    return form, audio


async def _json(request: Request) -> Any:
    try:
        return canonical.decode(await _body(request), max_bytes=_MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad_request(f"the body is not JSON: {error.what}") from None


async def _body(request: Request) -> bytes:
    try:
        return await incoming.read(request, incoming.BodyLimits(_MAX_BODY, rate=_MIN_RATE))
    except incoming.BodyError as error:
        if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise bad_request(error.what, mend=error.mend) from None
        raise OpenAiError(
            Code.BAD_REQUEST,
            f"The request is larger than {_MAX_BODY} bytes.",
            param=None,
            openai_code="request_too_large",
        ) from None
