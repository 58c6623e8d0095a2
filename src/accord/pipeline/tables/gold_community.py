"""Gold tables of communities, by the stages of the fold; see docs/concepts/gold-community.md.

Verdicts and states are those of the fold. Times are the events' own text unless a column is a
timestamp.
"""

from typing import TYPE_CHECKING, Any, Final

from accord.community.rules.chains import MEMBERSHIP_TYPES
from accord.community.rules.content import DEFAULT_POST_TTL_SECONDS
from accord.community.rules.verdicts import Status
from accord.pipeline import fold
from accord.pipeline.rules.streams import COMMUNITY_EVENTS
from accord.pipeline.tables.table import F, GoldTable, Tables, Touched, batch_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_MEMBERS: Final = (
    "members ARRAY<STRUCT<node_id: STRING, level: STRING, added_at: STRING, added_by: STRING>>"
)
_MANIFEST: Final = "node_id STRING, display_name STRING"
_POST: Final = (
    "event_id STRING, author STRING, client_id STRING, lamport BIGINT, created_at STRING, "
    "fields STRUCT<category: STRING, title: STRING, body: STRING, "
    "location: STRUCT<lat: STRING, lng: STRING, label: STRING>, tags: ARRAY<STRING>, "
    "ttl_seconds: BIGINT>, ended STRING"
)
_SAID: Final = f"{_POST[_POST.index('fields') : _POST.index(', ended')]}, reason STRING"
_MESSAGE: Final = (
    "event_id STRING, author STRING, recipient STRING, client_id STRING, lamport BIGINT, "
    "sent_at STRING, event STRING, attachments ARRAY<STRUCT<cid: STRING, name: STRING>>, "
    "delivered_at STRING, read_at STRING"
)
_FILE: Final = "cid STRING, holder STRING, size_bytes BIGINT"
_DOCUMENT: Final = (
    "corpus STRING, doc_cid STRING, ingester STRING, lamport BIGINT, title STRING, "
    "language STRING, chunks BIGINT"
)


def communities(tables: Tables) -> "DataFrame":
    """One row for each log: its number of events, `reach`, and its last event up to there.

    Events with a lamport above `reach` are quarantined.
    """
    events = _events(tables).drop("body")
    reached = list(fold.reaches(events).items())
    reaches = tables.spark.createDataFrame(reached, "community_id STRING, reach BIGINT")
    place = F.struct("lamport", "event_id", "digest")
    return (
        events.join(F.broadcast(reaches), "community_id")
        .groupBy("community_id", "reach")
        .agg(
            F.count("*").alias("events"),
            F.max(F.when(F.col("lamport") <= F.col("reach"), place)).alias("head"),
        )
    )


def author_chains(tables: Tables) -> "DataFrame":
    """Stage (a): one row for each author and log, with the summary of the author's chain."""
    return fold.chains(_events(tables), _reaches(tables))


def equivocations(tables: Tables) -> "DataFrame":
    """Authors who signed two events with the same number, with both events as proof."""
    forks = (
        tables.gold("author_chains")
        .where("fork_seq IS NOT NULL")
        .select(
            "community_id", "author", F.col("fork_seq").alias("author_seq"),
            F.posexplode(F.array("fork_first", "fork_second")).alias("place", "digest"),
        )
    )  # fmt: skip
    proofs = _events(tables).select("community_id", "digest", "body")
    proven = proofs.join(F.broadcast(forks), ["community_id", "digest"])
    one = [
        F.max(F.when(F.col("place") == number, F.struct("digest", "body"))).alias(name)
        for number, name in enumerate(("first", "second"))
    ]
    return proven.groupBy("community_id", "author", "author_seq").agg(*one)


def membership_timeline(tables: Tables) -> "DataFrame":
    """Stage (b): every membership event with its verdict, and the level or policy that it set."""
    import pyarrow as pa

    membership = fold.membership_rows(_events(tables))
    on = fold.grounds(_reaches(tables), tables.gold("author_chains"), membership)
    rows = fold.timeline(on.values(), membership)
    batch = batch_of(rows, fold.TIMELINE)
    return tables.spark.createDataFrame(pa.Table.from_batches([batch]))


def community_frames(tables: Tables) -> "DataFrame":
    """The state of membership and chains, without content, as JSON: one row for each log."""
    frames = [(each, fold.frame_of(on)) for each, on in _grounds(tables).items()]
    return tables.spark.createDataFrame(frames, "community_id STRING, frame STRING")


def community_parts(tables: Tables) -> "DataFrame":
    """Stages (c) and (d): every event's verdict, and the items of the state that content makes."""
    return fold.parts(_events(tables), _grounds(tables))


def event_verdicts(tables: Tables) -> "DataFrame":
    """The fold's verdict on every event, with the rule that decided."""
    verdicts = tables.gold("community_parts").where("section IS NULL")
    return verdicts.select(*fold.VERDICT_COLUMNS).drop("said")


def members(tables: Tables) -> "DataFrame":
    """The members at head."""
    frames = tables.gold("community_frames")
    found = frames.select("community_id", F.inline(F.from_json("frame", _MEMBERS)["members"]))
    names = _items(tables, "manifests", _MANIFEST)
    return found.join(names, ["community_id", "node_id"], "left")


def market(tables: Tables) -> "DataFrame":
    """The posts at head; `ended` is null while a post is open, at most until `expires_at`."""
    posts = _items(tables, "market", _POST)
    seconds = F.coalesce("fields.ttl_seconds", F.lit(DEFAULT_POST_TTL_SECONDS))
    expires = F.to_timestamp("created_at") + F.make_dt_interval(secs=seconds)
    return posts.select(
        *(name for name in posts.columns if name not in ("fields", "ended")),
        expires.alias("expires_at"),
        "fields.*",
        "ended",
    )


def market_history(tables: Tables) -> "DataFrame":
    """The history of posts: every event that changed one, and what it changed."""
    changes = tables.gold("community_parts").where("subject_kind = 'post' AND rule = 'accepted'")
    said = F.from_json("said", _SAID).alias("change")
    return changes.select(
        "community_id", F.col("subject").alias("post"), "lamport", "event_id", "digest", "author",
        "event_type", "at", said,
    ).select("*", "change.fields.*", "change.reason").drop("change")  # fmt: skip


def chat_messages(tables: Tables) -> "DataFrame":
    """Every message with sender, recipient and time, never its text."""
    return _items(tables, "chat", _MESSAGE)


def chat_threads(tables: Tables) -> "DataFrame":
    """One row for each pair of members that exchange messages."""
    pair = F.array_sort(F.array("author", "recipient"))
    return (
        tables.gold("chat_messages")
        .groupBy("community_id", pair[0].alias("one"), pair[1].alias("other"))
        .agg(
            F.count("*").alias("messages"),
            F.count("delivered_at").alias("delivered"),
            F.count("read_at").alias("read"),
            F.min("lamport").alias("first_lamport"),
            F.max("lamport").alias("last_lamport"),
            F.min("sent_at").alias("first_at"),
            F.max("sent_at").alias("last_at"),
        )
    )


def files(tables: Tables) -> "DataFrame":
    """Which member holds which file."""
    return _items(tables, "files", _FILE)


def corpora(tables: Tables) -> "DataFrame":
    """The documents of every corpus."""
    return _items(tables, "corpora", _DOCUMENT)


def state(tables: Tables) -> "DataFrame":
    """The state at head, byte for byte as a node writes it: one row for each log."""
    parts = tables.gold("community_parts")
    logs = tables.gold("communities")
    items = parts.where("section IS NOT NULL").select(
        "community_id", "section", "key", "second", "item"
    )
    nothing = logs.selectExpr(
        "community_id", "CAST(NULL AS STRING) AS section", "CAST(NULL AS STRING) AS key",
        "CAST(NULL AS STRING) AS second", "CAST(NULL AS STRING) AS item",
    )  # fmt: skip
    counts = _content_counts(parts)
    heads = {row.community_id: _position(row.head) for row in logs.collect()}
    frames = {
        row.community_id: fold.complete_state(
            row.frame, heads[row.community_id], counts.get(row.community_id, {})
        )
        for row in tables.gold("community_frames").collect()
    }
    return fold.states(items.unionByName(nothing), frames)


def _events(tables: Tables) -> "DataFrame":
    return tables.silver(COMMUNITY_EVENTS).select(
        "event.community_id", "event.lamport", "event.event_id", "event.author",
        "event.author_seq", "event.prev", "event.event_type", "digest", "body",
    )  # fmt: skip


def _reaches(tables: Tables) -> dict[str, int]:
    rows = tables.gold("communities").select("community_id", "reach").collect()
    return {row.community_id: row.reach for row in rows}


def _grounds(tables: Tables) -> fold.Grounds:
    """The settled membership again, from the timeline, which is small and has the events' text."""
    membership = fold.membership_rows(tables.gold("membership_timeline"))
    return fold.grounds(_reaches(tables), tables.gold("author_chains"), membership)


def _items(tables: Tables, section: str, schema: str) -> "DataFrame":
    """The items of a section as columns."""
    found = tables.gold("community_parts").where(F.col("section") == section)
    read = found.select("community_id", F.from_json("item", schema).alias("item"))
    return read.select("community_id", "item.*")


def _content_counts(parts: "DataFrame") -> dict[str, dict[str, int]]:
    """Content events by status; quarantined events count as content, as in the fold."""
    is_content = ~F.col("event_type").isin(*MEMBERSHIP_TYPES)
    is_quarantined = F.col("status") == Status.QUARANTINED.value
    verdicts = parts.where(F.col("section").isNull() & (is_content | is_quarantined))
    counts: dict[str, dict[str, int]] = {}
    for row in verdicts.groupBy("community_id", "status").count().collect():
        counts.setdefault(row["community_id"], {})[row["status"]] = row["count"]
    return counts


def _position(head: Any) -> dict[str, Any] | None:
    if head is None:
        return None
    return {"lamport": head.lamport, "event_id": head.event_id, "hash": f"blake3:{head.digest}"}


_EVENTS: Final = COMMUNITY_EVENTS
_GROUND: Final = ("communities", "author_chains", "membership_timeline")

_OF_COMMUNITY: Final = Touched(COMMUNITY_EVENTS, "community_id", "event.community_id")
"""What a log comes to depends on that log alone."""

COMMUNITY_TABLES: Final = tuple(
    GoldTable(name, build, needs, _OF_COMMUNITY)
    for name, build, needs in (
        ("communities", communities, (_EVENTS,)),
        ("author_chains", author_chains, (_EVENTS, "communities")),
        ("equivocations", equivocations, (_EVENTS, "author_chains")),
        ("membership_timeline", membership_timeline, (_EVENTS, "communities", "author_chains")),
        ("community_frames", community_frames, _GROUND),
        ("community_parts", community_parts, (_EVENTS, *_GROUND)),
        ("event_verdicts", event_verdicts, ("community_parts",)),
        ("members", members, ("community_frames", "community_parts")),
        ("market", market, ("community_parts",)),
        ("market_history", market_history, ("community_parts",)),
        ("chat_messages", chat_messages, ("community_parts",)),
        ("chat_threads", chat_threads, ("chat_messages",)),
        ("files", files, ("community_parts",)),
        ("corpora", corpora, ("community_parts",)),
        ("state", state, ("communities", "community_frames", "community_parts")),
    )
)
"""The tables, in the order of their dependencies."""
