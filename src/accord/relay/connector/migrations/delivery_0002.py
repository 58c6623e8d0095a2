"""Find the rows of an event without reading every row."""

from alembic import op

revision = "delivery_0002"
down_revision = "delivery_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Index buffer and dead letters by event."""
    op.create_index("buffer_event", "buffer", ["event"])
    op.create_index("dead_letters_event", "dead_letters", ["event"])
