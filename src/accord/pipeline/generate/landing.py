"""Landing a generated history: its segments under `landing/`, and the truth beside them.

The truth is written last, so a folder that has one holds a whole history.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from accord.kernel import canonical
from accord.kernel.files import write_private
from accord.pipeline.errors import PipelineError
from accord.pipeline.generate.arrivals import Portion
from accord.pipeline.generate.faults import Plan
from accord.pipeline.generate.history import ROWS, Generated
from accord.pipeline.generate.truth import Truth
from accord.pipeline.landing import Landing
from accord.pipeline.landing.segments import pack
from accord.pipeline.layout import Layout
from accord.pipeline.streams import STREAMS

TRUTH: Final = "truth.json"
"""The file's name in a pipeline's folder."""


def land(landing: Landing, portions: Iterable[Portion]) -> int:
    """Land records as segments, one for each portion, and say how many there were.

    Raises:
        PipelineError: The place cannot be written, or the records of a portion do not follow each
            other.
    """
    landed = 0
    for portion in portions:
        landing.put(*pack(portion.store.name, portion.entries))
        landed += len(portion.entries)
    return landed


def generate(
    folder: Path,
    *,
    events: int,
    seed: int,
    faults: Plan | None = None,
    streams: Collection[str] = STREAMS,
    rows: int = ROWS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Truth:
    """Make a history and land it in a pipeline's folder that has none.

    Args:
        folder: The pipeline's folder; `landing/` and `truth.json` are made in it.
        events: See `Generated`, also for the next three.
        seed: From which all of it follows.
        faults: How often each kind of fault is planted.
        streams: Which streams are made.
        rows: How many records a segment has at most.
        progress: Told how many records have landed, and of about how many.

    Raises:
        PipelineError: There cannot be such a history, something has landed there already, or the
            place cannot be written.
    """
    made = Generated(events, seed, faults=faults, streams=streams, rows=rows)
    landing, truth = Landing(Layout(folder).landing), folder / TRUTH
    if truth.exists() or any(landing.landed().values()):
        raise PipelineError(
            "something has landed there already",
            where=str(folder),
            mend="give a new folder: two histories do not make one",
        )
    done, total = 0, made.size
    for portion in made.portions():
        done += land(landing, [portion])
        progress(min(done, total), total)
    try:
        write_private(truth, canonical.encode(made.truth.to_dict()) + b"\n")
    except OSError as error:
        raise PipelineError(
            f"the truth cannot be written ({error.strerror})",
            where=str(truth),
            mend="choose a place that can be written and has space",
        ) from error
    return made.truth
