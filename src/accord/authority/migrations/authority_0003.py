"""Keep since when a manifest is there that somebody presented who was not let in yet."""

import sqlalchemy as sa
from alembic import op

revision = "authority_0003"
down_revision = "authority_0002"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    """Add the column; what is there stays."""
    op.add_column("contracts", sa.Column("guest_since", sa.Double(), nullable=True))
    op.create_index("contracts_guest_since", "contracts", ["guest_since"])


def downgrade() -> None:
    """Take the column away; manifests that nothing refers to stay for good."""
    op.drop_index("contracts_guest_since", "contracts")
    op.drop_column("contracts", "guest_since")
