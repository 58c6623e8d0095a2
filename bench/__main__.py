"""`python -m bench [PART ...] [--json]`: run the benchmarks and print every figure.

`python -m bench walks [--files]` counts instead what one thing passes through.
"""

import argparse
import dataclasses
import importlib
import json
import platform
from collections.abc import Iterator

from bench import walks
from bench.figure import Figure

PARTS = (
    "kernel",
    "storage",
    "contracts",
    "contracts_compare",
    "community_bus",
    "community_fold",
    "community_log",
    "community_reconcile",
    "community_sync",
    "community_gossip",
    "community_growth",
    "relay_delivery",
    "relay_gate",
    "relay_processes",
    "telemetry",
    "authority_catalog",
    "authority_connects",
    "fabric_rpc",
    "fabric_jobs",
    "fabric_start",
    "capabilities_embed",
    "capabilities_file",
    "capabilities_chat",
    "capabilities_llm",
    "capabilities_rag",
    "pipeline",
    "corpus",
    "station_start",
    "first_start",
    "first_call",
    "console",
)


def main() -> None:
    """Run the parts that were asked for, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, epilog="example: python -m bench kernel"
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--files", action="store_true", help="name the files of `walks`")
    arguments = parser.parse_args()
    if arguments.parts == ["walks"]:
        walks.show(files=arguments.files)
        return
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    for part in arguments.parts or PARTS:
        figures = _run(part)
        if arguments.json:
            for figure in figures:
                print(json.dumps({"part": part, **dataclasses.asdict(figure)}), flush=True)
        else:
            _show(part, figures)


def _run(part: str) -> Iterator[Figure]:
    figures: Iterator[Figure] = importlib.import_module(f"bench.{part}").run()
    return figures


def _show(part: str, figures: Iterator[Figure]) -> None:
    print(f"\n{part} (Python {platform.python_version()}, {platform.machine()})")
    print(
        f"{'figure':36}{'ours':>12}{'baseline':>12} {'unit':11}{'ratio':>6} {'goal':14}baseline is"
    )
    for figure in figures:
        print(
            f"{figure.name:36}{figure.value:12,.0f}{figure.baseline:12,.0f} {figure.unit:11}"
            f"{figure.ratio:6.2f} {_goal(figure):14}{figure.baseline_name}",
            flush=True,
        )


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{figure.goal:g} {'missed' if figure.is_missed else 'reached'}"


if __name__ == "__main__":
    main()
