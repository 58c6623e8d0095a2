"""The pages in the order of the navigation."""

from accord.console.page import Page
from accord.console.pages import (
    agents,
    ask,
    backups,
    chat,
    contracts,
    files,
    find,
    home,
    log,
    market,
    members,
    pipeline,
    registry,
    services,
    settings,
    tables,
    users,
)
from accord.console.pages.agents import AgentQueue, agent_rows
from accord.console.pages.files import Origin, origins
from accord.console.pages.log import LogFilter, follow_log, latest_lines

PAGES: tuple[Page, ...] = (
    home.PAGE,
    ask.PAGE,
    chat.PAGE,
    market.PAGE,
    members.PAGE,
    agents.PAGE,
    contracts.PAGE,
    registry.PAGE,
    services.PAGE,
    files.PAGE,
    pipeline.PAGE,
    tables.PAGE,
    settings.PAGE,
    users.PAGE,
    backups.PAGE,
    log.PAGE,
    find.PAGE,
)

__all__ = [
    "PAGES",
    "AgentQueue",
    "LogFilter",
    "Origin",
    "agent_rows",
    "follow_log",
    "latest_lines",
    "origins",
]
