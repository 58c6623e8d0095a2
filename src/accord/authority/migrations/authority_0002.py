"""A deployment may be granted calls of contracts; the shell, which could do so before, is."""

import sqlalchemy as sa
from alembic import op

revision = "authority_0002"
down_revision = "authority_0001"
branch_labels = None
depends_on = None
since = "0.2.0"

_DEPLOYMENTS = sa.table("deployments", *map(sa.column, ("id", "compatibility", "calls")))


def upgrade() -> None:
    """Add the column; a shell that an operator let in goes on calling."""
    op.add_column("deployments", sa.Column("calls", sa.Text(), nullable=True))
    op.execute(
        sa.update(_DEPLOYMENTS)
        .where(_DEPLOYMENTS.c.id == "shell", _DEPLOYMENTS.c.compatibility == "mutable-dev")
        .values(calls='["*"]')
    )


def downgrade() -> None:
    """Take the grants away; a shell in mutable-dev needs none there, others wait for plans."""
    op.drop_column("deployments", "calls")
