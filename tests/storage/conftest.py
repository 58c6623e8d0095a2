"""A small shop, in which storage is tried out on both engines."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from accord.storage import JournalRecord, Schema, sealed

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shop:
    schema: Schema
    goods: sa.Table
    orders: sa.Table


def shop_at_version(version: int, migrations: Path) -> Shop:
    metadata = sa.MetaData()
    goods = sa.Table(
        "goods",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        *([sa.Column("colour", sa.Text, nullable=False, server_default="grey")][: version - 1]),
    )
    orders = sealed(
        "orders",
        metadata,
        sa.Column("number", sa.Text, primary_key=True),
        sa.Column(
            "good", sa.Integer, sa.ForeignKey("goods.id", deferrable=True, initially="DEFERRED")
        ),
        sa.Column("body", sa.LargeBinary, nullable=False),
        *([sa.Column("remark", sa.Text)][: version - 1]),
    )
    return Shop(Schema("shop", metadata, migrations), goods, orders)


@pytest.fixture
def shop() -> Shop:
    return shop_at_version(1, HERE / "revisions")


@pytest.fixture
def later_shop(tmp_path: Path) -> Shop:
    """The same plane after an upgrade, with a revision more."""
    migrations = tmp_path / "migrations"
    shutil.copytree(HERE / "revisions", migrations)
    shutil.copytree(HERE / "later", migrations, dirs_exist_ok=True)
    return shop_at_version(2, migrations)


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "stores")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def note() -> Callable[..., JournalRecord]:
    """Makes journal records."""

    def make(
        name: str, stream: str = "shop.notes", body: str = '{"said": "grüß dich"}'
    ) -> JournalRecord:
        return JournalRecord(
            stream=stream, id=name, recorded_at=1_700_000_000_000, source="till", body=body
        )

    return make
