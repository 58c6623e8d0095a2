"""HTML: templates and their filters, static files, names of members, and refusals in plain words.

Everything is escaped, and an undefined name in a template is an error. htmx and its SSE extension
are vendored under static/htmx; pages work by links and forms where scripts do not run.
"""

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.community.rules.formats import display_id
from accord.console.markdown import markdown
from accord.console.messages import LANGUAGES, gettext_functions, language, mark, tr, word
from accord.console.sessions import PATH
from accord.kernel.clock import format_time
from accord.kernel.errors import AccordError

_SCRIPT: Final = "text/javascript; charset=utf-8"
# The name under which each file is served, where it lies under static/, and its media type.
_FILES: Final = {
    "style.css": ("style.css", "text/css; charset=utf-8"),
    "console.js": ("console.js", _SCRIPT),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    "htmx.js": ("htmx/htmx.min.js", _SCRIPT),
    "sse.js": ("htmx/sse.min.js", _SCRIPT),
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file."""

    name: str
    media_type: str
    body: bytes

    @property
    def tag(self) -> str:
        """Changes with the content."""
        return hashlib.sha256(self.body).hexdigest()[:16]

    @property
    def url(self) -> str:
        """The address, which changes with the content."""
        return f"{PATH}/static/{self.name}?{self.tag}"

    def route(self) -> Route:
        """Return the route that serves it."""
        headers = {"etag": f'"{self.tag}"', "cache-control": "private, max-age=86400"}

        async def answer(request: Request) -> Response:
            if request.headers.get("if-none-match") == headers["etag"]:
                return Response(status_code=304, headers=headers)
            return Response(self.body, 200, headers, self.media_type)

        return Route(f"{PATH}/static/{self.name}", answer)


def assets() -> list[Asset]:
    """Return every static file of the console."""
    folder = files(__package__) / "static"
    return [
        Asset(name, media_type, folder.joinpath(path).read_bytes())
        for name, (path, media_type) in _FILES.items()
    ]


class MemberNames:
    """The names of a community's members."""

    def __init__(self, known: Mapping[str, str | None]) -> None:
        self._known = known

    def __call__(self, node_id: str) -> str:
        """Return the name of a member or former member."""
        name = self._known.get(node_id)
        return f"{name} ({display_id(node_id)})" if name else display_id(node_id)

    def name(self, node_id: str) -> str:
        """Return the name alone, which others may have, too; the short id of who has none."""
        return self._known.get(node_id) or display_id(node_id)

    def named(self, node_id: str) -> Markup:
        """Return the name with the short id in small letters below it."""
        return Markup('<bdi>{}</bdi> <small class="id">{}</small>').format(
            self.name(node_id), display_id(node_id)
        )


def member_names(told: Mapping[str, Any]) -> MemberNames:
    """Read the names from the node's list of members."""
    return MemberNames({each["node_id"]: each["display_name"] for each in told["members"]})


_PLACE: Final = re.compile(r"(/\S*|(?:ed25519|blake3|sha256):\S*): (?=\S)")
_PATTERN: Final = re.compile(r'does not match "(?P<pattern>.*)"', re.DOTALL)
_ANY: Final = re.compile(r"is not valid under any of the schemas.*", re.DOTALL)
_FORMS: Final = {
    "^ed25519:[A-Za-z0-9_-]{43}$": mark(
        "is not the id of a station or a community, which is ed25519: and 43 letters and digits"
    ),
    "^blake3:[0-9a-f]{64}$": mark(
        "is not the id of a file, which is blake3: and 64 digits and letters"
    ),
    "^[0-7][0-9A-HJKMNP-TV-Z]{25}$": mark(
        "is not the id of an event, which has 26 letters and digits"
    ),
    "^[a-z0-9-]{1,64}$": mark("may have at most 64 of the letters a to z, digits and hyphens"),
    "^[a-z]{2,3}(-[A-Za-z0-9]{1,8})*$": mark(
        "is not the code of a language, such as en, de or pt-BR"
    ),
    "^[^\\u0000-\\u001f\\u007f-\\u009f]*$": mark("has control characters, such as a line break"),
}
# How errors about a value of a schema begin.
_VALUE: Final = "the value "
_UNKNOWN: Final = mark("does not have the form that is expected here")
# The forms' names for members of requests and events, where they differ.
_FIELDS: Final = {
    "body": mark("the text"),
    "cid": mark("the file's id"),
    "corpus": mark("the corpus"),
    "display_name": mark("the name"),
    "event_id": mark("the post"),
    "invitee_node_id": mark("the id of their station"),
    "licence": mark("the licence"),
    "node_id": mark("the station's id"),
    "recipient": mark("the recipient"),
    "tags": mark("a tag"),
    "title": mark("the title"),
    "ttl_seconds": mark("the number of days"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a page shows it; each part is a clause without a full stop."""

    what: str
    where: str | None = None
    mend: str | None = None


def plain_refusal(error: AccordError) -> Refusal:
    """Convert an error to plain words, without terms of JSON Schema."""
    what, where = error.what, error.where
    if where is None and (place := _PLACE.match(what)):
        # An error from the wire is one sentence.
        what, where = what[place.end() :], place[1]
    said = _ANY.sub(tr(_UNKNOWN), _PATTERN.sub(_describe_pattern, what))
    if where is not None and where.startswith("/"):
        field = _field_name(where)
        if said.startswith(_VALUE):
            return Refusal(f"{field} {said.removeprefix(_VALUE)}", mend=error.mend)
        return Refusal(said, field, error.mend)
    return Refusal(said, where, error.mend)


def _describe_pattern(found: re.Match[str]) -> str:
    return tr(_FORMS.get(found["pattern"], _UNKNOWN))


def _field_name(pointer: str) -> str:
    """A person's name for what a pointer leads to; list items have the list's name."""
    names = [each for each in pointer.split("/") if each and not each.isdecimal()]
    if not names or names[-1] in ("input", "data", "params"):
        return tr("what was sent")
    if names[-1] in _FIELDS:
        return tr(_FIELDS[names[-1]])
    return tr("the {name}", name=names[-1].replace("_", " "))


_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_THOUSAND: Final = 1000


class Templates:
    """The templates of the console; `values` are available in every template."""

    def __init__(self, assets: list[Asset], values: Mapping[str, Any]) -> None:
        self._environment = jinja2.Environment(
            # Not by a path: the package may be in an archive.
            loader=jinja2.FunctionLoader(_template_source),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            extensions=["jinja2.ext.i18n"],
        )
        self._environment.policies["ext.i18n.trimmed"] = True
        one, several = gettext_functions()
        # The extension adds these.
        install: Any = self._environment
        install.install_gettext_callables(one, several, newstyle=True)
        self._environment.filters.update(
            size=size,
            moment=moment,
            deadline=deadline,
            short=short,
            shell=shlex.quote,
            plain=plain_refusal,
            bdi=bdi,
            markdown=markdown,
            word=_word,
        )
        self._environment.globals.update(
            values,
            assets={each.name: each.url for each in assets},
            path=PATH,
            language=language,
            languages=LANGUAGES,
        )

    def render(self, template: str, values: Mapping[str, Any]) -> Markup:
        """Render a template."""
        return Markup(self._environment.get_template(template).render(values))  # noqa: S704


def size(count: float | None) -> str:
    """Format a number of bytes."""
    if count is None:
        return "?"
    unit = 0
    while count >= _THOUSAND and unit + 1 < len(_UNITS):
        count, unit = count / _THOUSAND, unit + 1
    return f"{count:.3g} {_UNITS[unit]}" if unit else f"{count:g} {_UNITS[0]}"


def moment(time: str | int) -> Markup:
    """Format a time, or milliseconds since the epoch; the script shows it in the reader's zone."""
    if isinstance(time, int):
        time = format_time(time / 1000)
    plain = time.replace("T", " ").removesuffix("Z").partition(".")[0]
    return Markup('<time datetime="{}">{} UTC</time>').format(time, plain)


def deadline(time: str | int) -> Markup:
    """Format a time that stands after "until": the script shows it as a date, not as a distance."""
    return Markup(str(moment(time)).replace("<time ", '<time class="date" ', 1))  # noqa: S704


def bdi(name: str) -> Markup:
    """Isolate a name whose text direction may differ."""
    return Markup("<bdi>{}</bdi>").format(name)


@jinja2.pass_context
def _word(_context: jinja2.runtime.Context, text: object) -> str:
    """Translate a word; with the context, so that no constant is translated when compiled."""
    return word(text)


def short(identifier: str) -> str:
    """Format a node's or community's id."""
    return display_id(identifier)


def _template_source(name: str) -> str | None:
    file = files(__package__) / "templates" / name
    return file.read_text("utf-8") if file.is_file() else None
