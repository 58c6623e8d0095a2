"""The report: one HTML file with plots of what is published, for whoever has a browser.

`sections` asks the tables, `charts` says what is to be drawn, `plots` draws it as SVG, `page` puts
everything into one file that fetches nothing. Nothing here decides or repairs anything.
"""

from accord.pipeline.report.page import Heading, render
from accord.pipeline.report.sections import SECTIONS, Section, collect

__all__ = ["SECTIONS", "Heading", "Section", "collect", "render"]
