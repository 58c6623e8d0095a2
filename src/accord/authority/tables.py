"""The tables of the authority, and the schema of its store.

Desired state is canonical JSON, except for the accepted digests, which are looked up by contract
id. Secrets are stored as SHA-256 digests, passwords as hashes by Argon2id, or by scrypt where an
older version made them. Times are seconds since the epoch.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from accord.authority.rules.fields import storable
from accord.storage import Schema, sealed

METADATA: Final = MetaData()


class StorableText(TypeDecorator[str]):
    """Text from outside; characters that a database rejects are replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        """What is given to the database."""
        return None if value is None else storable(value)


# One row. `count` numbers every change that other processes are told of, `wishes` those of what is
# desired or enabled: a plan is written only if `wishes` is as it was when the facts were read.
revision = Table(
    "revision",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("wishes", BigInteger, nullable=False),
)

# Manifests by digest: a cache, which may be filled again at any time. `guest_since` is set if a
# client presented it that was not admitted; those are pruned when nothing refers to them.
contracts = Table(
    "contracts",
    METADATA,
    Column("digest", StorableText, primary_key=True),
    Column("contract_id", StorableText, nullable=False),
    Column("manifest", Text, nullable=False),
    Column("guest_since", Double),
)
Index("contracts_contract_id", contracts.c.contract_id)
Index("contracts_guest_since", contracts.c.guest_since)

# What was pushed to the registry, numbered within each contract id; never changed.
versions = Table(
    "versions",
    METADATA,
    Column("contract_id", StorableText, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", StorableText, nullable=False),
    Column("pushed_at", Double, nullable=False),
    Column("by", StorableText, nullable=False),
    Column("note", StorableText, nullable=False),
)
Index("versions_digest", versions.c.digest)

# Tokens for the registry's verbs alone; `digest` is that of the secret.
registry_tokens = Table(
    "registry_tokens",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", StorableText, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("may_push", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
)

deployments = Table(
    "deployments",
    METADATA,
    Column("id", StorableText, primary_key=True),
    Column("kind", StorableText, nullable=False),
    Column("compatibility", StorableText, nullable=False),
    Column("disabled", Integer, nullable=False),
    Column("desired", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("calls", Text),
)

# The latest accepted digest of each contract id on each deployment.
accepted = Table(
    "accepted",
    METADATA,
    Column("deployment", StorableText, ForeignKey("deployments.id"), primary_key=True),
    Column("contract_id", StorableText, primary_key=True),
    Column("digest", StorableText, nullable=False),
)
Index("accepted_contract_id", accepted.c.contract_id)

# Digests that a migration has ended; instances that present one must be replaced.
superseded = Table(
    "superseded",
    METADATA,
    Column("deployment", StorableText, ForeignKey("deployments.id"), primary_key=True),
    Column("digest", StorableText, primary_key=True),
)

instances = Table(
    "instances",
    METADATA,
    Column("key", StorableText, primary_key=True),
    Column("deployment", StorableText, ForeignKey("deployments.id"), nullable=False),
    Column("name", StorableText, nullable=False),
    Column("disabled", Integer, nullable=False),
)
Index("instances_deployment", instances.c.deployment)

plans = Table(
    "plans",
    METADATA,
    Column("id", StorableText, primary_key=True),
    Column("deployment", StorableText, ForeignKey("deployments.id"), nullable=False),
    Column("classification", StorableText, nullable=False),
    Column("state", StorableText, nullable=False),
    Column("requester", StorableText, nullable=False),
    Column("contract_id", StorableText, nullable=False),
    Column("digest", StorableText, nullable=False),
    Column("delta", Text, nullable=False),
    Column("based_on", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("decided_at", Double),
    Column("decided_by", StorableText),
)
Index("plans_deployment", plans.c.deployment, plans.c.state)
Index("plans_requester", plans.c.requester, plans.c.state)

materialized = Table(
    "materialized",
    METADATA,
    Column("deployment", StorableText, ForeignKey("deployments.id"), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("status", StorableText, nullable=False),
    Column("bindings", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("why", StorableText),
)

offers = Table(
    "offers",
    METADATA,
    Column("instance", StorableText, ForeignKey("instances.key"), primary_key=True),
    Column("contract_id", StorableText, primary_key=True),
    Column("deployment", StorableText, ForeignKey("deployments.id"), nullable=False),
    Column("digest", StorableText, nullable=False),
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
    Column("key", StorableText, primary_key=True),
    Column("holder", StorableText, nullable=False),
    Column("subject", StorableText, nullable=False),
    Column("contract_id", StorableText),
    Column("digest", StorableText),
    Column("origin", StorableText),
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
Index("history_contract_id", history.c.contract_id, history.c.revision)


people = Table(
    "people",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    # The name as it is compared.
    Column("name_key", Text, nullable=False, unique=True),
    Column("password", Text),
    Column("capabilities", Text, nullable=False),
    Column("disabled", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

# One-time login links.
entry_links = Table(
    "entry_links",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("person", Text, ForeignKey("people.id"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# Browsers in which a person is logged in.
visits = Table(
    "visits",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("person", Text, ForeignKey("people.id"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("visits_person", visits.c.person)

# Login flows: begun by a session, approved by a person, bound by the session.
logins = Table(
    "logins",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("session_key", Text, nullable=False),
    Column("redirect_to", Text, nullable=False),
    Column("contract_id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("anchor", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("person", Text, ForeignKey("people.id")),
    # The digest of the flow id that binds it; null before it is approved.
    Column("flow", LargeBinary(32), unique=True),
    Column("expires_at", BigInteger, nullable=False),
)
Index("logins_expires_at", logins.c.expires_at)

# What a person allows a client: the authority of an identity.
identity_authorities = Table(
    "identity_authorities",
    METADATA,
    Column("person", Text, ForeignKey("people.id"), primary_key=True),
    Column("contract_id", Text, primary_key=True),
    Column("anchor", Text, primary_key=True),
    Column("surfaces", Text, nullable=False),
    Column("capabilities", Text, nullable=False),
)

# Every answer that a person gave, with what was reviewed.
consents = sealed(
    "consents",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("person", Text, nullable=False),
    Column("contract_id", Text, nullable=False),
    Column("anchor", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("delta", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
Index("consents_person", consents.c.person, consents.c.id)

# What an operator grants to the clients of one contract at one origin, or to one session key.
grant_overrides = Table(
    "grant_overrides",
    METADATA,
    Column("contract_id", Text, primary_key=True),
    Column("anchor", Text, primary_key=True),
    Column("capabilities", Text, nullable=False),
)

# Devices that wait for a person.
activations = Table(
    "activations",
    METADATA,
    Column("code", LargeBinary(32), primary_key=True),
    Column("device_key", Text, nullable=False, unique=True),
    Column("deployment", Text, nullable=False),
    Column("contract_id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("activations_expires_at", activations.c.expires_at)

# Custom pages that people are sent to before ours.
portals = Table(
    "portals",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("selector", Text, primary_key=True),
    Column("url", Text, nullable=False),
)

AUTHORITY: Final = Schema("authority", METADATA, Path(__file__).parent / "migrations")
