"""Keep how an operator says that the gateway of an instance keys its sessions."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0016"
down_revision = "delivery_0015"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the column; nothing is set."""
    op.add_column("instances", sa.Column("session_override", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take it away; what gateways declare counts, and else the defaults."""
    op.drop_column("instances", "session_override")
