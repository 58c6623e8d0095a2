"""Stage (a): how far each log reaches, and each author's chain, in parallel.

Reads places and links, never a body. Gives what `fold.chains` makes of them.
"""

from collections.abc import Iterator, Mapping
from itertools import chain as chained
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from accord.community.fold import VERDICTS, Link
from accord.community.fold.chains import MAX_GAP, Chain, chain_of, reach
from accord.pipeline.rows import Columns, Row, map_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHAINS: Final[Columns] = {
    "community_id": "STRING",
    "author": "STRING",
    "head_seq": "BIGINT",
    "head_hash": "STRING",
    "head_lamport": "BIGINT",
    "seen_seq": "BIGINT",
    "fork_seq": "BIGINT",
    "fork_first": "STRING",
    "fork_second": "STRING",
    "cut_seq": "BIGINT",
    "cut_rule": "STRING",
}
"""A chain, as `fold.chains.Chain` describes it; the events of a fork by their digests."""


def reaches(events: "DataFrame") -> dict[str, int]:
    """The greatest lamport of each community that is not quarantined.

    Within a span as wide as the widest gap nothing is quarantined, so its ends tell as much as all
    that lies between.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    span = F.expr(f"lamport DIV {MAX_GAP}").alias("span")
    ends = (
        events.groupBy("community_id", span)
        .agg(F.min("lamport"), F.max("lamport"))
        .drop("span")
        .collect()
    )
    return {
        community_id: reach(chained.from_iterable(row[1:] for row in rows))
        for community_id, rows in groupby(sorted(map(tuple, ends)), key=itemgetter(0))
    }


def chains(events: "DataFrame", reached: Mapping[str, int]) -> "DataFrame":
    """The chain of every author, one row each."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    def sum_up(rows: Iterator[Row]) -> Iterator[Row]:
        for (community_id, author), links in groupby(rows, key=itemgetter(0, 1)):
            found = chain_of(map(_link, links), reached[community_id])
            if found.seen_seq:
                yield (community_id, author, *_row(found))

    links = (
        events.select("community_id", "author", "author_seq", "digest", "prev", "lamport")
        .repartition("community_id", "author")
        .sortWithinPartitions(
            "community_id", "author", F.asc_nulls_first("author_seq"), F.asc("digest")
        )
    )
    return map_partitions(links, sum_up, CHAINS)


def chain_from(row: Row) -> Chain:
    """A chain from its columns, without those that say whose it is."""
    head_seq, head_hash, head_lamport, seen_seq, at, first, second, cut_seq, cut_rule = row
    fork = None if at is None else (at, bytes.fromhex(first), bytes.fromhex(second))
    cut = None if cut_seq is None else (cut_seq, VERDICTS[cut_rule])
    return Chain(head_seq, head_hash, head_lamport, seen_seq, fork, cut)


def _link(row: Row) -> Link:
    _, author, author_seq, digest, prev, lamport = row
    return Link(author, author_seq, bytes.fromhex(digest), prev, lamport)


def _row(chain: Chain) -> Row:
    at, first, second = chain.fork or (None, b"", b"")
    cut_seq, cut = chain.cut or (None, None)
    return (
        chain.head_seq,
        chain.head_hash,
        chain.head_lamport,
        chain.seen_seq,
        at,
        first.hex() or None,
        second.hex() or None,
        cut_seq,
        None if cut is None else cut.rule,
    )
