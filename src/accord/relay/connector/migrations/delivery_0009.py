"""Park what cannot be decided yet, share places among tenants, and open agents to everybody."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0009"
down_revision = "delivery_0007"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Create the tables, and say of capabilities, letters and authors what belongs to them."""
    op.create_table(
        "parked",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("gate", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_index("parked_session", "parked", ["instance", "session_key", "number"])
    op.create_index("parked_due_at", "parked", ["due_at"])
    op.create_index("parked_event", "parked", ["event"])
    op.create_table(
        "shared_places",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("route_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "route_key"),
    )
    op.create_table(
        "open_places",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("channel_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
        sa.PrimaryKeyConstraint("platform", "scope_id", "channel_id"),
    )
    op.create_index("open_places_instance", "open_places", ["instance"])
    op.add_column("vault", sa.Column("parked", sa.Text(), nullable=True))
    op.add_column("dead_letters", sa.Column("gate", sa.Text(), nullable=True))
    op.add_column("dead_letters", sa.Column("round", sa.Integer(), nullable=True))
    op.add_column("chat_authors", sa.Column("stranger", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Take all away; what is parked is lost, as an older version has no place for it.

    Capabilities of what is parked go too, and so do letters that were given up there: an older
    version would let them through.
    """
    op.drop_column("chat_authors", "stranger")
    op.execute("DELETE FROM dead_letters WHERE gate IS NOT NULL")
    op.drop_column("dead_letters", "round")
    op.drop_column("dead_letters", "gate")
    op.execute("DELETE FROM vault WHERE parked IS NOT NULL")
    op.drop_column("vault", "parked")
    op.drop_index("open_places_instance", "open_places")
    op.drop_table("open_places")
    op.drop_table("shared_places")
    op.drop_index("parked_event", "parked")
    op.drop_index("parked_due_at", "parked")
    op.drop_index("parked_session", "parked")
    op.drop_table("parked")
