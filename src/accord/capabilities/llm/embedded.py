"""llama.cpp in this process: language models from GGUF files.

A model is loaded when it is first used; each generation has a thread, in which the library calls
back chunk by chunk. The library also listens on a loopback port, which cannot be turned off; a
random API key protects it.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import httpx
import structlog

from accord.capabilities import models
from accord.capabilities.llm.rules import generation
from accord.capabilities.llm.rules.generation import BackendModel, GenerationRequest, Piece
from accord.capabilities.models import LanguageWeights
from accord.community.errors import Code, CommunityError, bad_request
from accord.web import outgoing

_log = structlog.stdlib.get_logger(__name__)

_CLIENT_ERRORS: Final = range(400, 500)
_BUSY: Final = 503
_TOO_LONG: Final = "exceed_context_size_error"
_SEEDS: Final = 2**32 - 1  # the last one stands for "any"


@dataclass(slots=True)
class _Loaded:
    server: Any
    key: str
    offers_tools: bool


class EmbeddedBackend:
    """Runs the models on this disk.

    Args:
        ctx: In tokens, for each generation.
        batch: Tokens of a prompt that are read at once. The library checks for cancellation
            between batches: a caller who leaves meanwhile should be noticed within 200 ms.
        gpu_layers: Layers on the GPU; -1 for as many as fit.
        main_gpu: The GPU that is used, or that holds small tensors.
    """

    def __init__(
        self,
        weights: Sequence[LanguageWeights],
        *,
        ctx: int,
        max_concurrent: int,
        threads: int,
        batch: int = 12,
        gpu_layers: int = -1,
        main_gpu: int = 0,
    ) -> None:
        self._weights = {each.name: each for each in weights}
        self._ctx = ctx
        self._max_concurrent = max_concurrent
        self._threads = threads
        self._batch = batch
        self._gpu_layers = gpu_layers
        self._main_gpu = main_gpu
        self._loaded: dict[str, _Loaded] = {}
        self._loading = asyncio.Lock()
        self._executor = ThreadPoolExecutor(max_concurrent, "llama")
        self._under_way: dict[asyncio.Future[None], threading.Event] = {}

    @property
    def models(self) -> Sequence[BackendModel]:
        """The models on this disk."""
        return [
            BackendModel(each.name, self._ctx, each.quant, built_in=each.built_in)
            for each in self._weights.values()
        ]

    @property
    def under_way(self) -> int:
        """The number of generations that have a thread."""
        return len(self._under_way)

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[Piece]:
        """Generate; see `Backend`."""
        loaded = await self._load(asked.model)
        if asked.tools and not loaded.offers_tools:
            raise CommunityError(
                Code.NOT_IMPLEMENTED,
                f"{asked.model} does not support tools",
                where="/input/tools",
                details={"unsupported": "tools"},
                mend="leave them out, or ask for another model",
            )
        if asked.has_images:
            raise CommunityError(
                Code.NOT_IMPLEMENTED,
                f"{asked.model} does not read images",
                where="/input/messages",
                details={"unsupported": "images"},
                mend="leave them out, or ask for a model of a server that does",
            )
        server = loaded.server
        ask = (
            server.handle_completions if asked.messages is None else server.handle_chat_completions
        )
        reader = generation.AnswerReader()
        chunks: asyncio.Queue[Any] = asyncio.Queue()  # no longer than the answer
        gone = threading.Event()
        working = self._begin(ask, _body(asked), chunks, gone)
        try:
            while (chunk := await chunks.get()) is not None:
                _check(chunk)
                for piece in reader.read(chunk):
                    yield piece
            working.result()
            yield reader.ended()
        finally:
            gone.set()
            await asyncio.wait([working])

    async def aclose(self) -> None:
        """Cancel all generations and unload the models."""
        for gone in self._under_way.values():
            gone.set()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        await asyncio.to_thread(self._loaded.clear)
        self._executor.shutdown(wait=False)

    def _begin(
        self,
        ask: Callable[..., Any],
        body: dict[str, Any],
        chunks: "asyncio.Queue[Any]",
        gone: threading.Event,
    ) -> "asyncio.Future[None]":
        """Generate in a thread: chunks go to the queue, and None at the end."""
        loop = asyncio.get_running_loop()

        def tell(chunk: Any) -> bool:
            if not gone.is_set():
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            return gone.is_set()

        def work() -> None:
            try:
                if not gone.is_set():
                    ask(body, tell)
            except ValueError as error:  # what it says of a request that it cannot read
                raise bad_request(str(error)[:300]) from error

        def end(done: "asyncio.Future[None]") -> None:
            del self._under_way[done]
            chunks.put_nowait(None)

        working = asyncio.ensure_future(loop.run_in_executor(self._executor, work))
        self._under_way[working] = gone
        working.add_done_callback(end)
        return working

    async def _load(self, name: str) -> _Loaded:
        async with self._loading:
            if name not in self._loaded:
                self._loaded[name] = await self._open(self._weights[name])
            return self._loaded[name]

    async def _open(self, weights: LanguageWeights) -> _Loaded:
        library = models.library("xllamacpp")
        key = secrets.token_urlsafe(32)
        try:
            server = await asyncio.to_thread(self._serve, library, weights, key)
        except (RuntimeError, ValueError, OSError) as error:
            raise CommunityError(
                Code.NOT_IMPLEMENTED,
                f"the model {weights.name} cannot be loaded ({error})",
                mend="ask for another model; its owner may look at the file",
            ) from error
        offers_tools = await _offers_tools(server.listening_address, key)
        _log.info("language model loaded", model=weights.name, tools=offers_tools)
        return _Loaded(server, key, offers_tools)

    def _serve(self, library: Any, weights: LanguageWeights, key: str) -> Any:
        params = library.CommonParams()
        params.model.path = str(weights.path)
        params.n_ctx = self._ctx * self._max_concurrent
        params.n_parallel = self._max_concurrent
        params.n_batch = params.n_ubatch = self._batch
        params.n_gpu_layers = self._gpu_layers
        params.main_gpu = self._main_gpu
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.n_threads_http = 1
        params.api_keys = [key]
        params.cache_ram_mib = 0
        params.warmup = params.ui = False
        params.verbosity = 0
        return library.Server(params)


async def _offers_tools(address: str, key: str) -> bool:
    """Whether a model's chat template supports tools."""
    named = {"Authorization": f"Bearer {key}"}
    with suppress(httpx.HTTPError, ValueError):
        async with outgoing.bounded_client(outgoing.SMALL, trust_env=False) as http:
            told = (await http.get(f"{address}/props", headers=named)).json()
        return told.get("chat_template_caps", {}).get("supports_tools") is True
    return False


def _body(asked: GenerationRequest) -> dict[str, Any]:
    """The request, with the options by which tokens are counted."""
    body = generation.request_body(asked) | {"return_progress": True, "timings_per_token": True}
    if asked.messages is None:
        body["logprobs"] = 1
    elif not asked.tools:  # the library has no probabilities for the pieces of a tool call
        body |= {"logprobs": True, "top_logprobs": 1}
    if asked.seed is not None:
        body["seed"] = asked.seed % _SEEDS
        body["cache_prompt"] = False  # what was computed in another batch rounds differently
    return body


def _check(chunk: Any) -> None:
    told = chunk.get("error") if isinstance(chunk, dict) else None
    if not isinstance(told, dict):
        return
    code, message = told.get("code"), str(told.get("message", "no reason given"))[:300]
    if told.get("type") == _TOO_LONG:
        tokens, most = told.get("n_prompt_tokens"), told.get("n_ctx")
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the input has {tokens} tokens, and the context of this model has {most} tokens",
            mend="send less, or give the model more with [models] ctx",
            details={"context_length": most},
        )
    if code in _CLIENT_ERRORS:
        raise bad_request(f"the model refuses this: {message}")
    if code == _BUSY:
        raise CommunityError(Code.CAPACITY_EXCEEDED, message, details={"retry_after_ms": 1000})
    raise RuntimeError(f"llama.cpp failed: {message}")
