"""`python -m bench.report [PART ...]`: measure, keep the figures, and make the page."""

import argparse
import sys
from pathlib import Path
from typing import Final

from bench.__main__ import PARTS
from bench.figure import Figure
from bench.report import machine, page
from bench.report.measuring import keep, kept, measure

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
QUICK: Final = ("contracts", "relay_gate")
_LIMIT: Final = 3600.0


def main() -> int:
    """Measure what was asked for and is not measured yet; 1 if something failed."""
    arguments = _parser().parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        _parser().error(f"no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    folder = arguments.page.with_suffix("") / "raw"
    if not arguments.render:
        _measure(arguments, folder)
    found = [each for part in PARTS if (each := kept(part, folder)) is not None]
    unexplained = page.write(found, arguments.page)
    for name in unexplained:
        _say(f"missed, and not explained: {name}")
    failed = [each.part for each in found if each.failed]
    _say(f"{arguments.page} is made of {len(found)} parts; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _measure(arguments: argparse.Namespace, folder: Path) -> None:
    here, commit = machine.here(), machine.commit(ROOT)
    parts = arguments.parts or (QUICK if arguments.quick else PARTS)
    for number, part in enumerate(parts, 1):
        before = kept(part, folder)
        is_done = before is not None and not before.failed and before.commit == commit
        if is_done and not arguments.again:
            _say(f"[{number}/{len(parts)}] {part}: measured at {commit} already")
            continue
        _say(f"[{number}/{len(parts)}] {part} ...")
        found = measure(part, here, commit, arguments.limit, _show)
        keep(found, folder)
        outcome = f"failed: {found.failed.splitlines()[-1]}" if found.failed else "done"
        _say(f"[{number}/{len(parts)}] {part}: {outcome} after {found.seconds:g} s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description="Measure parts that this revision was not measured with yet, keep the figures "
        "beside the page, and make the page of all that were kept.",
        epilog="example: python -m bench.report kernel storage --again",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--again", action="store_true", help="measure what was measured, too")
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    parser.add_argument("--render", action="store_true", help="measure nothing, make the page")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds that a part may take")
    parser.add_argument("--page", type=Path, default=PAGE, help="which page to make")
    return parser


def _show(figure: Figure) -> None:
    goal = "" if figure.goal is None else f", {'missed' if figure.is_missed else 'reached'}"
    _say(f"    {figure.name}: {figure.value:,.4g} {figure.unit}, ratio {figure.ratio:.2f}{goal}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
