"""llama.cpp in this process, at its edges."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from accord.capabilities import models
from accord.capabilities.llm.asking import Asked, read
from accord.capabilities.llm.embedded import EmbeddedBackend
from accord.capabilities.llm.pieces import Ended, Read, StopReason, Text
from accord.capabilities.models import LanguageWeights
from accord.community.errors import Code, CommunityError

SMOL = "smollm2-135m-instruct"


def asked(prompt: str, model: str = SMOL, **given: Any) -> Asked:
    return read({"params": {"model": model}, "input": {"prompt": prompt, **given}})


async def test_it_counts_speaks_and_ends_and_others_cannot_use_its_port() -> None:
    import httpx

    backend = EmbeddedBackend(models.language_models(), ctx=256, max_concurrent=1, threads=1)
    found = [piece async for piece in backend.generate(asked("One, two,", max_tokens=3))]
    assert isinstance(found[0], Read)
    assert all(isinstance(piece, Text) for piece in found[1:-1])
    assert found[-1] == Ended(StopReason.MAX_TOKENS, found[0].tokens_in, 3)
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
