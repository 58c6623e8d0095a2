"""From templates and values to HTML.

Owns the environment of the templates: everything is escaped, a name that is missing is an error,
and the few filters with which people read times, sizes and ids.
"""

import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import jinja2
from markupsafe import Markup

from accord.community.envelope.names import display_id
from accord.console.assets import Asset
from accord.console.guard import PATH

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")
_THOUSAND: Final = 1000


class Templates:
    """The templates of the console.

    Args:
        assets: The files that pages load.
        values: What every page knows.
    """

    def __init__(self, assets: list[Asset], values: Mapping[str, Any]) -> None:
        self._environment = jinja2.Environment(
            # Read by our own hands: the package may lie in an archive.
            loader=jinja2.FunctionLoader(_source),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(size=size, moment=moment, short=short, shell=shlex.quote)
        self._environment.globals.update(
            values, assets={each.name: each.url for each in assets}, path=PATH
        )

    def render(self, template: str, values: Mapping[str, Any]) -> Markup:
        """The text of a template with its values."""
        return Markup(self._environment.get_template(template).render(values))  # noqa: S704


def size(count: float | None) -> str:
    """A number of bytes as people read it."""
    if count is None:
        return "?"
    unit = 0
    while count >= _THOUSAND and unit + 1 < len(_UNITS):
        count, unit = count / _THOUSAND, unit + 1
    return f"{count:.3g} {_UNITS[unit]}" if unit else f"{count:g} {_UNITS[0]}"


def moment(time: str) -> Markup:
    """A time as it is written on the wire, for people; the script shows it in their own zone."""
    plain = time.replace("T", " ").removesuffix("Z").partition(".")[0]
    return Markup('<time datetime="{}">{} UTC</time>').format(time, plain)


def short(identifier: str) -> str:
    """A node's or community's id as people read it."""
    return display_id(identifier)


def _source(name: str) -> str | None:
    file = files(__package__) / "templates" / name
    return file.read_text("utf-8") if file.is_file() else None
