"""The plan of a build: which documents are built, which exist, which are refused. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from accord.capabilities import models
from accord.capabilities.rag import prepared
from accord.capabilities.rag.prepared import IngestRequest
from accord.capabilities.rag.rules.chunks import ChunkSettings
from accord.kernel import canonical

CUT: Final = ChunkSettings(models.MINILM)
"""How documents are cut: as a node with the model cuts them."""

RECIPE: Final = prepared.recipe(CUT, models.MINILM)
"""How documents are cut and embedded."""

# The limits of a `rag.ingest` request.
_MAX_TITLE: Final = 500
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class DocumentDefaults:
    """Language and metadata of every document of a corpus."""

    language: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document in its source; `doc_cid` is None if it cannot be read."""

    name: str
    doc_cid: str | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """A document to build; `key` is a digest of its CID, title, language, metadata and recipe."""

    name: str
    key: str
    wanted: IngestRequest


@dataclass(frozen=True, slots=True)
class RefusedDocument:
    """A document that is left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """The plan of a build."""

    orders: tuple[DocumentOrder, ...]
    kept: frozenset[str]  # the keys of documents that were built before
    same: tuple[str, ...]  # the names of documents with the same bytes as another
    refused: tuple[RefusedDocument, ...]


def plan_build(
    seen: Iterable[FoundDocument], defaults: DocumentDefaults, known: Collection[str]
) -> BuildPlan:
    """Plan a build; `known` are the keys of documents that were built before.

    Of several documents with the same bytes the first by name is used, as on a node that ingests
    them in order.
    """
    orders, kept, same, refused = [], set(), [], []
    seen_cids: set[str] = set()
    for each in sorted(seen, key=_place):
        refusal = each.refusal or name_refusal(each.name)
        if each.doc_cid is None or refusal is not None:
            refused.append(RefusedDocument(each.name, refusal or "it cannot be read"))
            continue
        if each.doc_cid in seen_cids:
            same.append(each.name)
            continue
        seen_cids.add(each.doc_cid)
        wanted = IngestRequest(
            each.doc_cid, title_of(each.name), defaults.language, defaults.metadata
        )
        key = document_key(wanted)
        if key in known:
            kept.add(key)
        else:
            orders.append(DocumentOrder(each.name, key, wanted))
    return BuildPlan(tuple(orders), frozenset(kept), tuple(same), tuple(refused))


def title_of(name: str) -> str:
    """The title of a document: its name without folders and suffix."""
    return PurePosixPath(name).stem[:_MAX_TITLE]


def name_refusal(name: str) -> str | None:
    """Why a name cannot be used; None if it can."""
    if not title_of(name).strip():
        return "it has no name; give it one"
    if _UNFIT.search(name):
        return "its name has characters that no title may have; rename it"
    return None


def document_key(wanted: IngestRequest) -> str:
    """The key of a document; see `DocumentOrder`."""
    named = {
        "doc_cid": wanted.doc_cid,
        "language": wanted.language,
        "metadata": dict(wanted.metadata),
        "recipe": RECIPE,
        "title": wanted.title,
    }
    return canonical.blake3(canonical.encode(named)).value.hex()[:32]


def _place(seen: FoundDocument) -> tuple[tuple[str, ...], str]:
    """The order in which `accord rag add` reads the files of a folder."""
    return PurePosixPath(seen.name).parts, seen.doc_cid or ""
