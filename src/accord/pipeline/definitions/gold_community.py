"""Gold community: what every log comes to, by the stages of the fold.

One function per table. The first tables are the stages themselves, which
docs/concepts/gold-community.md walks through; the others are read off them. Verdicts and states are
the fold's own; nothing is decided here. Times are the events' own words unless a column is a
timestamp.
"""

from typing import TYPE_CHECKING, Any, Final

from accord.community.fold.content import DEFAULT_TTL_SECONDS
from accord.community.fold.history import MEMBERSHIP
from accord.community.fold.verdicts import Status
from accord.pipeline.community import chains as stage_a
from accord.pipeline.community import content as stages_cd
from accord.pipeline.community import membership as stage_b
from accord.pipeline.community import state as the_state
from accord.pipeline.definitions.table import Table
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.rows import batch_of
from accord.pipeline.streams import COMMUNITY_EVENTS

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
    """One row for each log: how many events, how far it reaches, and the last that counts there.

    What lies above `reach` is quarantined.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    events = _events(tables).drop("body")
    reached = list(stage_a.reaches(events).items())
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
    """Stage (a): one row for each author and log, as `fold.chains.Chain` has it."""
    return stage_a.chains(_events(tables), _reaches(tables))


def equivocations(tables: Tables) -> "DataFrame":
    """Who signed two events with one number, and both events as proof."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

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

    membership = stage_b.membership_rows(_events(tables))
    on = stage_b.grounds(_reaches(tables), tables.gold("author_chains"), membership)
    rows = stage_b.timeline(on.values(), membership)
    batch = batch_of(rows, stage_b.TIMELINE)
    return tables.spark.createDataFrame(pa.Table.from_batches([batch]))


def community_frames(tables: Tables) -> "DataFrame":
    """The state that membership and chains alone come to, as JSON: one row for each log."""
    frames = [(each, stage_b.frame_of(on)) for each, on in _grounds(tables).items()]
    return tables.spark.createDataFrame(frames, "community_id STRING, frame STRING")


def community_parts(tables: Tables) -> "DataFrame":
    """Stages (c) and (d): every event's verdict, and every item that the state has of content."""
    return stages_cd.parts(_events(tables), _grounds(tables))


def event_verdicts(tables: Tables) -> "DataFrame":
    """What the fold says of every event, with the rule that decided."""
    verdicts = tables.gold("community_parts").where("section IS NULL")
    return verdicts.select(*stages_cd.VERDICT_COLUMNS).drop("said")


def members(tables: Tables) -> "DataFrame":
    """Who belongs at head."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    frames = tables.gold("community_frames")
    found = frames.select("community_id", F.inline(F.from_json("frame", _MEMBERS)["members"]))
    names = _items(tables, "manifests", _MANIFEST)
    return found.join(names, ["community_id", "node_id"], "left")


def market(tables: Tables) -> "DataFrame":
    """The posts as they are now; `ended` is null while one stands, which is until `expires_at`."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    posts = _items(tables, "market", _POST)
    seconds = F.coalesce("fields.ttl_seconds", F.lit(DEFAULT_TTL_SECONDS))
    expires = F.to_timestamp("created_at") + F.make_dt_interval(secs=seconds)
    return posts.select(
        *(name for name in posts.columns if name not in ("fields", "ended")),
        expires.alias("expires_at"),
        "fields.*",
        "ended",
    )


def market_history(tables: Tables) -> "DataFrame":
    """How the posts came to be so: every event that changed one, and what it said."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    changes = tables.gold("community_parts").where("subject_kind = 'post' AND rule = 'accepted'")
    said = F.from_json("said", _SAID).alias("change")
    return changes.select(
        "community_id", F.col("subject").alias("post"), "lamport", "event_id", "digest", "author",
        "event_type", "at", said,
    ).select("*", "change.fields.*", "change.reason").drop("change")  # fmt: skip


def chat_messages(tables: Tables) -> "DataFrame":
    """Every message as others may see it: who to whom and when, never what."""
    return _items(tables, "chat", _MESSAGE)


def chat_threads(tables: Tables) -> "DataFrame":
    """Who writes with whom: one row for each pair of members."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

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
    """Who holds which file."""
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
        row.community_id: the_state.completed(
            row.frame, heads[row.community_id], counts.get(row.community_id, {})
        )
        for row in tables.gold("community_frames").collect()
    }
    return the_state.states(items.unionByName(nothing), frames)


def _events(tables: Tables) -> "DataFrame":
    return tables.silver(COMMUNITY_EVENTS).select(
        "event.community_id", "event.lamport", "event.event_id", "event.author",
        "event.author_seq", "event.prev", "event.event_type", "digest", "body",
    )  # fmt: skip


def _reaches(tables: Tables) -> dict[str, int]:
    rows = tables.gold("communities").select("community_id", "reach").collect()
    return {row.community_id: row.reach for row in rows}


def _grounds(tables: Tables) -> stage_b.Grounds:
    """Settled again from the timeline, which is small and has the events' text."""
    membership = stage_b.membership_rows(tables.gold("membership_timeline"))
    return stage_b.grounds(_reaches(tables), tables.gold("author_chains"), membership)


def _items(tables: Tables, section: str, schema: str) -> "DataFrame":
    """The items of a section as columns."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    found = tables.gold("community_parts").where(F.col("section") == section)
    read = found.select("community_id", F.from_json("item", schema).alias("item"))
    return read.select("community_id", "item.*")


def _content_counts(parts: "DataFrame") -> dict[str, dict[str, int]]:
    """Content events by status; what is quarantined counts as content, as in the fold."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    is_content = ~F.col("event_type").isin(*MEMBERSHIP)
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

TABLES: Final = (
    Table("communities", communities, (_EVENTS,)),
    Table("author_chains", author_chains, (_EVENTS, "communities")),
    Table("equivocations", equivocations, (_EVENTS, "author_chains")),
    Table("membership_timeline", membership_timeline, (_EVENTS, "communities", "author_chains")),
    Table("community_frames", community_frames, _GROUND),
    Table("community_parts", community_parts, (_EVENTS, *_GROUND)),
    Table("event_verdicts", event_verdicts, ("community_parts",)),
    Table("members", members, ("community_frames", "community_parts")),
    Table("market", market, ("community_parts",)),
    Table("market_history", market_history, ("community_parts",)),
    Table("chat_messages", chat_messages, ("community_parts",)),
    Table("chat_threads", chat_threads, ("chat_messages",)),
    Table("files", files, ("community_parts",)),
    Table("corpora", corpora, ("community_parts",)),
    Table("state", state, ("communities", "community_frames", "community_parts")),
)
"""The tables, in the order of their dependencies."""
