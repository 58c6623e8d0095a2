"""One run, from what was admitted to a published version.

The order is the promise: layers first, then the account, then gold, then one swap. Whatever stops a
run before the swap leaves readers with what stood before.
"""

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from accord import __version__
from accord.pipeline.definitions import GOLD, Table
from accord.pipeline.definitions.accounting import Account, accounting, accounts
from accord.pipeline.errors import PipelineError
from accord.pipeline.landing.segments import Segment
from accord.pipeline.layout import LAYERS, Layout
from accord.pipeline.runner import admission, forgetting, gold, layers, moving, publishing
from accord.pipeline.runner.outcome import Outcome, Spoilt
from accord.pipeline.runner.settings import table_format
from accord.pipeline.runner.stored import Stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Steps = Callable[[str, int, int], None]
"""Hears what is being done, and which step of how many that is."""


def silent(_step: str, _done: int, _total: int) -> None:
    """Hear nothing."""


def prepare(
    layout: Layout, landing: str | None = None, told: Steps = silent
) -> tuple[list[Segment], list[Spoilt]]:
    """Everything of a run that needs no Spark: finish what was begun, admit what has landed.

    Raises:
        PipelineError: The folder or the landing cannot be used.
    """
    table_format(layout)
    forgetting.finish(layout)
    moving.settle(layout)
    return admission.admit(layout, landing, lambda done, total: told("admission", done, total))


def run(
    layout: Layout,
    spark: "SparkSession",
    *,
    now_ms: int,
    definitions: Sequence[Table] = GOLD,
    refreshed: Collection[str] = (),
    news: tuple[Sequence[Segment], Sequence[Spoilt]] = ((), ()),
    told: Steps = silent,
    alive: Callable[[], None] = lambda: None,
) -> Outcome:
    """Bring every table up to what was admitted, and publish.

    Args:
        layout: The folder, which the caller holds.
        spark: The session.
        now_ms: The time, for the record.
        definitions: The gold tables.
        refreshed: Gold tables that are built even if nothing has changed, with all downstream.
        news: What `prepare` found.
        told: Hears of progress.
        alive: Called whenever the work has come further.

    Raises:
        PipelineError: The account does not balance; nothing was published.
    """
    landed = admission.admitted(layout)
    steps = len(LAYERS) + 1 + len(definitions)
    done = 0

    def step(name: str) -> None:
        nonlocal done
        alive()
        told(name, done, steps)
        done += 1

    previous = publishing.published(layout)
    name = publishing.draft(layout)
    tables = Stored(spark, layout, table_format(layout), layout.version(name))
    rows, seconds = {}, {}
    for layer in LAYERS:
        step(layer)
        passed = layers.catch_up(layer, tables, landed, alive)
        rows[layer], seconds[layer] = passed.rows, passed.seconds
    step("accounting")
    started = time.monotonic()
    account = _account(tables, landed)
    seconds["accounting"] = time.monotonic() - started
    _require_balance(account)
    started = time.monotonic()
    facts = {
        "version": name,
        "published_at": now_ms,
        "accord": __version__,
        "layers": gold.layer_ids(layout),
        "accounts": [asdict(each) for each in account],
    }
    stale = gold.stale_tables(definitions, previous, facts, refreshed)
    gold.write_accounting(tables, account)
    built = gold.build(tables, definitions, stale, previous, step)
    seconds["gold"] = time.monotonic() - started
    publishing.publish(layout, name, facts)
    publishing.sweep(layout)
    outcome = Outcome(name, True, len(news[0]), news[1], account, rows, seconds, built)
    _record(layout, now_ms, outcome)
    told("published", steps, steps)
    return outcome


def _account(tables: Stored, landed: dict[str, int]) -> list[Account]:
    counted = accounting(*(tables.layer(name) for name in LAYERS)).collect()
    return accounts(landed, {(row["stream"], row["term"]): row["count"] for row in counted})


def _require_balance(account: Sequence[Account]) -> None:
    wrong = [each for each in account if each.broken_layer is not None]
    if not wrong:
        return
    told = "; ".join(
        f"{each.stream}: landed {each.landed}, bronze {each.bronze}, checked {each.checked}, "
        f"accepted {each.accepted}, quarantined {each.quarantined}, duplicates {each.duplicates}"
        for each in wrong
    )
    layer = min((each.broken_layer or "" for each in wrong), key=LAYERS.index)
    raise PipelineError(
        f"the records do not add up, and nothing was published ({told})",
        mend=f"run `accord pipeline refresh {layer}`; its checkpoint does not fit its table",
    )


def _record(layout: Layout, now_ms: int, outcome: Outcome) -> None:
    with (layout.runs / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": now_ms, **outcome.payload()}) + "\n")
