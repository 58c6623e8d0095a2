"""Runs as OpenLineage events: from the facts of a run to a RunEvent.

https://openlineage.io/spec/2-0-2/OpenLineage.json, with the facets schema, version, statistics of
inputs and outputs, and errorMessage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from accord.kernel.clock import format_time

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
_LONGEST: Final = 1000


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
        told = {"message": error[:_LONGEST], "programmingLanguage": "PYTHON"}
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
