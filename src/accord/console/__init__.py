"""The console: the station as a person sees it in a browser.

Server-rendered pages, usable by keyboard, on a phone and without scripts; htmx makes some of them
live. The console decides nothing and keeps nothing but who is logged in: it uses the doors that the
commands use. It never imports the station, which hands it `Parts`.

How a page is made. A page is a module in `pages/` with a `PAGE`, listed in `pages/__init__.py`:

    async def show(visit: Visit) -> Response:
        async with visit.community() as client:
            posts = (await client.call("market.list", {}, {}))["output"]["posts"]
        return visit.show("market.html", posts=posts)

    async def post(visit: Visit) -> Response:
        title = visit.form.needed("title", "The title")
        ...
        return visit.done("It is on the market.")

    PAGE = Page("market", "Market", show, reads={}, acts={"post": post})

- `show` answers `/console/market`. `acts` are forms that are sent (POST) to `/console/market/post`;
  `reads` are further addresses (GET), which change nothing. A path may have `{name}` parameters
  (`visit.request.path_params`).
- What a page needs is in `visit.parts`. A plane may be away: `parts.relay()` and
  `parts.authority()` say None then, and the page says so by `away` (see below). Never keep what
  they return.
- Whatever is wrong is raised as an `AccordError` (our own is `ConsoleError`). In a read it becomes
  a banner on an empty page. In an act the page's `show` is called again with `visit.trouble`: the
  banner stands above it, and `typed` holds what was filled in. So `show` must not fail for the
  same reason.
- `visit.done(sentence)` after a change loads the page anew with the sentence. `visit.show` in an
  `act` shows something once, such as a link.
- `visit.stream(pieces)` answers by server-sent events; a `Piece` has the event's name and HTML from
  `visit.part("some_part.html", ...)`. In the template: `hx-ext="sse" sse-connect="..."
  sse-swap="name"`, and `sse-close="end"` where the server ends it by `Piece("end")`. Without htmx
  the page must still say everything, if less lively.
- Templates extend `page.html` and fill `{% block main %}`. Macros are in `macros.html`, imported
  `with context`: `form(action)` (a call block, with the token), `field`, `choice`, `area`,
  `submit`, `command("accord ...")` (the command that does the same, beside every action),
  `away("The relay")`, `empty("Nothing is here.")`, `state(word, is_well)`. Everything is escaped;
  no `|safe`, no inline script or style (the policy would refuse them). Filters: `moment` (a time),
  `size`, `short` (an id), `shell` (a value within a command).
- One `h1` (the page's title, made by `page.html`), sections with `h2`; every field has a label;
  tables have a `<caption>` or stand below their heading, inside `<div class="wide" tabindex="0">`.
"""

from accord.console.app import Console
from accord.console.errors import ConsoleError
from accord.console.page import Page, Visit
from accord.console.parts import Door, Health, Parts, Setting
from accord.console.stream import Piece
from accord.console.tickets import Tickets

__all__ = [
    "Console",
    "ConsoleError",
    "Door",
    "Health",
    "Page",
    "Parts",
    "Piece",
    "Setting",
    "Tickets",
    "Visit",
]
