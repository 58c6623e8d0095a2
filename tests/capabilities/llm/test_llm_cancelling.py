"""A generation ends soon after its client has left, counted in what the model still makes.

The specification allows 200 ms. Tests assert no times, so what counts here are tokens: a small
model makes some ten in that time, and would make hundreds if nobody told it. The milliseconds are
in `bench/capabilities_llm.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_llm_capability import SMOL, Builder, Street, until

from accord.capabilities import models
from accord.capabilities.llm import EmbeddedBackend

pytestmark = pytest.mark.slow

MOST = 20
WANTED = 200
PROMPT = "One, two, three,"
LONG_PROMPT = "word " * 380


class Counted:
    """llama.cpp, with a count of the chunks that it has called back with."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.read = 0
        self.said = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def handle_completions(self, body: dict[str, Any], tell: Callable[[Any], bool]) -> Any:
        def hear(chunk: Any) -> bool:
            if any(choice.get("text") for choice in chunk.get("choices", ())):
                self.said += 1
            else:
                self.read += 1
            return tell(chunk)

        return self._server.handle_completions(body, hear)


class Speaker:
    """A node with the real model, whose tokens are counted."""

    def __init__(self, street: Street, backend: EmbeddedBackend, counted: Counted) -> None:
        self.street = street
        self.backend = backend
        self.counted = counted

    async def ended(self) -> None:
        queue = self.street.generations
        await until(lambda: not (queue.running or queue.waiting or self.backend.under_way))


@pytest.fixture
async def speaker(tmp_path: Path) -> AsyncIterator[Speaker]:
    backend = EmbeddedBackend(models.language_models(), ctx=512, max_concurrent=1, threads=1)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(backend.aclose)
        loaded = await backend._load(SMOL)
        counted = Counted(loaded.server)
        backend._loaded[SMOL] = replace(loaded, server=counted)
        yield Speaker(await Builder(tmp_path, opened).street(backend), backend, counted)


def given(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": WANTED, "temperature": 0}


async def test_few_tokens_are_made_after_a_client_has_left(speaker: Speaker) -> None:
    counted = speaker.counted
    for _ in range(3):
        async with speaker.street.client() as client:
            frames = client.stream("llm.complete", {"model": SMOL}, given(PROMPT))
            async with aclosing(frames):  # type: ignore[type-var]
                for _ in range(4):
                    assert (await anext(frames)).event == "token"
                before = counted.said
        await speaker.ended()
        assert counted.said - before <= MOST
        counted.said = 0


async def test_a_client_that_leaves_while_its_prompt_is_read_ends_the_reading(
    speaker: Speaker,
) -> None:
    counted = speaker.counted
    async with speaker.street.client() as client:
        frames = client.stream("llm.complete", {"model": SMOL}, given(LONG_PROMPT))
        async with aclosing(frames):  # type: ignore[type-var]
            asked = asyncio.ensure_future(anext(frames))
            await until(lambda: counted.read > 0)
            assert not counted.said
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
    await speaker.ended()
    assert counted.said <= MOST


async def test_a_client_that_stays_gets_all_that_it_asked_for(speaker: Speaker) -> None:
    frames = await speaker.street.frames("llm.complete", SMOL, given(PROMPT))
    assert frames[-1].data["tokens_out"] == WANTED, "so that the others had something to cut short"
    assert speaker.counted.said > 4 * MOST
