"""Documents in the store: written whole, found again, counted, removed.

Every function works on one connection, within whatever transaction that has. Nothing is decided
here.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, or_, select

from accord.capabilities.rag import postings
from accord.capabilities.rag.building import Built
from accord.capabilities.rag.index import Entry, Hit, Segment
from accord.capabilities.rag.tables import chunks, documents, standing
from accord.storage import Rows, verify

_CHUNKS = Rows(chunks)


@dataclass(frozen=True, slots=True)
class Place:
    """A corpus: in which community, or in none (the node's own), and its name."""

    community: str
    corpus: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A document that is in the store.

    Attributes:
        number: Its number there.
        is_standing: Whether it is found; else it is a draft.
        event_id: The event that told of it.
    """

    number: int
    doc_cid: str
    recipe: str
    title: str | None
    language: str | None
    tokens: int
    chunks: int
    is_standing: bool
    event_id: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk that answers a question."""

    score: float
    text: str
    doc_cid: str
    doc_title: str | None
    language: str | None
    page: int | None
    heading: str | None
    chunk_id: str


@dataclass(frozen=True, slots=True)
class Share:
    """The documents of one language in a corpus."""

    place: Place
    language: str | None
    docs: int
    chunks: int
    size_bytes: int


def find(connection: Connection, place: Place, doc_cid: str) -> Kept | None:
    """A document of a corpus, standing or not."""
    row = connection.execute(_kept(place).where(documents.c.doc_cid == doc_cid)).first()
    return None if row is None else _read_kept(row)


def drafts(connection: Connection, place: Place) -> list[Kept]:
    """The documents of a corpus that do not stand."""
    query = _kept(place).where(standing.c.document.is_(None))
    return [_read_kept(row) for row in connection.execute(query)]


def draft(connection: Connection, place: Place, built: Built) -> Kept:
    """Write a document; if it was there already it is replaced, and stands if that one stood."""
    number = (connection.scalar(select(func.max(documents.c.number))) or 0) + 1
    before = find(connection, place, built.doc_cid)
    if before is not None:
        remove(connection, before.number)
    connection.execute(
        insert(documents).values(
            number=number,
            community=place.community,
            corpus=place.corpus,
            doc_cid=built.doc_cid,
            recipe=built.recipe,
            title=built.title,
            language=built.language,
            stemming=built.stemming,
            size_bytes=built.size_bytes,
            tokens=built.tokens,
            chunks=len(built.chunks),
            metadata=built.metadata,
            model=built.model,
            terms=built.terms,
            vectors=built.vectors,
        )
    )
    _CHUNKS.insert(
        connection,
        [
            (number, each.position, each.chunk_id, each.page, each.heading, each.text)
            for each in built.chunks
        ],
    )
    stands = before is not None and before.is_standing
    event_id = before.event_id if before is not None else None
    if stands:
        stand(connection, number, event_id)
    return Kept(
        number,
        built.doc_cid,
        built.recipe,
        built.title,
        built.language,
        built.tokens,
        len(built.chunks),
        stands,
        event_id,
    )


def stand(connection: Connection, number: int, event_id: str | None) -> None:
    """Let a draft be found from now on."""
    connection.execute(insert(standing).values(document=number, event_id=event_id))


def remove(connection: Connection, number: int) -> None:
    """Remove a document."""
    connection.execute(delete(standing).where(standing.c.document == number))
    connection.execute(delete(chunks).where(chunks.c.document == number))
    connection.execute(delete(documents).where(documents.c.number == number))


def load(
    connection: Connection,
    place: Place,
    *,
    model: str | None,
    dimensions: int,
    number: int | None = None,
) -> Segment | None:
    """What is searched of a corpus, or of one of its documents; None when there is nothing.

    Args:
        connection: The store.
        place: Which corpus.
        model: The model whose vectors are wanted; others cannot be compared.
        dimensions: How long they are.
        number: Which document, for one alone.

    Raises:
        StoreError: A record is damaged.
    """
    query = (
        select(documents)
        .join(standing, standing.c.document == documents.c.number)
        .where(documents.c.community == place.community, documents.c.corpus == place.corpus)
        .order_by(documents.c.number)
    )
    if number is not None:
        query = query.where(documents.c.number == number)
    entries, terms, vectors = [], [], []
    for row in connection.execution_options(yield_per=100).execute(query).mappings():
        verify(documents, row)
        entries.append(
            Entry(
                row["number"],
                row["language"],
                row["stemming"],
                json.loads(row["metadata"]),
                row["chunks"],
            )
        )
        terms.append(postings.unpack(row["terms"]))
        usable = row["model"] == model and row["vectors"] is not None
        vectors.append(_vectors(row["vectors"] if usable else None, row["chunks"], dimensions))
    if not entries:
        return None
    return Segment(tuple(entries), postings.together(terms), np.concatenate(vectors))


def texts(connection: Connection, hits: Sequence[Hit]) -> list[Found]:
    """The chunks that were found, in the same order; those that are gone are left out."""
    if not hits:
        return []
    query = (
        select(
            chunks,
            documents.c.doc_cid,
            documents.c.title,
            documents.c.language,
        )
        .join(documents, documents.c.number == chunks.c.document)
        .where(
            or_(
                *(
                    and_(chunks.c.document == hit.number, chunks.c.position == hit.position)
                    for hit in hits
                )
            )
        )
    )
    rows = {(row["document"], row["position"]): row for row in connection.execute(query).mappings()}
    found = []
    for hit in hits:
        row = rows.get((hit.number, hit.position))
        if row is None:
            continue
        verify(chunks, row)
        found.append(
            Found(
                hit.score,
                row["text"],
                row["doc_cid"],
                row["title"],
                row["language"],
                row["page"],
                row["heading"],
                row["chunk_id"],
            )
        )
    return found


def shares(connection: Connection, communities: Collection[str]) -> list[Share]:
    """How much of what stands is where, by corpus and language."""
    columns = (documents.c.community, documents.c.corpus, documents.c.language)
    query = (
        select(
            *columns,
            func.count(),
            func.sum(documents.c.chunks),
            func.sum(documents.c.size_bytes),
        )
        .join(standing, standing.c.document == documents.c.number)
        .where(documents.c.community.in_(communities))
        .group_by(*columns)
    )
    return [
        Share(Place(community, corpus), language, docs, int(count), int(size))
        for community, corpus, language, docs, count, size in connection.execute(query)
    ]


def _kept(place: Place) -> Select[Any]:
    names = ("number", "doc_cid", "recipe", "title", "language", "tokens", "chunks")
    return (
        select(
            *(documents.c[name] for name in names),
            standing.c.document.is_not(None).label("is_standing"),
            standing.c.event_id,
        )
        .outerjoin(standing, standing.c.document == documents.c.number)
        .where(documents.c.community == place.community, documents.c.corpus == place.corpus)
        .order_by(documents.c.number)
    )


def _read_kept(row: Row[Any]) -> Kept:
    return Kept(
        row.number,
        row.doc_cid,
        row.recipe,
        row.title,
        row.language,
        row.tokens,
        row.chunks,
        bool(row.is_standing),
        row.event_id,
    )


def _vectors(data: bytes | None, count: int, dimensions: int) -> NDArray[np.float32]:
    if data is None:
        return np.zeros((count, dimensions), np.float32)
    return np.frombuffer(data, "<f4").reshape(count, dimensions).astype(np.float32, copy=False)
