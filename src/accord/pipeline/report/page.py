"""The report as one HTML file, which loads and executes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from accord.pipeline.report.charts import draw
from accord.pipeline.report.sections import Section

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of the page; `version` is that of gold, `made_at` the time as text."""

    title: str
    version: str
    made_at: str


def render(heading: Heading, sections: Sequence[Section]) -> str:
    """The page."""
    from markupsafe import Markup

    plots = {
        each.name: Markup(draw(each.chart))  # noqa: S704 - our own drawing
        for each in sections
        if each.chart is not None
    }
    return _template().render(heading=heading, sections=sections, plots=plots)


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["shown"] = shown
    text = resources.files("accord.pipeline.report").joinpath("page.html.j2").read_text("utf-8")
    return environment.from_string(text)


def shown(value: Any) -> str:
    """A value as text of a table cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
