"""The console: a web application for the people of a station.

Server-rendered pages, usable by keyboard, on a phone and without scripts; htmx makes some of them
live. It stores only logins and never imports the station, which passes it `ConsoleParts`. README.md
in this folder says how a page is made.
"""

from accord.console.app import Console
from accord.console.page import Page, Piece, Visit
from accord.console.parts import ConsoleParts, NodeAccess, PlaneHealth, ShownSetting
from accord.console.sessions import ConsoleError, Tickets

__all__ = [
    "Console",
    "ConsoleError",
    "ConsoleParts",
    "NodeAccess",
    "Page",
    "Piece",
    "PlaneHealth",
    "ShownSetting",
    "Tickets",
    "Visit",
]
