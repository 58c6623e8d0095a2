"""The tables of the store `rag`, and nothing that reads or writes them.

A document is written whole, in one commit, as a draft; it stands once it has a row in `standing`.
What is long comes last in a row, so that counting documents does not read their vectors.
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
    # Empty for the corpora that are the node's own.
    Column("community", Text, nullable=False),
    Column("corpus", Text, nullable=False),
    Column("doc_cid", Text, nullable=False),
    # How it was cut and embedded; what was made otherwise is made anew when it is ingested again.
    Column("recipe", Text, nullable=False),
    Column("title", Text),
    Column("language", Text),
    Column("stemming", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("chunks", Integer, nullable=False),
    # JSON.
    Column("metadata", Text, nullable=False),
    # The model of the vectors; both null where there was none.
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
    # The event that told of it; null in the node's own corpora, of which nobody is told.
    Column("event_id", Text),
)

SCHEMA: Final = Schema("rag", _metadata, Path(__file__).parent / "migrations")
