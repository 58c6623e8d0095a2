"""Keep which commands agents offer, so that one connector shows those of all."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0011"
down_revision = "delivery_0010"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the table; gateways offer their commands with their next hello."""
    op.create_table(
        "command_offers",
        sa.Column("platform", sa.Text(), primary_key=True),
        sa.Column("bot_id", sa.Text(), primary_key=True),
        sa.Column("instance", sa.Text(), primary_key=True),
        sa.Column("manifest", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Take it away; each connector shows the commands of its own gateways again."""
    op.drop_table("command_offers")
