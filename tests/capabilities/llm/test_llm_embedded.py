"""llama.cpp in this process, at its edges."""

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from accord.capabilities import llm, models
from accord.capabilities.llm import (
    EmbeddedBackend,
    GenerationEnd,
    GenerationRequest,
    PromptRead,
    StopReason,
    TextPiece,
    read_request,
)
from accord.capabilities.models import LanguageWeights
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import open_node
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

SMOL = "smollm2-135m-instruct"


def asked(prompt: str, model: str = SMOL, **given: Any) -> GenerationRequest:
    return read_request({"params": {"model": model}, "input": {"prompt": prompt, **given}})


async def test_it_counts_speaks_and_ends_and_others_cannot_use_its_port() -> None:
    import httpx

    backend = EmbeddedBackend(models.language_models(), ctx=256, max_concurrent=1, threads=1)
    found = [piece async for piece in backend.generate(asked("One, two,", max_tokens=3))]
    assert isinstance(found[0], PromptRead)
    assert all(isinstance(piece, TextPiece) for piece in found[1:-1])
    assert found[-1] == GenerationEnd(StopReason.MAX_TOKENS, found[0].tokens_in, 3)
    address = backend._loaded[SMOL].server.listening_address
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{address}/v1/completions", json={"prompt": "Once"})
    assert answer.status_code == 401
    with pytest.raises(CommunityError) as refused:
        async for _ in backend.generate(asked("word " * 400)):
            pass
    assert refused.value.code is Code.BAD_REQUEST
    assert "256 tokens" in str(refused.value)
    await backend.aclose()


async def test_closing_ends_what_is_under_way() -> None:
    backend = EmbeddedBackend(models.language_models(), ctx=512, max_concurrent=1, threads=1)
    async with aclosing(backend.generate(asked("Once upon a time", max_tokens=400))) as pieces:
        await anext(pieces)
        assert backend.under_way == 1
        await asyncio.wait_for(backend.aclose(), 60)
        assert backend.under_way == 0


async def test_a_file_that_is_no_model_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\x00" * 100)
    weights = [LanguageWeights("broken", None, file)]
    backend = EmbeddedBackend(weights, ctx=256, max_concurrent=1, threads=1)
    for _ in range(2):
        with pytest.raises(CommunityError) as refused:
            async for _ in backend.generate(asked("Once", "broken")):
                pass
        assert refused.value.code is Code.NOT_IMPLEMENTED
    await backend.aclose()


async def test_the_built_in_model_is_marked_and_ends_where_it_repeats_itself(
    tmp_path: Path,
) -> None:
    (weights,) = models.language_models()
    assert weights.built_in
    copy = tmp_path / weights.path.name
    copy.symlink_to(weights.path)
    assert [each.built_in for each in models.language_models(tmp_path)] == [False]
    backend = EmbeddedBackend([weights], ctx=1024, max_concurrent=1, threads=1)
    clock = SystemClock()
    key = SigningKey.from_seed(b"r" * 32)
    async with open_node(key, home=tmp_path, stores=tmp_path / "stores", clock=clock) as node:
        await node.found("Our street", {})
        llm.register(node, clock, [backend], llm.GenerationQueue(max_concurrent=1, max_waiting=0))
        offer = node.bus.registry.serving("llm.chat", None)
        assert offer is not None
        assert offer.params["built_in"] == [SMOL]
        (community,) = node.communities
        async with Client(
            "http://node", key, community, key.id, transport=LocalTransport(node.application())
        ) as client:
            given = {
                "messages": [{"role": "user", "content": "Write a poem about rain."}],
                "max_tokens": 600,
                "seed": 7,
                "stream": False,
            }
            answer = await client.call("llm.chat", {"model": SMOL}, given)
    await backend.aclose()
    assert answer["meta"]["stop_reason"] == "end"
    assert answer["meta"]["tokens_out"] < 600
    lines = Counter(answer["output"]["message"]["content"].split("\n"))
    assert max(times for line, times in lines.items() if len(line) > 20) <= 2
