"""Markdown of models and of people as HTML that can do no harm.

HTML in it is shown as text, links lead to http, https and mailto only, pictures are shown as links,
and there are no inline styles, which the content security policy would refuse.
"""

from typing import Final

from markdown_it import MarkdownIt
from markupsafe import Markup

_MOST: Final = 100_000


def _make() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 20})
    return made.enable(["table", "strikethrough"]).disable(["image"])


_RULES: Final = _make()


def markdown(text: str) -> Markup:
    """Render Markdown; what is longer than the limit is cut."""
    tokens = _RULES.parse(text[:_MOST])
    for token in tokens:
        token.attrs.pop("style", None)
        for child in token.children or ():
            if child.type == "link_open":
                child.attrs.update(rel="noopener noreferrer nofollow", target="_blank")
    return Markup(_RULES.renderer.render(tokens, _RULES.options, {}))  # noqa: S704
