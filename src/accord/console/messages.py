"""The console's languages: its messages, and the language of the request that is answered.

English messages are in the code and in the templates; each other language is a catalogue below
`locale`. What planes say of themselves (errors, reasons, names of states that are not listed here)
is not translated.
"""

import gettext
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any, Final

ENGLISH: Final = "en"
LANGUAGES: Final = {ENGLISH: "English", "de": "Deutsch"}
"""What each language calls itself, by its code."""

_MOST: Final = 20

_language: ContextVar[str] = ContextVar("console_language", default=ENGLISH)


def set_language(code: str) -> None:
    """Set the language of the current request; one that is not known is English."""
    _language.set(code if code in LANGUAGES else ENGLISH)


def language() -> str:
    """The language of the current request."""
    return _language.get()


def choose_language(setting: str, chosen: str, accepted: str) -> str:
    """The language for a browser.

    Args:
        setting: The station's, or `auto`.
        chosen: What somebody chose in this browser; it comes first.
        accepted: The header Accept-Language.
    """
    if chosen in LANGUAGES:
        return chosen
    if setting in LANGUAGES:
        return setting
    wanted = []
    for part in accepted.split(",")[:_MOST]:
        tag, _, weight = part.strip().partition(";q=")
        try:
            wanted.append((-float(weight or 1), tag.partition("-")[0].strip().lower()))
        except ValueError:
            continue
    wanted.sort(key=lambda each: each[0])
    return next((code for weight, code in wanted if weight and code in LANGUAGES), ENGLISH)


def tr(message: str, /, **values: Any) -> str:
    """Translate a message, and fill in its `{values}`."""
    text = _catalogue(language()).gettext(message)
    return text.format(**values) if values else text


def trn(one: str, many: str, count: int, /, **values: Any) -> str:
    """Translate a message about `{count}` things."""
    return _catalogue(language()).ngettext(one, many, count).format(count=count, **values)


def mark(message: str) -> str:
    """Mark a message for the catalogues that is translated where it is shown."""
    return message


def word(text: Any) -> str:
    """Translate a marked message, or a word of a plane; what no catalogue has stays as it is."""
    plain = str(text)
    return _catalogue(language()).gettext(plain) if plain else plain


def gettext_functions() -> tuple[Callable[[str], str], Callable[[str, str, int], str]]:
    """What templates translate by: one message, and one about a number of things."""
    return (
        lambda message: _catalogue(language()).gettext(message),
        lambda one, many, count: _catalogue(language()).ngettext(one, many, count),
    )


@cache
def _catalogue(code: str) -> gettext.NullTranslations:
    if code == ENGLISH:
        return gettext.NullTranslations()
    with (files(__package__) / "locale" / f"{code}.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


WORDS: Final = (
    # States of planes, agents, messages, jobs, plans and verdicts.
    mark("ready"),
    mark("starting"),
    mark("backing off"),
    mark("draining"),
    mark("stopped"),
    mark("failed"),
    mark("waiting"),
    mark("troubled"),
    mark("elsewhere"),
    mark("away"),
    mark("not used"),
    mark("lost"),
    mark("restored"),
    mark("connected"),
    mark("healthy"),
    mark("asked"),
    mark("answered"),
    mark("sent"),
    mark("acked"),
    mark("dead"),
    mark("parked"),
    mark("refused"),
    mark("expired"),
    mark("pending"),
    mark("active"),
    mark("retry"),
    mark("completed"),
    mark("cancelled"),
    mark("dismissed"),
    mark("accepted"),
    mark("rejected"),
    mark("quarantined"),
    mark("held"),
    mark("void"),
    mark("revoked"),
    mark("passed"),
    mark("done"),
    mark("unknown"),
    mark("applied"),
    mark("unchanged"),
    mark("enabled"),
    mark("disabled"),
    # Levels, kinds and classes.
    mark("member"),
    mark("trusted"),
    mark("anchor"),
    mark("none"),
    mark("update"),
    mark("migration"),
    mark("breaking"),
    mark("unproven"),
    mark("note"),
    mark("compatible"),
    mark("replacement"),
    mark("coexistence"),
    mark("service"),
    mark("device"),
    mark("required"),
    mark("optional"),
    mark("offer"),
    mark("request"),
    mark("info"),
    mark("emergency"),
    mark("page"),
    mark("form"),
    mark("document"),
    mark("post"),
    mark("message"),
    mark("contract"),
    mark("surface"),
    mark("capability"),
    mark("surfaces"),
    mark("capabilities"),
    mark("resources"),
    mark("RPC"),
    mark("operation"),
    mark("event"),
    mark("feed"),
    mark("job"),
    # Planes and their figures.
    mark("relay"),
    mark("community"),
    mark("authority"),
    mark("pipeline"),
    mark("console"),
    mark("models"),
    mark("station"),
    mark("The relay"),
    mark("The authority"),
    mark("messages received"),
    mark("delivered to agents"),
    mark("waiting for agents"),
    mark("replies to send"),
    mark("replies not sent"),
    mark("calls answered"),
    mark("calls in progress"),
    mark("members"),
    mark("events received"),
    mark("tokens generated"),
    mark("generations waiting"),
    mark("connections"),
    mark("live offers"),
    mark("records to land"),
    mark("memory"),
    mark("processor"),
    mark("stores"),
)
"""Words that come as data from planes, and are translated by `word`."""
