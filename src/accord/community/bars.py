"""Nodes whose bad answers are remembered, also across restarts."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from accord.community.rules import formats, routing
from accord.community.rules.routing import Bar, Misconduct
from accord.kernel.files import sync_folder, write_private

_log = structlog.stdlib.get_logger(__name__)

_MAX_BYTES: Final = 4 * 1024 * 1024


@dataclass(eq=False, repr=False)
class BarredNodes:
    """The bars of one node's router, at most `most`; the one that ends first makes room.

    Losing the file costs a call to a node that misbehaves again, so a damaged one is ignored.
    """

    file: Path
    most: int
    counts: Counter[tuple[str]] = field(default_factory=Counter, init=False)
    _bars: dict[tuple[str, str], Bar] = field(default_factory=dict, init=False)

    def load(self, now: float) -> None:
        """Read what was remembered."""
        try:
            with self.file.open("rb") as opened:
                written = json.loads(opened.read(_MAX_BYTES))
            bars = [_parse(each) for each in written["bars"][: self.most]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("the file of barred nodes is ignored", file=str(self.file), why=str(error))
            return
        self._bars = {(b.node_id, b.capability): b for b in bars if not b.is_forgotten(now)}

    def find(self, node_id: str, capability: str, now: float) -> Bar | None:
        """The bar that keeps a capability of a node from being called."""
        for key in ((node_id, ""), (node_id, capability)):
            found = self._bars.get(key)
            if found is not None and not found.is_over(now):
                return found
        return None

    def add(self, node_id: str, capability: str, kind: Misconduct, now: float) -> Bar:
        """Bar a node after a misconduct; `save` makes it last."""
        self.counts[(kind.value,)] += 1
        before = self._bars.get((node_id, "" if kind.concerns_all else capability))
        made = routing.bar(before, node_id, capability, kind, now)
        self._bars = {key: b for key, b in self._bars.items() if not b.is_forgotten(now)}
        self._bars[made.node_id, made.capability] = made
        while len(self._bars) > self.most:
            del self._bars[min(self._bars, key=lambda key: self._bars[key].until)]
        return made

    def forget(self, node_id: str) -> bool:
        """Forget the bars of a node; whether there were any."""
        found = [key for key in self._bars if key[0] == node_id]
        for key in found:
            del self._bars[key]
        return bool(found)

    def current(self, now: float) -> list[Bar]:
        """The bars that are in force."""
        return [each for each in self._bars.values() if not each.is_over(now)]

    def save(self) -> None:
        """Replace the file. Blocks."""
        bars = [
            {
                "node_id": each.node_id,
                "capability": each.capability,
                "kind": each.kind.value,
                "count": each.count,
                "until": each.until,
            }
            for each in tuple(self._bars.values())
        ]
        draft = self.file.with_name(f".{self.file.name}")
        try:
            draft.unlink(missing_ok=True)
            write_private(draft, json.dumps({"bars": bars}).encode())
            draft.rename(self.file)
            sync_folder(self.file.parent)
        except OSError as error:
            _log.warning("barred nodes could not be stored", file=str(self.file), why=str(error))


def _parse(written: Any) -> Bar:
    if not formats.is_id(written["node_id"]) or not isinstance(written["capability"], str):
        raise ValueError("not a bar")
    return Bar(
        written["node_id"],
        written["capability"],
        Misconduct(written["kind"]),
        int(written["count"]),
        float(written["until"]),
    )
