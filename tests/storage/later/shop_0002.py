"""Goods have a colour, and orders may carry a remark."""

import sqlalchemy as sa
from alembic import op

revision = "shop_0002"
down_revision = "shop_0001"
branch_labels = None
depends_on = None
since = "0.2.0"


def upgrade() -> None:
    with op.batch_alter_table("goods") as goods:
        goods.add_column(sa.Column("colour", sa.Text(), nullable=False, server_default="grey"))
    op.add_column("orders", sa.Column("remark", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("orders", "remark")
    with op.batch_alter_table("goods") as goods:
        goods.drop_column("colour")
