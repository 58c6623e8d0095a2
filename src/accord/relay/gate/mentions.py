"""Taking the alarm out of mass mentions, platform by platform.

An agent that repeats `@everyone` must not wake everyone. A zero-width space makes a mention plain
text that still reads the same. An unknown platform gets every rule.
"""

import re
from collections.abc import Mapping
from typing import Final

_BREAK: Final = "\u200b"
_BANG: Final = r"<(?=!(?:channel|here|everyone|subteam\b))"
_ROLE: Final = r"<@(?=&)"
_ANY_WORD: Final = "all|channel|everyone|here|room"


def _rule(words: str, *forms: str, end: str = r"\b") -> re.Pattern[str]:
    """Matches what a break goes behind."""
    named = rf"@(?=(?:{words}){end})"
    return re.compile("|".join([*forms, named]), re.IGNORECASE | re.ASCII)


_RULES: Final[Mapping[str, re.Pattern[str]]] = {
    # People are mentioned by number there, so no name begins with one of these words.
    "discord": _rule("everyone|here", _ROLE, end=""),
    "matrix": _rule("room"),
    "mattermost": _rule("all|channel|here"),
    "slack": _rule("channel|everyone|here", _BANG),
    "telegram": _rule("all|everyone"),
    "webchat": _rule("all|everyone|here"),
}
_EVERY_RULE: Final = _rule(_ANY_WORD, _ROLE, _BANG)


def neutralise(text: str, platform: str) -> str:
    """The text without mass mentions; a text that has none is returned unchanged."""
    if "@" not in text and "<!" not in text:
        return text
    return _RULES.get(platform, _EVERY_RULE).sub(lambda match: match[0] + _BREAK, text)
