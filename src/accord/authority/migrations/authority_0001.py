"""Contracts, deployments, plans, offers, sessions, and what was decided."""

import sqlalchemy as sa
from alembic import op

revision = "authority_0001"
down_revision = None
branch_labels = ("authority",)
depends_on = None


def _text(name: str, *, nullable: bool = False) -> "sa.Column[str]":
    return sa.Column(name, sa.Text(), nullable=nullable)


def _number(name: str, *, nullable: bool = False) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def _flag(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def _time(name: str, *, nullable: bool = False) -> "sa.Column[float]":
    return sa.Column(name, sa.Double(), nullable=nullable)


def _of(column: str, table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [table])


def upgrade() -> None:
    """Create the tables of contracts and of those who implement them."""
    made = op.create_table(
        "revision",
        _flag("one"),
        _number("count"),
        _number("wishes"),
        sa.PrimaryKeyConstraint("one"),
    )
    op.bulk_insert(made, [{"one": 1, "count": 0, "wishes": 0}])
    op.create_table(
        "contracts",
        *(_text(name) for name in ("digest", "contract_id", "manifest")),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index("contracts_contract_id", "contracts", ["contract_id"])
    op.create_table(
        "deployments",
        *(_text(name) for name in ("id", "kind", "compatibility")),
        _flag("disabled"),
        _text("desired"),
        _number("version"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "accepted",
        *(_text(name) for name in ("deployment", "contract_id", "digest")),
        sa.PrimaryKeyConstraint("deployment", "contract_id"),
        _of("deployment", "deployments.id"),
    )
    op.create_index("accepted_contract_id", "accepted", ["contract_id"])
    op.create_table(
        "superseded",
        *(_text(name) for name in ("deployment", "digest")),
        sa.PrimaryKeyConstraint("deployment", "digest"),
        _of("deployment", "deployments.id"),
    )
    op.create_table(
        "instances",
        *(_text(name) for name in ("key", "deployment", "name")),
        _flag("disabled"),
        sa.PrimaryKeyConstraint("key"),
        _of("deployment", "deployments.id"),
    )
    op.create_index("instances_deployment", "instances", ["deployment"])
    op.create_table(
        "plans",
        *(
            _text(name)
            for name in (
                *("id", "deployment", "classification", "state", "requester"),
                *("contract_id", "digest", "delta"),
            )
        ),
        _number("based_on"),
        _time("created_at"),
        _time("decided_at", nullable=True),
        _text("decided_by", nullable=True),
        sa.PrimaryKeyConstraint("id"),
        _of("deployment", "deployments.id"),
    )
    op.create_index("plans_deployment", "plans", ["deployment", "state"])
    op.create_index("plans_requester", "plans", ["requester", "state"])
    op.create_table(
        "materialized",
        _text("deployment"),
        _number("version"),
        *(_text(name) for name in ("status", "bindings", "settings")),
        _text("why", nullable=True),
        sa.PrimaryKeyConstraint("deployment"),
        _of("deployment", "deployments.id"),
    )
    op.create_table(
        "offers",
        *(_text(name) for name in ("instance", "contract_id", "deployment", "digest")),
        _flag("live"),
        _time("accepted_at"),
        _time("stale_at", nullable=True),
        _time("expires_at"),
        sa.PrimaryKeyConstraint("instance", "contract_id"),
        _of("instance", "instances.key"),
        _of("deployment", "deployments.id"),
    )
    op.create_index("offers_deployment", "offers", ["deployment", "contract_id"])
    op.create_index("offers_contract_id", "offers", ["contract_id"])
    op.create_index("offers_expires_at", "offers", ["expires_at"])
    op.create_table(
        "sessions",
        *(_text(name) for name in ("key", "holder", "subject")),
        *(_text(name, nullable=True) for name in ("contract_id", "digest", "origin")),
        _text("capabilities"),
        _time("created_at"),
        _time("expires_at", nullable=True),
        _time("revoked_at", nullable=True),
        _text("surfaces", nullable=True),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("sessions_subject", "sessions", ["subject"])
    op.create_table(
        "history",
        _number("revision"),
        _flag("place"),
        _number("at"),
        _text("act"),
        *(_text(name, nullable=True) for name in ("deployment", "contract_id", "digest")),
        _text("by"),
        *(_text(name, nullable=True) for name in ("classification", "previous", "why")),
        sa.Column("checksum", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("revision", "place"),
    )
    op.create_index("history_deployment", "history", ["deployment", "revision"])
