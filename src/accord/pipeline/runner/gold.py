"""Building gold: each table in its turn, in a version that nobody reads yet.

A table whose inputs have not changed since the published version is carried over by links instead
of being built again. Never publishes.
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from accord.pipeline.definitions import Table, downstream
from accord.pipeline.definitions.accounting import TERMS, Account
from accord.pipeline.layout import LAYERS, Layout
from accord.pipeline.runner.publishing import Version
from accord.pipeline.runner.stored import Stored


def build(
    tables: Stored,
    definitions: Sequence[Table],
    stale: Collection[str],
    previous: Version | None,
    told: Callable[[str], None],
) -> list[str]:
    """Fill a draft with every table, and return the names of those that were built.

    Args:
        tables: What they read; its version is the draft.
        definitions: The tables, in the order of their dependencies.
        stale: The names that must be built.
        previous: The version from which the others are carried over.
        told: Hears the name of each table before it is made.
    """
    built = []
    for table in definitions:
        told(table.name)
        target = tables.version / table.name
        if previous is not None and table.name not in stale:
            _carry(previous.path / table.name, target)
        else:
            frame = table.build(tables)
            frame.write.format(tables.table_format).save(str(target))
            built.append(table.name)
    return built


def write_accounting(tables: Stored, accounts: Sequence[Account]) -> None:
    """Write what became of every record as the table `accounting`."""
    kinds = ", ".join(f"{term} BIGINT" for term in TERMS)
    rows = [astuple(account) for account in accounts]
    frame = tables.spark.createDataFrame(rows, f"stream STRING, {kinds}").coalesce(1)
    frame.write.format(tables.table_format).save(str(tables.version / "accounting"))


def stale_tables(
    definitions: Sequence[Table],
    previous: Version | None,
    facts: Mapping[str, Any],
    refreshed: Collection[str] = (),
) -> frozenset[str]:
    """The tables that must be built, by what changed since the published version.

    Layers only grow, so a stream whose counts are the same holds the same records, unless a layer
    was made anew.
    """
    same = ("accord", "layers")
    if previous is None or any(previous.facts.get(name) != facts[name] for name in same):
        return frozenset(table.name for table in definitions)
    before, now = _counts(previous.facts), _counts(facts)
    changed = {stream for stream, counts in now.items() if before.get(stream) != counts}
    missing = {table.name for table in definitions} - set(previous.tables)
    return downstream(definitions, {*changed, *missing, *refreshed})


def layer_ids(layout: Layout) -> dict[str, str]:
    """What tells a layer from one that was made anew: the id in its checkpoint."""
    ids = {}
    for layer in LAYERS:
        told = json.loads((layout.checkpoint(layer) / "metadata").read_bytes())
        ids[layer] = str(told["id"])
    return ids


def _counts(facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    told = facts.get("accounts", ())
    return {each["stream"]: (each["accepted"], each["quarantined"]) for each in told}


def _carry(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # A file system without links.
        shutil.copy2(source, target)
