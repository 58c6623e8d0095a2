"""What traces cost: a span where nobody records, where somebody does, and messages with both.

Messages go from the platform's call through a connector to the acknowledgement of a gateway in
another process, as in `relay_delivery`. They are held against the same connector from which every
span was taken out. What is recorded goes to a collector in a process of its own. They take turns,
the best round of each counts, and its measure is this process's own time, the sending thread's too.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import uvloop
from opentelemetry.trace import INVALID_SPAN

from accord.kernel.identifiers import Trace, parse_traceparent
from accord.station import trace_export
from accord.station.sections import TelemetrySettings
from accord.telemetry import tracing
from accord.testing.collector import collector
from bench.figure import Figure
from bench.measure import rates
from bench.relay_delivery import SESSIONS, flood
from bench.relay_fleet import connector, dialled, emptied, enrolled, gateways

EVENTS = 1_500
ROUNDS = 10
PLACE = Trace("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "01")

WITHOUT, UNRECORDED = "without spans", "nobody records"
SAMPLED, RECORDED = "one in ten recorded", "all recorded and sent"


def run() -> Iterator[Figure]:
    """Measure spans, then messages."""
    plain, bare = rates(_step, _block)
    yield Figure("span, nobody records", "spans/s", plain, bare, "a plain context manager")
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        with collector(Path(folder)) as receiver:
            settings = TelemetrySettings(traces=receiver.url)
            recorded = asyncio.run(_spans(settings))
            yield Figure("span, recorded and sent", "spans/s", recorded, bare, "the same")
            found = uvloop.run(_messages(folder, settings))
        for name in (UNRECORDED, SAMPLED, RECORDED):
            yield Figure(f"message, {name}", "per CPU s", found[name], found[WITHOUT], WITHOUT)
    text = str(PLACE)
    ours, split = rates(lambda: parse_traceparent(text), lambda: text.split("-"))
    yield Figure("parse a traceparent", "calls/s", ours, split, "splitting it")


def _step() -> None:
    with tracing.span("bench", verdict="deliver"):
        pass


@contextmanager
def _plain(**_: object) -> Iterator[None]:
    yield


def _block() -> None:
    with _plain(verdict="deliver"):
        pass


async def _spans(settings: TelemetrySettings) -> float:
    async with trace_export.export_traces(settings, service="bench"):
        return rates(_step, _block)[0]


async def _messages(folder: str, settings: TelemetrySettings) -> dict[str, float]:
    """Events per second of processor time, of each way."""
    few = settings.model_copy(update={"sample": 0.1})
    ways: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
        WITHOUT: _Without,
        UNRECORDED: nullcontext,
        SAMPLED: lambda: trace_export.export_traces(few, service="bench"),
        RECORDED: lambda: trace_export.export_traces(settings, service="bench"),
    }
    best = dict.fromkeys(ways, 0.0)
    fleet = await enrolled(folder, Path(folder), SESSIONS)
    async with connector(fleet) as (made, port):
        with gateways(port, fleet) as pipe:
            await dialled(pipe)
            await flood(made, "warm", EVENTS // 10)
            for number in range(ROUNDS):
                for name, way in ways.items():
                    start = time.process_time()
                    async with way():
                        await flood(made, f"{name} {number}", EVENTS)
                        await emptied(made)
                    best[name] = max(best[name], EVENTS / (time.process_time() - start))
    return best


class _Without:
    """Takes every span out for the time of a block."""

    def __init__(self) -> None:
        self._patches = ExitStack()

    async def __aenter__(self) -> None:
        nothing = nullcontext(INVALID_SPAN)
        for name in ("step", "entry", "apart"):
            self._patches.enter_context(patch.object(tracing, name, lambda *_, **__: nothing))
        for name in ("tell", "past", "current"):
            self._patches.enter_context(patch.object(tracing, name, lambda *_, **__: None))

    async def __aexit__(self, *_: object) -> None:
        self._patches.close()
