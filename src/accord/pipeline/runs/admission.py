"""Admission of segments: Spark reads only verified ones.

Every landed segment is verified once (digest, footer, columns) and linked or copied beside the
landing; a damaged one is left out, reported, and tried again next time.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.landing import Landing, Segment, parse_name
from accord.pipeline.rules.streams import STREAMS


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment that does not match its name and was left out."""

    stream: str
    segment: str
    reason: str


AdmissionProgress = Callable[[int, int], None]
"""Called with the number of segments that are done and of all."""


def admit(
    layout: Layout,
    landing: str | None = None,
    progress: AdmissionProgress = lambda _done, _total: None,
) -> tuple[list[Segment], list[DamagedSegment]]:
    """Admit what has landed since the last time; return the new segments and the damaged ones.

    `landing` is a folder or a URL; by default the landing in the pipeline's folder.
    """
    place = Landing(landing or layout.landing)
    local = Path(landing) if landing and "://" not in landing else layout.landing
    fresh = [
        segment
        for stream, known in admitted_names(layout).items()
        for segment in place.segments(stream)
        if segment.name not in known
    ]
    new, spoilt = [], []
    for done, segment in enumerate(fresh):
        progress(done, len(fresh))
        try:
            place.verify(segment)
        except PipelineError as error:
            spoilt.append(DamagedSegment(segment.stream, segment.name, error.what))
            continue
        source = None if landing and "://" in landing else local / segment.stream / segment.name
        try:
            _put(layout, segment, source, place)
        except OSError as error:
            raise PipelineError(
                f"a segment cannot be admitted: {error.strerror}",
                where=str(layout.admitted),
                mend="see that there is space, and run again",
            ) from error
        new.append(segment)
    _report(layout, spoilt)
    return new, spoilt


def admitted_names(layout: Layout) -> dict[str, set[str]]:
    """The names of the admitted segments, by stream."""
    return {stream: _names(layout, stream) for stream in STREAMS}


def admitted(layout: Layout) -> dict[str, int]:
    """The number of records in admitted segments, by stream."""
    counts: Counter[str] = Counter()
    for stream, names in admitted_names(layout).items():
        for name in names:
            segment = parse_name(stream, name)
            if segment is not None:
                counts[stream] += segment.rows
    return dict(counts)


def damaged_segments(layout: Layout) -> list[DamagedSegment]:
    """The segments that the last run left out."""
    try:
        return [DamagedSegment(**each) for each in json.loads(_spoilt(layout).read_bytes())]
    except FileNotFoundError:
        return []


def _names(layout: Layout, stream: str) -> set[str]:
    try:
        # Faster than pathlib, and there may be very many.
        names = os.listdir(layout.admitted / stream)  # noqa: PTH208
        return {name for name in names if name[0] not in "._"}
    except FileNotFoundError:
        return set()


def _put(layout: Layout, segment: Segment, source: Path | None, place: Landing) -> None:
    folder = layout.admitted / segment.stream
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        # Another file system, or one without links: the bytes are copied instead.
        with contextlib.suppress(OSError):
            os.link(source, folder / segment.name)
            return
    draft = folder / f"_{segment.name}"
    draft.write_bytes(place.read(segment))
    draft.rename(folder / segment.name)


def _report(layout: Layout, spoilt: list[DamagedSegment]) -> None:
    layout.runs.mkdir(parents=True, exist_ok=True)
    _spoilt(layout).write_text(json.dumps([asdict(each) for each in spoilt], indent=1))


def _spoilt(layout: Layout) -> Path:
    return layout.runs / "spoilt.json"
