"""The quarantine: refused records are looked at, repaired, and admitted again with a trail.

What is admitted lands as a new segment; the refused record stays in the quarantine. The trail (who,
when, by which operations, the digest of the original) is in `repairs.jsonl` of the folder.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.landing import Landing, Segment, admitted_names, pack, parse_name
from accord.pipeline.rules.checks import Manifests, read_manifests, rules_version
from accord.pipeline.rules.repairs import Operation, RefusedRecord, RepairedRecord, repair
from accord.pipeline.rules.streams import CONTRACTS_HISTORY, STREAMS
from accord.pipeline.runs.reader import TableReader, open_reader

TRAIL: Final = "repairs.jsonl"
MOST_RECORDS: Final = 1000
"""The most records of one admission."""

_DIGEST: Final = 64
_COLUMNS: Final = "digest, stream, id, seq, source, recorded_at, rule, reason, segment, body"


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A refused record, and its verdict."""

    digest: str  # names it; see the column `digest`
    stream: str
    id: str
    seq: int
    source: str
    recorded_at: int
    rule: str
    reason: str
    segment: str
    body: str | None

    @property
    def refused(self) -> RefusedRecord:
        """What a repair begins with."""
        return RefusedRecord(self.stream, self.id, self.body)


@dataclass(frozen=True, slots=True)
class Admission:
    """A segment of repaired records that landed."""

    segment: Segment
    trail: Sequence[Mapping[str, Any]]  # an entry for each record


def refused_records(
    layout: Layout, *, stream: str | None = None, rule: str | None = None, limit: int = 100
) -> list[QuarantinedRecord]:
    """The refused records, newest first; raises `PipelineError` if nothing is published."""
    question = (
        f"SELECT {_COLUMNS} FROM quarantined WHERE (? IS NULL OR stream = ?) "  # noqa: S608
        "AND (? IS NULL OR rule = ?) ORDER BY recorded_at DESC, digest LIMIT ?"
    )
    with open_reader(layout) as reader:
        _require_quarantine(reader, layout)
        rows = reader.rows(question, stream, stream, rule, rule, limit)
    return [QuarantinedRecord(*row) for row in rows]


def find_records(
    layout: Layout, digests: Sequence[str]
) -> tuple[list[QuarantinedRecord], Manifests]:
    """The refused records with these digests, or beginnings of them, and all presented manifests.

    Raises PipelineError if one is not there or not the only one.
    """
    if not digests or len(digests) > MOST_RECORDS:
        raise PipelineError(f"name between 1 and {MOST_RECORDS} records")
    found: dict[str, QuarantinedRecord] = {}
    with open_reader(layout) as reader:
        _require_quarantine(reader, layout)
        for digest in digests:
            each = _find(reader, digest)
            found[each.digest] = each
        manifests = _manifests(reader)
    return list(found.values()), manifests


def trail(layout: Layout) -> list[dict[str, Any]]:
    """Every admission of a repaired record, oldest first; raises `PipelineError` if unreadable."""
    try:
        lines = (layout.root / TRAIL).read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        raise PipelineError(
            "the trail of repairs cannot be read",
            where=str(layout.root / TRAIL),
            mend="restore it from a backup, or move it away",
        ) from None


def admit_repaired(
    layout: Layout,
    records: Sequence[QuarantinedRecord],
    operations: Sequence[Operation],
    manifests: Manifests,
    *,
    by: str,
    name: str,
    now_ms: int,
    landing: str | None = None,
) -> Admission:
    """Land repaired records of one stream as a new segment, all of them or none.

    `by` is who decided, `name` what the repair is called. Raises PipelineError if a record does not
    stand after the repair, or was admitted so before; nothing has landed then.
    """
    done = [(each, repair(each.refused, operations, manifests)) for each in records]
    if len({each.stream for each in records}) != 1:
        raise PipelineError("records that are admitted together are of one stream")
    for each, repaired in done:
        if not repaired.stands:
            raise PipelineError(
                f"the record breaks a rule after the repair, too: {repaired.verdict.rule} "
                f"({repaired.verdict.reason})",
                where=each.digest,
                mend="look at it with `accord pipeline quarantine repair`; nothing was admitted",
            )
    place = Landing(landing or layout.landing)
    segment, data = _pack(layout, place, done)
    entries = [
        {
            "admitted_at": format_time(now_ms / 1000, millis=True),
            "by": by,
            "repair": name,
            "operations": [each.payload() for each in operations],
            "stream": one.stream,
            "id": one.id,
            "record": one.digest,
            "broke": one.rule,
            "original": one.refused.original,
            "result": RefusedRecord(one.stream, one.id, repaired.body).original,
            "rules_version": rules_version(),
            "segment": segment.name,
        }
        for one, repaired in done
    ]
    # First the trail: an entry without its segment is of an admission that was cut short.
    _append(layout, entries)
    place.put(segment, data)
    return Admission(segment, entries)


def _pack(
    layout: Layout, place: Landing, done: Sequence[tuple[QuarantinedRecord, RepairedRecord]]
) -> tuple[Segment, bytes]:
    from accord.storage import JournalEntry

    stream = done[0][0].stream
    told = sorted([one.digest, repaired.body] for one, repaired in done)
    # The same records and results have the same name, so they land once.
    store = f"repaired-{blake3(canonical.encode(told)).hexdigest()[:16]}"
    known = {*place.segments(stream), *place.retired(stream)} if stream in STREAMS else set()
    names = {each.name for each in known} | admitted_names(layout).get(stream, set())
    if any((found := parse_name(stream, each)) and found.store == store for each in names):
        raise PipelineError(
            "these records were admitted in this form before",
            where=done[0][0].digest,
            mend="`accord pipeline run` brings them into the tables",
        )
    entries = [
        JournalEntry(
            stream=stream,
            seq=number,
            id=one.id,
            recorded_at=one.recorded_at,
            source=one.source,
            body=repaired.body,
        )
        for number, (one, repaired) in enumerate(done, 1)
    ]
    return pack(store, entries)


def _append(layout: Layout, entries: Sequence[Mapping[str, Any]]) -> None:
    file = layout.root / TRAIL
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in entries)
    try:
        with file.open("ab") as opened:
            opened.write(text.encode("utf-8", "surrogatepass"))
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        raise PipelineError(
            f"the trail of repairs cannot be written: {error.strerror}", where=str(file)
        ) from error


def _require_quarantine(reader: TableReader, layout: Layout) -> None:
    if ("quarantined",) not in reader.rows("SHOW TABLES"):
        raise PipelineError(
            "nothing was checked yet", where=str(layout.root), mend="run `accord pipeline run`"
        )


def _find(reader: TableReader, digest: str) -> QuarantinedRecord:
    wanted = digest.lower()
    if not 8 <= len(wanted) <= _DIGEST or set(wanted) - set("0123456789abcdef"):
        raise PipelineError(
            f"{digest[:80]!r} is not the digest of a record",
            mend="`accord pipeline quarantine list` shows them; the first 8 characters are enough",
        )
    rows = reader.rows(
        f"SELECT DISTINCT ON (digest) {_COLUMNS} FROM quarantined "  # noqa: S608
        "WHERE starts_with(digest, ?) LIMIT 2",
        wanted,
    )
    if len(rows) != 1:
        raise PipelineError(
            "no refused record has this digest" if not rows else "several digests begin so",
            where=wanted,
            mend="`accord pipeline quarantine list` shows them",
        )
    return QuarantinedRecord(*rows[0])


def _manifests(reader: TableReader) -> Manifests:
    import pyarrow as pa

    if ("silver",) not in reader.rows("SHOW TABLES"):
        return Manifests({})
    question = "SELECT body FROM silver WHERE stream = ?"
    bodies = [body for (body,) in reader.rows(question, CONTRACTS_HISTORY)]
    found = read_manifests(pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.string())}))
    return Manifests({each["digest"]: each["manifest"] for each in found.to_pylist()})
