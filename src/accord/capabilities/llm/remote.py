"""An OpenAI-compatible server by its address: Ollama, vLLM, llama.cpp and others.

The address comes from the settings; nothing in a call changes where a request goes.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import structlog

from accord.capabilities.llm.rules import generation
from accord.capabilities.llm.rules.generation import BackendModel, GenerationRequest, Piece
from accord.community.errors import Code, CommunityError, bad_request
from accord.web import outgoing

_log = structlog.stdlib.get_logger(__name__)

_MAX_LINE: Final = 1024 * 1024
_MAX_REFUSAL: Final = 4096
_MAX_LIST: Final = 1024 * 1024
_LIST_SECONDS: Final = 5.0
_DONE: Final = b"[DONE]"
_REFUSED: Final = frozenset({400, 422})
_BUSY: Final = frozenset({429, 503})
# Members that some servers refuse; they are left out after the first refusal.
_EXTRAS: Final = {"stream_options": {"include_usage": True}, "logprobs": True}


class RemoteBackend:
    """Uses one server.

    Args:
        url: Such as `http://127.0.0.1:11434/v1`.
        names: The models to use there; empty for those that it lists, by `discover`.
        key: The API key; empty for none.
        seconds: The longest time without a byte from the server.
        transport: Replaces the socket, for tests.
    """

    def __init__(
        self,
        url: str,
        names: Sequence[str],
        *,
        key: str = "",
        seconds: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._models = tuple(map(BackendModel, names))
        self._is_named = bool(names)
        self._extras = True
        self._url = url
        self._http = outgoing.bounded_client(
            None,  # an answer may go on for long; its lines and refusals are bounded below
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(seconds, connect=10.0),
            transport=transport,
            trust_env=False,
        )

    @property
    def models(self) -> Sequence[BackendModel]:
        """The models to use there."""
        return self._models

    async def discover(self) -> None:
        """Learn the models of a server that were not named; none while it cannot be reached."""
        if self._is_named:
            return
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                async with self._http.stream("GET", f"{self._url}/models") as answer:
                    raw = await outgoing.read_bounded(answer, _MAX_LIST)
                    answer.raise_for_status()
            found = generation.listed_models(json.loads(raw))
        except (httpx.HTTPError, ValueError, TimeoutError, RecursionError) as error:
            found = []
            if self._models:
                _log.warning(
                    "model server not reachable", url=self._url, error=type(error).__name__
                )
        if {each.name for each in found} != {each.name for each in self._models}:
            _log.info("models of a server", url=self._url, models=[each.name for each in found])
        self._models = tuple(found)

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        """Generate; see `Backend`."""
        reader = generation.AnswerReader()
        try:
            async with self._open(asked) as answer:
                async for chunk in _chunks(answer):
                    for piece in reader.read(chunk):
                        yield piece
        except httpx.TimeoutException as error:
            raise self._lost(Code.TIMEOUT, error) from error
        except httpx.HTTPError as error:
            raise self._lost(Code.PARTITION, error) from error
        yield reader.ended()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    @asynccontextmanager
    async def _open(self, asked: GenerationRequest) -> AsyncIterator[httpx.Response]:
        path = "completions" if asked.messages is None else "chat/completions"
        body = generation.request_body(asked)
        if asked.ctx is not None:
            body["max_tokens"] = min(asked.max_tokens, asked.ctx)
        extras = _EXTRAS if asked.messages is not None else {**_EXTRAS, "logprobs": 1}
        if self._extras:
            async with self._post(path, body | extras) as answer:
                if answer.status_code not in _REFUSED:
                    yield await self._accepted(answer, asked)
                    return
        async with self._post(path, body) as answer:
            accepted = await self._accepted(answer, asked)
            self._extras = False
            yield accepted

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.stream("POST", f"{self._url}/{path}", json=body)

    async def _accepted(self, answer: httpx.Response, asked: GenerationRequest) -> httpx.Response:
        status = answer.status_code
        if status == httpx.codes.OK:
            return answer
        said = await _refusal(answer)
        _log.warning("model server refused a request", url=self._url, status=status, said=said)
        if status == httpx.codes.NOT_FOUND:
            raise CommunityError(
                Code.NOT_IMPLEMENTED, f"the server of {asked.model} does not offer it now"
            )
        if status in _REFUSED:
            raise bad_request(f"the server of {asked.model} says: {said}")
        if status in _BUSY:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                f"the server of {asked.model} is busy",
                details={"retry_after_ms": 2000},
            )
        raise CommunityError(
            Code.INTERNAL_ERROR, f"the server of {asked.model} refuses this node ({status})"
        )

    def _lost(self, code: Code, error: Exception) -> CommunityError:
        _log.warning("model server not reachable", url=self._url, error=type(error).__name__)
        return CommunityError(
            code, f"the model's server cannot be reached ({type(error).__name__})"
        )


async def _chunks(answer: httpx.Response) -> AsyncIterator[Any]:
    """Yield the events of an answer; `partition` if it is malformed or breaks off."""
    waiting = b""
    async for part in answer.aiter_bytes():
        *lines, waiting = (waiting + part).split(b"\n")
        if len(waiting) > _MAX_LINE:
            break
        for line in lines:
            name, _, data = line.strip().partition(b":")
            if name != b"data":
                continue
            if data.strip() == _DONE:
                return
            yield _parse(data)
    raise CommunityError(Code.PARTITION, "the model's server broke off its answer")


def _parse(data: bytes) -> Any:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CommunityError(
            Code.PARTITION, "the model's server sends something that is not JSON"
        ) from error
    if isinstance(chunk, dict) and chunk.get("error"):
        raise CommunityError(Code.INTERNAL_ERROR, "the model's server failed in its answer")
    return chunk


async def _refusal(answer: httpx.Response) -> str:
    """The server's error message, truncated."""
    raw = b""
    async for part in answer.aiter_bytes():
        raw += part[:_MAX_REFUSAL]
        if len(raw) >= _MAX_REFUSAL:
            break
    try:
        told = json.loads(raw)
        error = told.get("error", told) if isinstance(told, dict) else told
        said = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        said = raw.decode("utf-8", "replace")
    return str(said)[:300]
