"""Keep a random key for each turn, so that ids of actions do not tell what was written."""

import sqlalchemy as sa
from alembic import op

revision = "gateway_0003"
down_revision = "gateway_0002"
branch_labels = None
depends_on = None
since = "0.3.0"


def upgrade() -> None:
    """Add the column; turns taken before have no key, and their actions keep their ids."""
    op.add_column("events", sa.Column("turn_key", sa.LargeBinary(32), nullable=True))


def downgrade() -> None:
    """Take it away; what a turn had said that is under way is said again by an older version."""
    op.drop_column("events", "turn_key")
