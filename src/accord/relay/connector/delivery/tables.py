"""The tables of the delivery half: what is owed to whom, and what has been said.

Times are milliseconds since the Unix epoch, by the connector's clock; only a lease goes by the
database's. A chat without a scope has the scope ''. Nothing in here is secret, but the bodies in
`buffer` and `dead_letters` are what people wrote.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text

from accord.relay.connector.schema import METADATA

# One row for each instance. `head` is the number of its newest buffer row: whoever adds one locks
# this row until the commit, so numbers rise in the order of commits, also across processes.
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
# other is for whoever asks what became of an event.
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

dead_letters = Table(
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
)
Index("dead_letters_dead_at", dead_letters.c.dead_at)
Index("dead_letters_event", dead_letters.c.event)

# Every event that was taken, so that it is taken once.
receipts = Table(
    "receipts",
    METADATA,
    Column("platform", Text, primary_key=True),
    Column("bot_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("event", Text, nullable=False),
    Column("received_at", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
Index("receipts_received_at", receipts.c.received_at)

# From which chats something was delivered to an instance: what the egress gate goes by.
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
)
Index("requests_asked_at", requests.c.asked_at)

# `expires_at` is milliseconds by the database's clock.
leases = Table(
    "leases",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
)

# Where the next owner of a platform's socket goes on.
resume_state = Table(
    "resume_state",
    METADATA,
    Column("lease", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
