import json
from importlib import resources
from typing import Any

import pytest

from accord.capabilities import settings

RAG = resources.files("accord.capabilities.rag").joinpath("data")
SCHEMAS = [
    *(RAG.joinpath(f"rag.{name}@1.0.json") for name in ("ingest", "list_corpora", "query")),
    resources.files("accord.community").joinpath("data/events/rag.document.ingested.json"),
]


def patterns(schema: Any) -> set[str]:
    """The patterns that a schema has for members called `corpus`."""
    if isinstance(schema, list):
        return set().union(*map(patterns, schema))
    if not isinstance(schema, dict):
        return set()
    corpus = schema.get("corpus")
    own = {corpus["pattern"]} if isinstance(corpus, dict) and "pattern" in corpus else set()
    return own.union(*map(patterns, schema.values()))


def test_the_schemas_have_the_same_form() -> None:
    found = set().union(*(patterns(json.loads(each.read_text())) for each in SCHEMAS))
    assert found == {f"^{settings.CORPUS_PATTERN}$"}


@pytest.mark.parametrize("text", ["", "Manuals", "a b", "manuals\n", "é", "a" * 65, "٣"])
def test_what_is_no_name(text: str) -> None:
    assert not settings.is_corpus_name(text)


@pytest.mark.parametrize(
    "text", ["manuals", "a-1", "-", "a" * 64, settings.PERSONAL_CORPUS, settings.SYSTEM_CORPUS]
)
def test_what_is_one(text: str) -> None:
    assert settings.is_corpus_name(text)
