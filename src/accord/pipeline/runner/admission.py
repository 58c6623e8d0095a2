"""Admission: only whole segments come before Spark.

Every segment that landed is proven against its name once: digest, footer, columns, form. What holds
is put beside the landing, by a link where that can be; what does not is left out as a whole, said,
and looked at again next time. The names of admitted segments are the count of what landed. Never
changes the landing.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from accord.pipeline.errors import PipelineError
from accord.pipeline.landing.place import Landing
from accord.pipeline.landing.segments import Segment, parse_name
from accord.pipeline.layout import Layout
from accord.pipeline.runner.outcome import Spoilt
from accord.pipeline.streams import STREAMS

Told = Callable[[int, int], None]
"""Hears how many of how many are done."""


def admit(
    layout: Layout, landing: str | None = None, told: Told = lambda _done, _total: None
) -> tuple[list[Segment], list[Spoilt]]:
    """Admit what has landed since the last time.

    Args:
        layout: The pipeline's folder.
        landing: Where segments land, a folder or a URL, if not in the pipeline's folder.
        told: Hears of progress.

    Returns:
        The segments that are new, and those that cannot be used.

    Raises:
        PipelineError: The landing or the pipeline's folder cannot be used.
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
        told(done, len(fresh))
        try:
            place.verify(segment)
        except PipelineError as error:
            spoilt.append(Spoilt(segment.stream, segment.name, error.what))
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
    """The names of the segments that were admitted, by stream."""
    return {stream: _names(layout, stream) for stream in STREAMS}


def admitted(layout: Layout) -> dict[str, int]:
    """How many records landed in segments that were admitted, by stream."""
    counts: Counter[str] = Counter()
    for stream, names in admitted_names(layout).items():
        for name in names:
            segment = parse_name(stream, name)
            if segment is not None:
                counts[stream] += segment.rows
    return dict(counts)


def spoilt_segments(layout: Layout) -> list[Spoilt]:
    """The segments that the last run left out."""
    try:
        return [Spoilt(**each) for each in json.loads(_spoilt(layout).read_bytes())]
    except FileNotFoundError:
        return []


def _names(layout: Layout, stream: str) -> set[str]:
    try:
        # Faster than paths, and there may be very many.
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


def _report(layout: Layout, spoilt: list[Spoilt]) -> None:
    layout.runs.mkdir(parents=True, exist_ok=True)
    _spoilt(layout).write_text(json.dumps([asdict(each) for each in spoilt], indent=1))


def _spoilt(layout: Layout) -> Path:
    return layout.runs / "spoilt.json"
