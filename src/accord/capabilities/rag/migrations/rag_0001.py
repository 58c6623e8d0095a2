"""Documents, their chunks, and which of them stand."""

import sqlalchemy as sa
from alembic import op

revision = "rag_0001"
down_revision = None
branch_labels = ("rag",)
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "documents",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("community", sa.Text(), nullable=False),
        sa.Column("corpus", sa.Text(), nullable=False),
        sa.Column("doc_cid", sa.Text(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("stemming", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.Column("vectors", sa.LargeBinary(), nullable=True),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("community", "corpus", "doc_cid", name="one_of_each"),
    )
    op.create_table(
        "chunks",
        sa.Column("document", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("chunk_id", sa.Text(), nullable=False),
        sa.Column("page", sa.Integer(), nullable=True),
        sa.Column("heading", sa.Text(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("document", "position"),
    )
    op.create_table(
        "standing",
        sa.Column("document", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("event_id", sa.Text(), nullable=True),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("document"),
    )
