"""The pages, one module each, in the order of the navigation."""

from accord.console.page import Page
from accord.console.pages import (
    agents,
    ask,
    chat,
    contracts,
    files,
    home,
    log,
    market,
    members,
    pipeline,
    services,
    settings,
)

PAGES: tuple[Page, ...] = (
    home.PAGE,
    ask.PAGE,
    chat.PAGE,
    market.PAGE,
    files.PAGE,
    members.PAGE,
    agents.PAGE,
    contracts.PAGE,
    services.PAGE,
    pipeline.PAGE,
    settings.PAGE,
    log.PAGE,
)
