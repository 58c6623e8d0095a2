"""Keep how a gateway keys its sessions, and which of its hellos are refused."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0007"
down_revision = "delivery_0006"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add both; what was there before has the defaults."""
    op.add_column("instances", sa.Column("session_rules", sa.Text(), nullable=True))
    op.add_column("instances", sa.Column("refused", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take both away; gateways declare them anew with their next hello."""
    op.drop_column("instances", "refused")
    op.drop_column("instances", "session_rules")
