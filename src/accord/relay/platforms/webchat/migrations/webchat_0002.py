"""Keep what names look like, so that nobody takes one that is easily confused with another's."""

import sqlalchemy as sa
from alembic import op

from accord.kernel.confusables import skeleton

revision = "webchat_0002"
down_revision = "webchat_0001"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    """Add the column and fill it; names that are there stay, whatever they look like."""
    op.add_column("accounts", sa.Column("look_key", sa.Text(), nullable=True))
    op.create_index("accounts_by_look", "accounts", ["look_key"])
    accounts = sa.table("accounts", sa.column("id"), sa.column("name"), sa.column("look_key"))
    connection = op.get_bind()
    for account_id, name in connection.execute(sa.select(accounts.c.id, accounts.c.name)).all():
        connection.execute(
            sa.update(accounts).where(accounts.c.id == account_id).values(look_key=skeleton(name))
        )


def downgrade() -> None:
    """Take the column away; names are then compared by their spelling alone."""
    op.drop_index("accounts_by_look", "accounts")
    op.drop_column("accounts", "look_key")
