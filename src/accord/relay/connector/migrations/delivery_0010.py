"""Keep who set a wake URL, so that a gateway does not replace the operator's."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0010"
down_revision = "delivery_0009"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the mark; what was there before counts as named by gateways."""
    op.add_column("instances", sa.Column("wake_pinned", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Take the mark away; gateways name their URLs anew."""
    op.drop_column("instances", "wake_pinned")
