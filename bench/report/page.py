"""`docs/benchmarks.md`, made of what was kept. It measures nothing.

What a part says of itself, and why it missed a goal, is read from its source and not run.
"""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.figure import Figure
from bench.report import plots
from bench.report.measuring import Measured

PARTS_FOLDER: Final = Path(__file__).parents[1]
_INTRO: Final = """\
# Benchmarks

Every figure stands beside a baseline that was measured in the same run: mostly the bare library or
server that does the least part of the same work. The ratio is ours in terms of the baseline. Units
that say how much is done (`calls/s`, `MB/s`) are better when large, those that say what it costs
(`ms`, `bytes`) when small; goals are always ratios that should be reached or exceeded.

This page is made by `make bench-report` of the figures in `docs/benchmarks/raw`, and nobody edits
it. `make bench ARGS=PART` takes the figures of one part and prints them.
"""


def write(measured: Sequence[Measured], page: Path) -> list[str]:
    """Make the page and its plots.

    Args:
        measured: What was kept, in the order of the parts.
        page: The file; plots go into a folder beside it that is called as it is.

    Returns:
        The figures that missed their goals and that nobody has explained, as `part: figure`.
    """
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    sections, unexplained = [_intro(measured)], []
    for each in measured:
        reasons = explained(each.part)
        missed = [figure for figure in each.figures if figure.is_missed]
        open_ends = [figure for figure in missed if _reason(figure, reasons) is None]
        unexplained += [f"{each.part}: {figure.name}" for figure in open_ends]
        sections.append(_section(each, reasons, _drawn(each, folder), folder.name))
    page.write_text("\n".join(sections))
    return unexplained


def explained(part: str) -> Mapping[str, str]:
    """Why a part misses goals: what its names begin with, and a paragraph."""
    for node in _source(part).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="EXPLAINED"), value=ast.expr() as value):
                found: dict[str, str] = ast.literal_eval(value)
                return found
    return {}


def said(part: str) -> str:
    """What a part says of itself."""
    return ast.get_docstring(_source(part)) or ""


def _source(part: str) -> ast.Module:
    file = PARTS_FOLDER / f"{part}.py"
    return ast.parse((file if file.exists() else PARTS_FOLDER / part / "__init__.py").read_text())


def _intro(measured: Sequence[Measured]) -> str:
    machines = {str(each.machine): each.machine for each in measured}
    lines = [_INTRO]
    if machines:
        lines += ["## Measured on", ""]
    for name, machine in machines.items():
        versions = ", ".join(f"{each} {version}" for each, version in machine.libraries.items())
        lines += [f"- {name}. {versions}.", ""]
    return "\n".join(lines)


def _drawn(measured: Measured, folder: Path) -> list[tuple[str, str]]:
    """Draw the plots of a part; each with its file and what it shows in words."""
    made = []
    compared = [each for each in measured.figures if each.value != each.baseline]
    if compared:
        file = folder / f"{measured.part}.svg"
        file.write_text(plots.draw_ratios(compared))
        made.append((file.name, _words(compared)))
    growing = [each for each in measured.figures if each.size is not None]
    if growing:
        file = folder / f"{measured.part}-growth.svg"
        file.write_text(plots.draw_growth(growing))
        sizes = sorted({each.size or 0 for each in growing})
        lines = ", ".join(dict.fromkeys(each.line for each in growing))
        text = f"{growing[0].unit} from size {sizes[0]:,g} to {sizes[-1]:,g}: {lines}"
        made.append((file.name, text))
    return made


def _words(figures: Sequence[Figure]) -> str:
    least, most = (pick(figures, key=lambda each: each.ratio) for pick in (min, max))
    missed = sum(each.is_missed for each in figures)
    return (
        f"{len(figures)} figures as ratios of their baselines, from {least.ratio:.2g} "
        f"({least.name}) to {most.ratio:.2g} ({most.name}); {missed} missed a goal"
    )


def _section(
    measured: Measured,
    reasons: Mapping[str, str],
    drawn: Sequence[tuple[str, str]],
    folder: str,
) -> str:
    lines = [f"## {measured.part}", "", said(measured.part), ""]
    lines += [f"![{words}]({folder}/{file})\n" for file, words in drawn]
    if measured.figures:
        lines += [
            "| figure | ours | baseline | unit | ratio | goal | the baseline is |",
            "|---|--:|--:|---|--:|---|---|",
            *map(_row, measured.figures),
            "",
        ]
    if measured.failed:
        lines += ["**This run failed.** Its last words:", "", "```text", measured.failed, "```", ""]
    lines += [f"**{each}** {text}\n" for each, text in _paragraphs(measured.figures, reasons)]
    lines.append(
        f"`{measured.command}`, {measured.at}, {measured.seconds:g} s, revision "
        f"{measured.commit or 'unknown'}, load before {measured.load:g}; {measured.machine}.\n"
    )
    return "\n".join(lines)


def _row(figure: Figure) -> str:
    goal = "" if figure.goal is None else f"{figure.goal:.3g}"
    if goal:
        goal += ", **missed**" if figure.is_missed else ", reached"
    cells = (
        *(figure.name, _number(figure.value), _number(figure.baseline), figure.unit),
        *(f"{figure.ratio:.3g}", goal, figure.baseline_name),
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _paragraphs(figures: Sequence[Figure], reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """What was missed, and why; figures that have one reason share its paragraph."""
    found: dict[str, list[str]] = {}
    for figure in figures:
        if figure.is_missed:
            text = _reason(figure, reasons) or "Missed, and nobody has explained it yet."
            found.setdefault(text, []).append(figure.name)
    return [(f"{'; '.join(names)}.", text) for text, names in found.items()]


def _reason(figure: Figure, reasons: Mapping[str, str]) -> str | None:
    return next((text for start, text in reasons.items() if figure.name.startswith(start)), None)
