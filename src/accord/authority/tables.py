"""The tables of contracts, deployments, plans, offers and sessions; nothing that reads or writes.

What is desired of a deployment is one text of canonical JSON, but for the digests that it was
accepted to implement: others look those up by contract id. Times are seconds since the epoch.
"""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from accord.authority.forms import legible
from accord.storage import sealed

METADATA: Final = MetaData()


class Word(TypeDecorator[str]):
    """A text that came from somewhere; one that no database keeps is kept, or found, as another."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """What is given to the database."""
        return None if value is None else legible(value)


# One row. `count` numbers every change that other instances of the authority must hear of, `wishes`
# those of what is desired or enabled: a plan is written only if none of these came between.
revision = Table(
    "revision",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("wishes", BigInteger, nullable=False),
)

# Manifests by digest: a cache, which may be filled again at any time.
contracts = Table(
    "contracts",
    METADATA,
    Column("digest", Word, primary_key=True),
    Column("contract_id", Word, nullable=False),
    Column("manifest", Text, nullable=False),
)
Index("contracts_contract_id", contracts.c.contract_id)

deployments = Table(
    "deployments",
    METADATA,
    Column("id", Word, primary_key=True),
    Column("kind", Word, nullable=False),
    Column("compatibility", Word, nullable=False),
    Column("disabled", Integer, nullable=False),
    Column("desired", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)

# The latest accepted digest of each contract id on each deployment.
accepted = Table(
    "accepted",
    METADATA,
    Column("deployment", Word, ForeignKey("deployments.id"), primary_key=True),
    Column("contract_id", Word, primary_key=True),
    Column("digest", Word, nullable=False),
)
Index("accepted_contract_id", accepted.c.contract_id)

# Digests that a migration has ended; whoever still presents one must be replaced.
superseded = Table(
    "superseded",
    METADATA,
    Column("deployment", Word, ForeignKey("deployments.id"), primary_key=True),
    Column("digest", Word, primary_key=True),
)

instances = Table(
    "instances",
    METADATA,
    Column("key", Word, primary_key=True),
    Column("deployment", Word, ForeignKey("deployments.id"), nullable=False),
    Column("name", Word, nullable=False),
    Column("disabled", Integer, nullable=False),
)
Index("instances_deployment", instances.c.deployment)

plans = Table(
    "plans",
    METADATA,
    Column("id", Word, primary_key=True),
    Column("deployment", Word, ForeignKey("deployments.id"), nullable=False),
    Column("classification", Word, nullable=False),
    Column("state", Word, nullable=False),
    Column("requester", Word, nullable=False),
    Column("contract_id", Word, nullable=False),
    Column("digest", Word, nullable=False),
    Column("delta", Text, nullable=False),
    Column("based_on", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("decided_at", Double),
    Column("decided_by", Word),
)
Index("plans_deployment", plans.c.deployment, plans.c.state)
Index("plans_requester", plans.c.requester, plans.c.state)

materialized = Table(
    "materialized",
    METADATA,
    Column("deployment", Word, ForeignKey("deployments.id"), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("status", Word, nullable=False),
    Column("bindings", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("why", Word),
)

offers = Table(
    "offers",
    METADATA,
    Column("instance", Word, ForeignKey("instances.key"), primary_key=True),
    Column("contract_id", Word, primary_key=True),
    Column("deployment", Word, ForeignKey("deployments.id"), nullable=False),
    Column("digest", Word, nullable=False),
    Column("live", Integer, nullable=False),
    Column("accepted_at", Double, nullable=False),
    Column("stale_at", Double),
    Column("expires_at", Double, nullable=False),
)
Index("offers_deployment", offers.c.deployment, offers.c.contract_id)
Index("offers_contract_id", offers.c.contract_id)
Index("offers_expires_at", offers.c.expires_at)

sessions = Table(
    "sessions",
    METADATA,
    Column("key", Word, primary_key=True),
    Column("holder", Word, nullable=False),
    Column("subject", Word, nullable=False),
    Column("contract_id", Word),
    Column("digest", Word),
    Column("origin", Word),
    Column("capabilities", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("surfaces", Text),
)
Index("sessions_subject", sessions.c.subject)

# What was decided, in the order of revisions; never changed.
history = sealed(
    "history",
    METADATA,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("act", Text, nullable=False),
    Column("deployment", Text),
    Column("contract_id", Text),
    Column("digest", Text),
    Column("by", Text, nullable=False),
    Column("classification", Text),
    Column("previous", Text),
    Column("why", Text),
)
Index("history_deployment", history.c.deployment, history.c.revision)
