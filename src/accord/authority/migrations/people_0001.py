"""People, their logins and consents, devices that wait for a person, and pages of others."""

import sqlalchemy as sa
from alembic import op

revision = "people_0001"
down_revision = None
branch_labels = ("people",)
depends_on = None


def upgrade() -> None:
    """Create the tables of people."""
    op.create_table(
        "people",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_key", sa.Text(), nullable=False),
        sa.Column("password", sa.Text(), nullable=True),
        sa.Column("capabilities", sa.Text(), nullable=False),
        sa.Column("disabled", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name_key"),
    )
    for table in ("entry_links", "visits"):
        op.create_table(
            table,
            sa.Column("digest", sa.LargeBinary(32), nullable=False),
            sa.Column("person", sa.Text(), nullable=False),
            sa.Column("expires_at", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("digest"),
            sa.ForeignKeyConstraint(["person"], ["people.id"]),
        )
    op.create_index("visits_person", "visits", ["person"])
    op.create_table(
        "logins",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("redirect_to", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("anchor", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=True),
        sa.Column("flow", sa.LargeBinary(32), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["person"], ["people.id"]),
        sa.UniqueConstraint("flow"),
    )
    op.create_index("logins_expires_at", "logins", ["expires_at"])
    op.create_table(
        "identity_authorities",
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("anchor", sa.Text(), nullable=False),
        sa.Column("surfaces", sa.Text(), nullable=False),
        sa.Column("capabilities", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("person", "contract_id", "anchor"),
        sa.ForeignKeyConstraint(["person"], ["people.id"]),
    )
    op.create_table(
        "consents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("anchor", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("delta", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("consents_person", "consents", ["person", "id"])
    op.create_table(
        "grant_overrides",
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("anchor", sa.Text(), nullable=False),
        sa.Column("capabilities", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("contract_id", "anchor"),
    )
    op.create_table(
        "activations",
        sa.Column("code", sa.LargeBinary(32), nullable=False),
        sa.Column("device_key", sa.Text(), nullable=False),
        sa.Column("deployment", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("code"),
        sa.UniqueConstraint("device_key"),
    )
    op.create_index("activations_expires_at", "activations", ["expires_at"])
    op.create_table(
        "portals",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("selector", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "selector"),
    )
