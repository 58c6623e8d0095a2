"""The tables of the store `rag`.

A document is written in one commit as a draft; it is published by a row in `standing`. Long columns
come last, so that counting documents does not read their vectors.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Text,
    UniqueConstraint,
)

from accord.storage import Schema, sealed

_metadata = MetaData()

documents = sealed(
    "documents",
    _metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # Empty for the node's own corpora.
    Column("community", Text, nullable=False),
    Column("corpus", Text, nullable=False),
    Column("doc_cid", Text, nullable=False),
    # How it was cut and embedded; a document of another recipe is rebuilt when it is ingested
    # again.
    Column("recipe", Text, nullable=False),
    Column("title", Text),
    Column("language", Text),
    Column("stemming", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("chunks", Integer, nullable=False),
    # JSON.
    Column("metadata", Text, nullable=False),
    # The model of the vectors; both are null without one.
    Column("model", Text),
    Column("terms", LargeBinary, nullable=False),
    Column("vectors", LargeBinary),
    UniqueConstraint("community", "corpus", "doc_cid", name="one_of_each"),
)

chunks = sealed(
    "chunks",
    _metadata,
    Column("document", BigInteger, primary_key=True, autoincrement=False),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("chunk_id", Text, nullable=False),
    Column("page", Integer),
    Column("heading", Text),
    Column("text", Text, nullable=False),
)

standing = sealed(
    "standing",
    _metadata,
    Column("document", BigInteger, primary_key=True, autoincrement=False),
    # The event that announced it; null in the node's own corpora.
    Column("event_id", Text),
)

SCHEMA: Final = Schema("rag", _metadata, Path(__file__).parent / "migrations")
