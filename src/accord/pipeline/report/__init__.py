"""The report: one HTML file with plots of the published tables."""

from accord.pipeline.report.charts import Bars, Chart, Days, Matrix, draw, style
from accord.pipeline.report.page import Heading, render
from accord.pipeline.report.sections import SECTIONS, Section, collect, drops

__all__ = [
    "SECTIONS",
    "Bars",
    "Chart",
    "Days",
    "Heading",
    "Matrix",
    "Section",
    "collect",
    "draw",
    "drops",
    "render",
    "style",
]
