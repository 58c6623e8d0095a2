"""Documents in the store; every function runs within the transaction of its connection."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, or_, select

from accord.capabilities.rag.prepared import IngestRequest, PreparedDocument
from accord.capabilities.rag.rules import search_index
from accord.capabilities.rag.rules.search_index import Hit, IndexedDocument, Segment
from accord.capabilities.rag.tables import chunks, documents, standing
from accord.storage import BulkInsert, verify

_CHUNKS = BulkInsert(chunks)


@dataclass(frozen=True, slots=True)
class CorpusId:
    """The name of a corpus and its community; empty for the node's own corpora."""

    community: str
    corpus: str


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document in the store.

    Attributes:
        is_standing: Whether it is published; else it is a draft.
        event_id: The event that announced it.
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
class FoundChunk:
    """A chunk that answers a question; `words` and `meaning` as in `Hit`."""

    score: float
    words: float
    meaning: float | None
    text: str
    doc_cid: str
    doc_title: str | None
    language: str | None
    page: int | None
    heading: str | None
    chunk_id: str


@dataclass(frozen=True, slots=True)
class CorpusShare:
    """The documents of one language in a corpus."""

    place: CorpusId
    language: str | None
    docs: int
    chunks: int
    size_bytes: int


def find(connection: Connection, place: CorpusId, doc_cid: str) -> StoredDocument | None:
    """Return a document of a corpus, published or not."""
    row = connection.execute(_stored(place).where(documents.c.doc_cid == doc_cid)).first()
    return None if row is None else _read_stored(row)


def drafts(connection: Connection, place: CorpusId) -> list[StoredDocument]:
    """Return the drafts of a corpus."""
    query = _stored(place).where(standing.c.document.is_(None))
    return [_read_stored(row) for row in connection.execute(query)]


def outdated(connection: Connection, place: CorpusId, recipe: str) -> list[IngestRequest]:
    """Return the published documents of a corpus that were made by another recipe."""
    query = (
        select(documents.c.doc_cid, documents.c.title, documents.c.language, documents.c.metadata)
        .join(standing, standing.c.document == documents.c.number)
        .where(
            documents.c.community == place.community,
            documents.c.corpus == place.corpus,
            documents.c.recipe != recipe,
        )
        .order_by(documents.c.number)
    )
    return [
        IngestRequest(row.doc_cid, row.title, row.language, json.loads(row.metadata))
        for row in connection.execute(query)
    ]


def count(connection: Connection, place: CorpusId) -> int:
    """Return the number of published documents of a corpus."""
    query = (
        select(func.count())
        .select_from(documents)
        .join(standing, standing.c.document == documents.c.number)
        .where(documents.c.community == place.community, documents.c.corpus == place.corpus)
    )
    return int(connection.scalar(query) or 0)


def holding(connection: Connection, community: str, doc_cid: str) -> list[str]:
    """Return the corpora of a community that have a document, published or not."""
    query = (
        select(documents.c.corpus)
        .where(documents.c.community == community, documents.c.doc_cid == doc_cid)
        .order_by(documents.c.corpus)
    )
    return list(connection.execute(query).scalars())


def draft(connection: Connection, place: CorpusId, built: PreparedDocument) -> StoredDocument:
    """Write a document; it replaces an earlier one and is published if that one was.

    It has the number of the earlier one, so that an index in memory still finds its text.
    """
    before = find(connection, place, built.doc_cid)
    if before is not None:
        number = before.number
        remove(connection, number)
    else:
        number = (connection.scalar(select(func.max(documents.c.number))) or 0) + 1
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
    return StoredDocument(
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
    """Publish a draft."""
    connection.execute(insert(standing).values(document=number, event_id=event_id))


def remove(connection: Connection, number: int) -> None:
    """Remove a document."""
    connection.execute(delete(standing).where(standing.c.document == number))
    connection.execute(delete(chunks).where(chunks.c.document == number))
    connection.execute(delete(documents).where(documents.c.number == number))


def load(
    connection: Connection,
    place: CorpusId,
    *,
    model: str | None,
    dimensions: int,
    number: int | None = None,
) -> Segment | None:
    """Load the search segment of a corpus or of one document; None if it is empty.

    Args:
        model: The model whose vectors are loaded; those of others cannot be compared.
        dimensions: The length of its vectors.
        number: The only document to load; None for all.

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
            IndexedDocument(
                row["number"],
                row["language"],
                row["stemming"],
                json.loads(row["metadata"]),
                row["chunks"],
            )
        )
        terms.append(search_index.unpack_postings(row["terms"]))
        # A server may have another model under the same name.
        fitting = 4 * row["chunks"] * dimensions
        usable = row["model"] == model and len(row["vectors"] or b"") == fitting
        vectors.append(_vectors(row["vectors"] if usable else None, row["chunks"], dimensions))
    if not entries:
        return None
    return Segment(tuple(entries), search_index.join_postings(terms), np.concatenate(vectors))


def texts(connection: Connection, hits: Sequence[Hit]) -> list[FoundChunk]:
    """Return the chunks of hits in the same order, without those that are gone."""
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
            FoundChunk(
                hit.score,
                hit.words,
                hit.meaning,
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


def shares(connection: Connection, communities: Collection[str]) -> list[CorpusShare]:
    """Count the published documents by corpus and language."""
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
        CorpusShare(CorpusId(community, corpus), language, docs, int(count), int(size))
        for community, corpus, language, docs, count, size in connection.execute(query)
    ]


def _stored(place: CorpusId) -> Select[Any]:
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


def _read_stored(row: Row[Any]) -> StoredDocument:
    return StoredDocument(
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
