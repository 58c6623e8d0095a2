"""Keep the versions that were pushed to the registry, and the tokens that may push."""

import sqlalchemy as sa
from alembic import op

revision = "authority_0004"
down_revision = "authority_0003"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    """Add the tables; what is there stays."""
    op.create_table(
        "versions",
        sa.Column("contract_id", sa.Text(), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("pushed_at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
    )
    op.create_index("versions_digest", "versions", ["digest"])
    op.create_table(
        "registry_tokens",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("may_push", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
    )
    op.create_index("history_contract_id", "history", ["contract_id", "revision"])


def downgrade() -> None:
    """Drop the tables; manifests that were pushed stay known by their digests."""
    op.drop_index("history_contract_id", "history")
    op.drop_table("registry_tokens")
    op.drop_index("versions_digest", "versions")
    op.drop_table("versions")
