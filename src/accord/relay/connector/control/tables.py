"""The tables of the control half: who is who, and who may do what.

Times are milliseconds since the Unix epoch. `box` columns hold what `keyring` has encrypted and
`key_id` names the key. A chat without a scope has the scope ''. Every change of what the gate goes
by leaves rows in `changes`, by which other processes learn what to forget.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
)

from accord.relay.connector.schema import METADATA

tenants = Table(
    "tenants",
    METADATA,
    Column("tenant", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("box", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("suspended_at", BigInteger),
)

instances = Table(
    "instances",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False),
    Column("gateway_id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("wake_url", Text),
    Column("woken_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
    Column("barred", Integer, nullable=False),
)
Index("instances_tenant", instances.c.tenant)

gateway_secrets = Table(
    "gateway_secrets",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("key_id", Text, nullable=False),
    Column("box", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
)
Index("gateway_secrets_instance", gateway_secrets.c.instance)

identities = Table(
    "identities",
    METADATA,
    Column("instance", Text, ForeignKey("instances.instance"), primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("bot_id", Text, primary_key=True),
)
Index("identities_bot", identities.c.platform, identities.c.bot_id)

enrolments = Table(
    "enrolments",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("used_at", BigInteger),
)

# A route key names one tenant; `pinned` ones are the operator's and need no claim to stay.
routes = Table(
    "routes",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("route_key", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False),
    Column("pinned", Integer, nullable=False),
)

route_claims = Table(
    "route_claims",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("route_key", Text, primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), primary_key=True),
    ForeignKeyConstraint(["platform", "route_key"], ["routes.platform", "routes.route_key"]),
)
Index("route_claims_instance", route_claims.c.instance)

bindings = Table(
    "bindings",
    METADATA,
    Column("tenant", Text, ForeignKey("tenants.tenant"), primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
)
Index("bindings_user", bindings.c.platform, bindings.c.user_id)
Index("bindings_instance", bindings.c.instance)

dm_defaults = Table(
    "dm_defaults",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
)
Index("dm_defaults_instance", dm_defaults.c.instance)

# The primary key is the promise that a channel has at most one holder.
grants = Table(
    "grants",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("scope_id", Text, primary_key=True),
    Column("channel_id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("grants_instance", grants.c.instance)

principals = Table(
    "principals",
    METADATA,
    Column("instance", Text, ForeignKey("instances.instance"), primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("policy", Text, nullable=False),
    Column("allow", Text, nullable=False),
)

relevance = Table(
    "relevance",
    METADATA,
    Column("instance", Text, ForeignKey("instances.instance"), primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("require_address", Integer, nullable=False),
    Column("free_response_scopes", Text, nullable=False),
    Column("allow_other_bots", Integer, nullable=False),
)

link_codes = Table(
    "link_codes",
    METADATA,
    Column("digest", LargeBinary(32), primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("link_codes_instance", link_codes.c.instance)

# A code that was redeemed and waits for its user to say yes.
link_pending = Table(
    "link_pending",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("link_pending_instance", link_pending.c.instance)

# Somebody who talks to the bot about linking: wrong codes until a moment, and the last event with
# its answer, so that an event that is delivered again is answered again and done once.
link_talks = Table(
    "link_talks",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("tries", Integer, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("text", Text, nullable=False),
)

# No reference to the instance: it is written for every event that carries a capability.
vault = Table(
    "vault",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("instance", Text, nullable=False),
    Column("platform", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("alias", Text),
    Column("kind", Text, nullable=False),
    Column("message_id", Text),
    Column("key_id", Text, nullable=False),
    Column("box", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("vault_session_key", vault.c.instance, vault.c.session_key)
Index("vault_alias", vault.c.instance, vault.c.alias)
Index("vault_expires_at", vault.c.expires_at)

changes = Table(
    "changes",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("entity", Text, nullable=False),
)

# One row; whoever changes something locks it, so that versions appear in the order of commits.
change_head = Table(
    "change_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)
