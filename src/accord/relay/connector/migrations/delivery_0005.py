"""Keep who set a relevance policy, so that a gateway does not replace the operator's."""

import sqlalchemy as sa
from alembic import op

revision = "delivery_0005"
down_revision = "delivery_0004"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    """Add the mark; what was there before counts as declared by gateways."""
    op.add_column("relevance", sa.Column("pinned", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Take the mark away; gateways declare anew at their next start."""
    op.drop_column("relevance", "pinned")
