"""What a build has to do: which documents are made, which are there, which are refused.

Pure. A document that was made before, of the same bytes and in the same way, is not made again.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from accord.capabilities import models
from accord.capabilities.rag import building
from accord.capabilities.rag.building import Wanted
from accord.capabilities.rag.chunks import Cut
from accord.kernel import canonical, digest

CUT: Final = Cut(models.MINILM)
"""How documents are cut: as a node with the model cuts them."""

RECIPE: Final = building.recipe(CUT, models.MINILM)
"""How documents are cut and embedded."""

# As the request of `rag.ingest` has it.
_MAX_TITLE: Final = 500
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of every document of a corpus."""

    language: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as it was found.

    Attributes:
        name: What its source calls it.
        doc_cid: The name of its bytes; None where they cannot be had.
        refusal: Why it cannot be taken.
    """

    name: str
    doc_cid: str | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """A document that is to be made.

    Attributes:
        key: Names the bytes, what is told of them and how they are made.
    """

    name: str
    key: str
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Refused:
    """A document that is left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build has to do.

    Attributes:
        orders: The documents to make.
        kept: The keys of those that are there.
        same: The names of documents whose bytes another one has, too.
        refused: Those that cannot be taken.
    """

    orders: tuple[Order, ...]
    kept: frozenset[str]
    same: tuple[str, ...]
    refused: tuple[Refused, ...]


def plan(seen: Iterable[Seen], told: Told, known: Collection[str]) -> Plan:
    """Decide what is to be done.

    Of several documents with the same bytes the first by name is taken, as a node would that is
    given them in order.

    Args:
        seen: Everything that was found.
        told: What is told of all.
        known: The keys of what was made before.
    """
    orders, kept, same, refused = [], set(), [], []
    taken: set[str] = set()
    for each in sorted(seen, key=_place):
        refusal = each.refusal or name_refusal(each.name)
        if each.doc_cid is None or refusal is not None:
            refused.append(Refused(each.name, refusal or "it cannot be read"))
            continue
        if each.doc_cid in taken:
            same.append(each.name)
            continue
        taken.add(each.doc_cid)
        wanted = Wanted(each.doc_cid, title_of(each.name), told.language, told.metadata)
        key = key_of(wanted)
        if key in known:
            kept.add(key)
        else:
            orders.append(Order(each.name, key, wanted))
    return Plan(tuple(orders), frozenset(kept), tuple(same), tuple(refused))


def title_of(name: str) -> str:
    """The title of a document: its name, without folders and ending."""
    return PurePosixPath(name).stem[:_MAX_TITLE]


def name_refusal(name: str) -> str | None:
    """Why a document cannot be called so; None when it can."""
    if not title_of(name).strip():
        return "it has no name; give it one"
    if _UNFIT.search(name):
        return "its name has characters that no title may have; rename it"
    return None


def key_of(wanted: Wanted) -> str:
    """The name of a document that is made in our way."""
    named = {
        "doc_cid": wanted.doc_cid,
        "language": wanted.language,
        "metadata": dict(wanted.metadata),
        "recipe": RECIPE,
        "title": wanted.title,
    }
    return digest.blake3(canonical.encode(named)).value.hex()[:32]


def _place(seen: Seen) -> tuple[tuple[str, ...], str]:
    """The order in which `accord rag add` takes the files of a folder."""
    return PurePosixPath(seen.name).parts, seen.doc_cid or ""
