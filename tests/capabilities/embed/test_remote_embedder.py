"""An embedding model behind an OpenAI-compatible server on a real socket."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tests.fakes.embedding_server import DIMENSIONS, LONGEST, EmbeddingServer, embedding_server

from accord.capabilities import embed, models
from accord.capabilities.models import Embedder
from accord.capabilities.settings import ModelsSettings
from accord.community.errors import Code, CommunityError


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as made:
        yield made


def settings(url: str, more: str = "", **told: Any) -> ModelsSettings:
    return ModelsSettings(embedder=f"{url} polyglot {more}", **told)


def vectors(*rows: Any) -> bytes:
    data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
    return json.dumps({"data": data}).encode()


async def test_texts_of_four_languages_with_one_meaning_are_near(server: EmbeddingServer) -> None:
    told = ("en", "de")
    async with embed.open_embedder(
        settings(server.url, embedder_languages=told, embedder_threshold=0.6)
    ) as batcher:
        embedder: Embedder = batcher
        assert (embedder.model, embedder.dimensions) == ("polyglot", DIMENSIONS)
        assert (batcher.profile.languages, batcher.profile.threshold) == (told, 0.6)
        texts = ["clean water", "Wasser reinigen", "limpiar el agua", "净水", "bread"]
        rows = await embedder.embed(texts)
    assert np.allclose(rows[:4] @ rows[0], 1)
    assert rows[4] @ rows[0] == 0
    assert len({len(each) for each in server.heard}) == 2, "all texts in one request"


async def test_many_texts_go_in_several_requests_and_keep_their_order(
    server: EmbeddingServer,
) -> None:
    async with embed.open_embedder(settings(server.url, f"dim={DIMENSIONS}")) as embedder:
        texts = [f"{n} {'water' if n % 3 else 'bread'}" for n in range(150)]
        rows = await embedder.embed(texts)
    assert [len(each) for each in server.heard] == [64, 64, 22]
    assert [bool(row[0]) for row in rows] == [bool(n % 3) for n in range(150)]


async def test_a_text_that_the_server_refuses_fails_for_its_caller_only(
    server: EmbeddingServer,
) -> None:
    async with embed.open_embedder(settings(server.url)) as embedder:
        long = "water " * LONGEST
        with pytest.raises(CommunityError) as caught:
            await embedder.embed(["bread", long, "water", ""])
        assert caught.value.code is Code.BAD_REQUEST
        before = len(server.heard)
        assert (await embedder.embed(["bread", "water", ""])).shape == (3, DIMENSIONS)
        assert len(server.heard) == before, "the others were computed and are remembered"


BAD: dict[str, bytes] = {
    "no JSON": b"<html>",
    "no object": b"[]",
    "no data": b"{}",
    "too few": vectors(),
    "too many": vectors([1.0] * DIMENSIONS, [1.0] * DIMENSIONS),
    "no row": b'{"data": [7]}',
    "an index beyond": b'{"data": [{"index": 9, "embedding": [1, 2]}]}',
    "no numbers": vectors(["a"] * DIMENSIONS),
    "not finite": b'{"data": [{"index": 0, "embedding": [NaN,1,1,1,1,1,1,1]}]}',
    "too large": b'{"data": [{"index": 0, "embedding": [1e300,1,1,1,1,1,1,1]}]}',
    "empty": vectors([]),
    "nested": b"[" * 100_000,
    "other dimensions": vectors([1.0] * 3),
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_an_answer_that_is_no_embedding_is_refused_and_the_next_is_taken(
    raw: bytes, server: EmbeddingServer
) -> None:
    async with embed.open_embedder(settings(server.url)) as embedder:
        server.raw = raw
        with pytest.raises(CommunityError) as caught:
            await embedder.embed(["water"])
        assert caught.value.code in (Code.PARTITION, Code.INTERNAL_ERROR)
        server.raw = None
        assert (await embedder.embed(["water"])).shape == (1, DIMENSIONS)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, Code.INTERNAL_ERROR),
        (404, Code.NOT_IMPLEMENTED),
        (422, Code.BAD_REQUEST),
        (429, Code.CAPACITY_EXCEEDED),
        (500, Code.INTERNAL_ERROR),
    ],
)
async def test_a_refusal_of_the_server_says_what_it_is(
    status: int, code: Code, server: EmbeddingServer
) -> None:
    async with embed.open_embedder(settings(server.url)) as embedder:
        server.status = status
        with pytest.raises(CommunityError) as caught:
            await embedder.embed(["water"])
    assert caught.value.code is code


async def test_only_the_embedder_gets_its_key_and_no_error_has_it(server: EmbeddingServer) -> None:
    told = settings(server.url, embedder_key="sk-secret")
    async with embed.open_embedder(told) as embedder:
        server.status = 401
        with pytest.raises(CommunityError) as caught:
            await embedder.embed(["water"])
    assert set(server.keys) == {"Bearer sk-secret"}
    assert "sk-secret" not in f"{told!r} {caught.value}"


async def test_a_server_that_is_away_is_needed_at_the_start_unless_its_dimensions_are_told() -> (
    None
):
    with embedding_server() as gone:
        url = gone.url
    with pytest.raises(CommunityError) as caught:
        async with embed.open_embedder(settings(url)):
            pass
    assert caught.value.code is Code.PARTITION
    async with embed.open_embedder(settings(url, "dim=8")) as embedder:
        assert embedder.dimensions == DIMENSIONS
        with pytest.raises(CommunityError):
            await embedder.embed(["water"])


@pytest.mark.parametrize(
    "line",
    [
        "bge-m3",
        "http://127.0.0.1:1/v1",
        "http://127.0.0.1:1/v1 one two",
        "http://user@127.0.0.1:1/v1 one",
        "http://127.0.0.1:1/v1 one dim=0",
        "http://127.0.0.1:1/v1 one dim=8 dim=9",
        "http://127.0.0.1:1/v1 at_once=2 one",
    ],
)
def test_a_line_that_names_no_single_model_of_a_server_is_refused(line: str) -> None:
    with pytest.raises(ValidationError):
        ModelsSettings(embedder=line)


@pytest.mark.slow
async def test_the_built_in_model_behind_a_server_gives_the_same_vectors() -> None:
    model = embed.MiniLM(models.embedding_model(), threads=1)
    texts = ["How do I clean rain water?", "Bread is baked."]
    with embedding_server(lambda asked: model.vectors(asked).tolist()) as server:
        line = f"{server.url} {models.MINILM}"
        async with embed.open_embedder(ModelsSettings(embedder=line)) as remote:
            rows = await remote.raw(texts)
    assert rows.shape == (2, models.MINILM_DIMENSIONS)
    assert np.allclose(rows, model.vectors(texts), atol=1e-5)
