"""Settings: what is set, where, and how to change it. The console itself changes none."""

from itertools import groupby
from typing import Final

from starlette.responses import Response

from accord.console.page import Page, Visit


async def show(visit: Visit) -> Response:
    """Every section; of a secret only whether there is one."""
    parts = visit.parts
    sections = [(name, list(each)) for name, each in groupby(parts.settings, lambda s: s.section)]
    return visit.show(
        "settings.html",
        sections=sections,
        file=parts.settings_file,
        home=parts.home,
        address=parts.address,
        device=parts.node.key.id,
    )


PAGE: Final = Page("settings", "Settings", show)
