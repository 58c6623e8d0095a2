"""The tables of the connector's store."""

from pathlib import Path
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from accord.storage import Schema

METADATA: Final = MetaData()
RELAY: Final = Schema("relay", METADATA, Path(__file__).parent / "migrations")


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
    # How its gateway keys sessions besides the dialect, and which of its hellos are refused, as
    # JSON; null for the defaults, and for none.
    Column("session_rules", Text),
    Column("refused", Text),
    # Whether the operator set the wake URL.
    Column("wake_pinned", Integer),
    # How the operator says that its gateway keys sessions, as JSON; null for nothing.
    Column("session_override", Text),
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

# What operators show to manage the connector from another machine; the secret itself is not stored.
operator_tokens = Table(
    "operator_tokens",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("read_only", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)

# Secrets of the store itself, encrypted under the keyring.
store_secrets = Table(
    "store_secrets",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("key_id", Text, nullable=False),
    Column("box", LargeBinary, nullable=False),
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

# Scopes and chats that several tenants share, as the operator says: the author decides there.
shared_places = Table(
    "shared_places",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("route_key", Text, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
)

# Which instance is open to everybody where, as the operator says. A channel, or a whole scope with
# the channel ''; both '' are the direct messages of a platform.
open_places = Table(
    "open_places",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("scope_id", Text, primary_key=True),
    Column("channel_id", Text, primary_key=True),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
Index("open_places_instance", open_places.c.instance)

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

# The primary key ensures that a channel has at most one holder.
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
    # Whether the operator set it, so that a gateway's declaration does not replace it.
    Column("pinned", Integer),
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

# A code that was redeemed and waits for its user's confirmation.
link_pending = Table(
    "link_pending",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("user_id", Text, primary_key=True),
    Column("instance", Text, ForeignKey("instances.instance"), nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)
Index("link_pending_instance", link_pending.c.instance)

# Messages about linking by user: wrong codes until a time, and the last event with its reply, so
# that a repeated event gets the same reply and is carried out once.
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
    # Whose event carried it and where: it can be used while that still reaches the instance. Null
    # where an older version stored it.
    Column("author", Text),
    Column("chat_id", Text),
    Column("parent_id", Text),
    # The event while it is parked for the instance: nobody can use the capability until then.
    Column("parked", Text),
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

# One row, locked by each change, so that versions appear in the order of commits.
change_head = Table(
    "change_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
)


# One row for each instance. `head` is the number of its newest buffer row; it is locked while rows
# are added, so numbers rise in the order of commits, also across processes.
# `series` makes a bufferId unlike any of an earlier store; `epoch` counts the upgrades.
queues = Table(
    "queues",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("series", Text, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("flipped", Integer, nullable=False),
    Column("flipped_at", BigInteger),
)

# What an instance has not acknowledged yet, and nothing else: an acknowledged row is deleted, a
# dead one moves to `dead_letters`. So the primary key is the only index that delivery needs; the
# other is for explaining what became of an event.
buffer = Table(
    "buffer",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("platform", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("deliveries", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # Where in a trace the event is; null for what an older version took.
    Column("traceparent", Text),
    sqlite_with_rowid=False,
)
Index("buffer_event", buffer.c.event)

dead_letter_rows = Table(
    "dead_letters",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("platform", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("deliveries", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("dead_at", BigInteger, nullable=False),
    Column("traceparent", Text),
    # Of an event that was given up while it was parked: what the gate decides by, so that a replay
    # is decided again, and how often it was parked.
    Column("gate", Text),
    Column("round", Integer),
)
Index("dead_letters_dead_at", dead_letter_rows.c.dead_at)
Index("dead_letters_event", dead_letter_rows.c.event)

# Events that the gate could not decide for one instance, because a platform did not answer, and
# those of the same session behind them. `gate` is what the gate decides by, as JSON. The rows of a
# session share `due_at` and `attempts`.
parked = Table(
    "parked",
    METADATA,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("instance", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("platform", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("session_key", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("gate", Text, nullable=False),
    Column("round", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("traceparent", Text),
)
Index("parked_session", parked.c.instance, parked.c.session_key, parked.c.number)
Index("parked_due_at", parked.c.due_at)
Index("parked_event", parked.c.event)

# Every event that was taken, so that a repeated one is recognised.
receipts = Table(
    "receipts",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("bot_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("event", Text, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    # By which rule it reached nobody, if it was only counted, because its author is not linked.
    Column("counted", Text),
    sqlite_with_rowid=False,
)
Index("receipts_received_at", receipts.c.received_at)

# How many messages of people who are not linked reached nobody, by hour (milliseconds since the
# epoch) and rule; '' for no tenant or instance. Nothing that strangers choose is in the key.
unlinked_counts = Table(
    "unlinked_counts",
    METADATA,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("platform", Text, primary_key=True),
    Column("bot_id", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("rule", Text, primary_key=True),
    Column("messages", BigInteger, nullable=False),
)

# From which chats something was delivered to an instance: the facts of the egress gate.
chats = Table(
    "chats",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("chat_id", Text, primary_key=True),
    Column("session_key", Text, primary_key=True),
    Column("bot_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("delivered_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("chats_session_key", chats.c.instance, chats.c.session_key)
Index("chats_delivered_at", chats.c.delivered_at)

# Whose messages were delivered from those chats: a right to answer ends with its author's link.
# `parent_id` is the channel of a thread, or ''.
chat_authors = Table(
    "chat_authors",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("platform", Text, primary_key=True),
    Column("scope_id", Text, primary_key=True),
    Column("chat_id", Text, primary_key=True),
    Column("author", Text, primary_key=True),
    Column("parent_id", Text, nullable=False),
    Column("delivered_at", BigInteger, nullable=False),
    # 1 if the author was not linked and the instance open to everybody; null means 0.
    Column("stranger", Integer),
    sqlite_with_rowid=False,
)
Index("chat_authors_delivered_at", chat_authors.c.delivered_at)

# The messages that instances sent, because only one's own may be edited.
messages = Table(
    "messages",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("chat_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("instance", Text, nullable=False),
    Column("sent_at", BigInteger, nullable=False),
)
Index("messages_sent_at", messages.c.sent_at)

# What a gateway asked for, by its `requestId`; `result` is null until it is known.
requests = Table(
    "requests",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("result", Text),
    Column("asked_at", BigInteger, nullable=False),
    # When the answer could not be written, because the socket had ended.
    Column("unwritten_at", BigInteger),
)
Index("requests_asked_at", requests.c.asked_at)
_is_unwritten = requests.c.unwritten_at.is_not(None)
Index(
    "requests_unwritten",
    requests.c.instance,
    requests.c.digest,
    sqlite_where=_is_unwritten,
    postgresql_where=_is_unwritten,
)

# The actions of agents that are not done yet, and those that never will be. A lane is a chat of an
# instance; its actions are done in the order of their numbers. Whoever performs one holds it until
# `held_until` by the database's clock; `epoch` rises with each holder. `sent` are the ids of the
# messages that are sent already, `tried_at` is when the next one was first tried without an answer.
outbox = Table(
    "outbox",
    METADATA,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("instance", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("platform", Text),
    Column("bot_id", Text),
    Column("lane", Text, nullable=False),
    Column("op", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("sent", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("due_at", BigInteger, nullable=False),
    Column("tried_at", BigInteger),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("held_until", BigInteger, nullable=False),
    # Why the last attempt failed, and when it was given up.
    Column("error", Text),
    Column("ended_at", BigInteger),
    Column("traceparent", Text),
    UniqueConstraint("instance", "request_id"),
)
is_waiting: Final = outbox.c.ended_at.is_(None)
"""The condition for actions that are still to be done."""
Index(
    "outbox_waiting",
    outbox.c.instance,
    outbox.c.lane,
    outbox.c.number,
    sqlite_where=is_waiting,
    postgresql_where=is_waiting,
)
Index("outbox_ended_at", outbox.c.ended_at)

# `expires_at` is milliseconds by the database's clock.
leases = Table(
    "leases",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# When retention was last applied, in milliseconds by the wall clock of who did it.
retention_passes = Table(
    "retention_passes",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("passed_at", BigInteger, nullable=False),
)

# Where the next owner of a platform's socket resumes.
resume_state = Table(
    "resume_state",
    METADATA,
    Column("lease", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

# The commands that an instance offers in the menu of a bot: the manifest of its hello.
command_offers = Table(
    "command_offers",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("bot_id", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("manifest", Text, nullable=False),
)

# Where another agent than the default one of its gateway answered last for an instance: `place` is
# a chat, or the session key of a follow-up as the default agent's.
chat_profiles = Table(
    "chat_profiles",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("place", Text, primary_key=True),
    Column("profile", Text, nullable=False),
    Column("told_at", BigInteger, nullable=False),
)

# When the bucket of somebody who is not linked is full again, for an instance that is open to
# everybody, in microseconds since the epoch; `person` is a pseudonym.
stranger_rates = Table(
    "stranger_rates",
    METADATA,
    Column("instance", Text, primary_key=True),
    Column("person", Text, primary_key=True),
    Column("full_at", BigInteger, nullable=False),
)
