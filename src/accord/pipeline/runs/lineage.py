"""Lineage of runs: OpenLineage events in `runs/lineage.jsonl`, and posted to a URL if one is set.

A RunEvent is that of https://openlineage.io/spec/2-0-2/OpenLineage.json, with the facets schema,
version, statistics of inputs and outputs, and errorMessage. It is in the file before it is posted.
What could not be posted is posted with the next event. Neither a receiver that does not answer nor
an event that cannot be written stops a run.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from accord import __version__
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError
from accord.pipeline.folder import DEFAULT_FORMAT, LAYERS, Layout, table_format
from accord.pipeline.landing import Landing, admitted, segment_schema
from accord.pipeline.runs.reader import layer_paths, table_files
from accord.pipeline.runs.versions import published

if TYPE_CHECKING:
    from accord.web.outgoing import OutgoingPolicy


Kind: TypeAlias = Literal["START", "COMPLETE", "FAIL", "ABORT"]

NAMESPACE: Final = "accord"
"""The namespace of the jobs."""

_SPEC: Final = "https://openlineage.io/spec"
_EVENT: Final = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = {
    "errorMessage": "1-0-0/ErrorMessageRunFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
    "schema": "1-0-0/SchemaDatasetFacet",
    "version": "1-0-0/DatasetVersionDatasetFacet",
}
_LONGEST_ERROR: Final = 1000


@dataclass(frozen=True, slots=True)
class LineageRun:
    """A run of the pipeline."""

    id: str  # a UUID
    job: str  # such as `pipeline.run`
    release: str  # of Accord


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table or stream that a run reads or writes."""

    place: str  # a folder, or a URL without user and password
    name: str
    columns: Sequence[tuple[str, str]] = ()  # names and types
    rows: int | None = None
    bytes: int | None = None
    version: str | None = None


def run_event(
    run: LineageRun,
    kind: Kind,
    at_ms: int,
    inputs: Sequence[Dataset] = (),
    outputs: Sequence[Dataset] = (),
    error: str | None = None,
) -> dict[str, Any]:
    """The event that tells of a transition of a run."""
    producer = f"urn:accord:pipeline:{run.release}"
    facets = {}
    if error is not None:
        told = {"message": error[:_LONGEST_ERROR], "programmingLanguage": "PYTHON"}
        facets["errorMessage"] = _facet(producer, "errorMessage", told)
    return {
        "eventType": kind,
        "eventTime": format_time(at_ms / 1000, millis=True),
        "producer": producer,
        "schemaURL": _EVENT,
        "run": {"runId": run.id, "facets": facets},
        "job": {"namespace": NAMESPACE, "name": run.job, "facets": {}},
        "inputs": [_dataset(producer, each, "input") for each in inputs],
        "outputs": [_dataset(producer, each, "output") for each in outputs],
    }


def _dataset(producer: str, each: Dataset, side: str) -> dict[str, Any]:
    namespace, path = _named(each)
    facets, statistics = {}, {}
    if each.columns:
        fields = [{"name": name, "type": kind} for name, kind in each.columns]
        facets["schema"] = _facet(producer, "schema", {"fields": fields})
    if each.version is not None:
        facets["version"] = _facet(producer, "version", {"datasetVersion": each.version})
    if each.rows is not None:
        counted = {"rowCount": each.rows} | ({} if each.bytes is None else {"size": each.bytes})
        statistics[f"{side}Statistics"] = _facet(producer, f"{side}Statistics", counted)
    return {"namespace": namespace, "name": path, "facets": facets, f"{side}Facets": statistics}


def _named(each: Dataset) -> tuple[str, str]:
    """Namespace and name, as OpenLineage's conventions for files and object stores have it."""
    scheme, found, rest = each.place.partition("://")
    if not found:
        return "file", f"{each.place.rstrip('/')}/{each.name}"
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", "/".join(part for part in (path.strip("/"), each.name) if part)


def _facet(producer: str, name: str, members: Mapping[str, Any]) -> dict[str, Any]:
    home = _FACETS[name]
    url = f"{_SPEC}/facets/{home}.json#/$defs/{home.partition('/')[2]}"
    return {"_producer": producer, "_schemaURL": url, **members}


FILE: Final = "lineage.jsonl"
_STATE: Final = "lineage.json"
_MOST: Final = 16 << 20
"""Bytes after which the file of events is put aside, and the one before it is removed."""

_SECONDS: Final = 10.0
_LONGEST_REASON: Final = 200
_MORE: Final = frozenset({408, 425, 429})
"""Statuses below 500 after which an event is posted again."""


@dataclass(frozen=True)
class LineageTarget:
    """Where events are posted, and where that may lead."""

    url: str
    policy: "OutgoingPolicy"
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Lineage:
    """The events of one folder's runs."""

    layout: Layout
    landing: str | None = None
    target: LineageTarget | None = None

    @contextmanager
    def of_run(self, job: str) -> Iterator[Callable[[str | None, Mapping[str, int]], None]]:
        """Tell of the start of a run, and of its end or failure.

        Call what it yields with the published version and the rows of each layer.
        """
        run = LineageRun(str(uuid.uuid4()), job, __version__)
        ended: list[tuple[str | None, Mapping[str, int]]] = []
        self._emit(run, "START")
        try:
            yield lambda version, rows: ended.append((version, rows))
        except (KeyboardInterrupt, SystemExit):
            self._emit(run, "ABORT")
            raise
        except BaseException as error:
            # The text of other errors may hold anything.
            told = error.what if isinstance(error, AccordError) else type(error).__name__
            self._emit(run, "FAIL", error=told)
            raise
        self._emit(run, "COMPLETE", *ended[-1:])

    def _emit(
        self,
        run: LineageRun,
        kind: Kind,
        ended: tuple[str | None, Mapping[str, int]] | None = None,
        *,
        error: str | None = None,
    ) -> None:
        try:
            outputs = self._outputs(*ended) if ended is not None else ()
            now_ms = int(time.time() * 1000)
            _append(self.layout, run_event(run, kind, now_ms, self._inputs(), outputs, error))
            if self.target is not None:
                _post_waiting(self.layout, self.target)
        except (AccordError, OSError, ValueError) as problem:
            with suppress(OSError):
                told = f"an event cannot be written ({type(problem).__name__})"
                _write_state(self.layout, state(self.layout)["posted"], told)

    def _inputs(self) -> list[Dataset]:
        place = Landing(self.landing or self.layout.landing).label
        columns = [(each.name, str(each.type)) for each in segment_schema()]
        return [
            Dataset(place, stream, columns, rows)
            for stream, rows in sorted(admitted(self.layout).items())
        ]

    def _outputs(self, version: str | None, rows: Mapping[str, int]) -> list[Dataset]:
        if table_format(self.layout) != DEFAULT_FORMAT:
            return []
        layers = self.layout.root / "tables"
        found = [
            # The stream is in the names of the layer's folders.
            Dataset(str(layers), layer, [("stream", "string"), *columns], rows.get(layer, 0))
            for layer in LAYERS
            if (columns := _columns(layer_paths(self.layout, layer)))
        ]
        gold = published(self.layout)
        if gold is None or gold.name != version:
            return found
        for table in gold.tables:
            files = table_files(gold, table)
            found.append(
                Dataset(
                    str(self.layout.gold),
                    table,
                    _columns(files),
                    _rows(files),
                    sum(each.stat().st_size for each in files),
                    gold.name,
                )
            )
        return found


def state(layout: Layout) -> dict[str, Any]:
    """How many bytes of the file were posted, and why the last post failed; empty if none did."""
    try:
        found = json.loads((layout.runs / _STATE).read_bytes())
    except (OSError, ValueError):
        return {"posted": 0, "failed": None}
    return {"posted": int(found.get("posted", 0)), "failed": found.get("failed")}


def _columns(files: Sequence[Path]) -> list[tuple[str, str]]:
    from pyarrow import parquet

    if not files:
        return []
    return [(each.name, str(each.type)) for each in parquet.read_schema(files[0])]


def _rows(files: Sequence[Path]) -> int:
    from pyarrow import parquet

    return sum(parquet.read_metadata(each).num_rows for each in files)


def _append(layout: Layout, event: Mapping[str, Any]) -> None:
    file = layout.runs / FILE
    layout.runs.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > _MOST:
        file.replace(file.with_suffix(".old.jsonl"))
        _write_state(layout, 0, None)
    with file.open("ab") as opened:
        opened.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        opened.flush()
        os.fsync(opened.fileno())


def _write_state(layout: Layout, posted: int, failed: str | None) -> None:
    draft = layout.runs / f".{_STATE}.draft"
    draft.write_text(json.dumps({"posted": posted, "failed": failed}))
    draft.replace(layout.runs / _STATE)


def _post_waiting(layout: Layout, target: LineageTarget) -> None:
    posted = state(layout)["posted"]
    with (layout.runs / FILE).open("rb") as file:
        file.seek(posted)
        waiting = file.read()
    # The caller may be within an event loop, as a notebook is.
    with ThreadPoolExecutor(1) as pool:
        posted, failed = pool.submit(asyncio.run, _post(target, waiting, posted)).result()
    _write_state(layout, posted, failed)


async def _post(target: LineageTarget, waiting: bytes, posted: int) -> tuple[int, str | None]:
    """Post events in order; the place after the last that was taken, and why the next was not."""
    import httpx

    from accord.web.outgoing import guarded_client

    headers = {"content-type": "application/json"}
    if target.token:
        headers["authorization"] = f"Bearer {target.token}"
    refused = None
    try:
        async with asyncio.timeout(_SECONDS), guarded_client(target.policy) as client:
            for line in waiting.splitlines(keepends=True):
                answer = await client.post(target.url, content=line.strip(), headers=headers)
                status = answer.status_code
                if not answer.is_success:
                    refused = f"the receiver answered {status}"
                    # An event that is refused for good must not hold up the others.
                    if status >= 500 or status in _MORE or status < 400:
                        return posted, refused
                posted += len(line)
    except TimeoutError:
        return posted, f"the receiver took more than {_SECONDS:g} seconds"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return posted, f"the receiver cannot be reached ({type(error).__name__})"
    except AccordError as error:
        return posted, error.what[:_LONGEST_REASON]
    return posted, refused
