"""A store with one more revision than version 0.1.0 has, and a program that is killed over it.

Arguments: `upgrade` or `rollback`, where the store is, and the folder of its revisions. The second
revision prints `half way` and waits for ever, unless `GO_ON` is set.
"""

import asyncio
import sys
from pathlib import Path

from sqlalchemy import MetaData

from accord.storage import Schema, open_store, roll_back

FIRST = """
\"\"\"Days.\"\"\"
import sqlalchemy as sa
from alembic import op

revision = "diary_0001"
down_revision = None
branch_labels = ("diary",)


def upgrade():
    number = sa.Column("id", sa.Integer, primary_key=True)
    op.create_table("days", number, sa.Column("said", sa.Text))
"""
SECOND = """
\"\"\"Days have a mood, and weeks are written down.\"\"\"
import os, time
import sqlalchemy as sa
from alembic import op

revision = "diary_0002"
down_revision = "diary_0001"
branch_labels = None
since = "0.2.0"


def wait():
    if "GO_ON" not in os.environ:
        print("half way", flush=True)
        time.sleep(600)


def upgrade():
    op.add_column("days", sa.Column("mood", sa.Text, nullable=False, server_default="calm"))
    op.execute("UPDATE days SET mood = 'glad', said = 'changed'")
    wait()
    op.create_table("weeks", sa.Column("id", sa.Integer, primary_key=True))


def downgrade():
    op.drop_table("weeks")
    op.execute("UPDATE days SET said = 'changed back'")
    wait()
    op.drop_column("days", "mood")
"""


def revisions(folder: Path, version: int) -> Path:
    """Write the first revisions into a folder."""
    folder.mkdir()
    for number, text in enumerate((FIRST, SECOND)[:version], 1):
        (folder / f"diary_000{number}.py").write_text(text)
    return folder


def schema(folder: Path) -> Schema:
    """The store, as revisions in a folder make it."""
    return Schema("diary", MetaData(), folder)


async def upgrade(where: str, folder: Path) -> None:
    async with open_store(where, schema(folder)):
        pass


if __name__ == "__main__":
    verb, place, folder = sys.argv[1:]
    if verb == "upgrade":
        asyncio.run(upgrade(place, Path(folder)))
    else:
        roll_back(place, schema(Path(folder)), "0.1.0")
    print("done", flush=True)
