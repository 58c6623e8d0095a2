"""The tables of people and of devices that are being activated; `tables` owns the schema.

Of every secret only its SHA-256 digest is kept, of a password only what scrypt made of it. Times
are whole seconds since the epoch. Lists and differences are canonical JSON.
"""

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from accord.authority.tables import METADATA
from accord.storage import sealed

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

# Links by which a person comes in once, without a password.
entry_links = Table(
    "entry_links",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("person", Text, ForeignKey("people.id"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# Browsers that a person has come in with.
visits = Table(
    "visits",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("person", Text, ForeignKey("people.id"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("visits_person", visits.c.person)

# Logins on their way: begun by a session, approved by a person, bound by the session.
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
    # What the session must show to bind it, by digest; there is none before it is approved.
    Column("flow", LargeBinary(32), unique=True),
    Column("expires_at", BigInteger, nullable=False),
)
Index("logins_expires_at", logins.c.expires_at)

# What a person lets a client do: the authority of an identity.
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

# Pages of somebody else's that stand before ours.
portals = Table(
    "portals",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("selector", Text, primary_key=True),
    Column("url", Text, nullable=False),
)
