"""Words as retrieval counts them: without case, endings and the words that every text has.

Pure. A word of a text is known by the digest of its stem, so that indexes of any documents can be
put together without a common list of words. German and English are told apart here; texts in other
languages are stemmed where a stemmer is known and the language was given.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Final

from blake3 import blake3

from accord.capabilities import models

STEMMERS: Final = {
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "tr": "turkish",
}

PLAIN: Final = ""
"""The language of texts that are not stemmed."""

_WORD: Final = re.compile(r"[^\W_]+")
_LONGEST: Final = 64
# As much of a text as tells its language.
_SAMPLE: Final = 20_000
_LEAST_SHARE: Final = 0.05


def split(text: str) -> list[str]:
    """The words of a text, without case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [word[:_LONGEST] for word in _WORD.findall(folded)]


def language_of(text: str) -> str | None:
    """Whether a text is German or English, by the small words that it has."""
    words = split(text[:_SAMPLE])
    shares = {
        language: sum(word in stopped for word in words) for language, stopped in _STOPPED.items()
    }
    language, count = max(shares.items(), key=lambda each: each[1])
    return language if count > _LEAST_SHARE * len(words) and count > 0 else None


def stemming(language: str | None) -> str:
    """How texts of a language are stemmed: by its main part, where a stemmer is known."""
    main = (language or "").partition("-")[0].lower()
    return main if main in STEMMERS else PLAIN


def stems(text: str, language: str) -> list[str]:
    """The stems of a text's words, without those that every text has.

    Args:
        text: The text.
        language: What `stemming` said.

    Raises:
        CommunityError: The library is missing: `not_implemented`.
    """
    stopped = _STOPPED.get(language, frozenset())
    kept = [word for word in split(text) if word not in stopped]
    if language == PLAIN:
        return kept
    # One for each call: a stemmer remembers words, and is not for several threads.
    stemmer = models.library("Stemmer").Stemmer(STEMMERS[language])
    stemmed: list[str] = stemmer.stemWords(kept)
    return stemmed


def count(texts: Sequence[str], language: str) -> list[Counter[int]]:
    """How often each text has each term."""
    return [Counter(map(term, stems(text, language))) for text in texts]


def asked(text: str, languages: Iterable[str]) -> list[int]:
    """The terms of a question, by the stemmers of the texts that it is asked of."""
    found = {term(stem) for language in languages for stem in stems(text, language)}
    return sorted(found)


@lru_cache(maxsize=65_536)
def term(stem: str) -> int:
    """The number by which a stem is known everywhere."""
    return int.from_bytes(blake3(stem.encode()).digest(8), "little")


def _stopped(language: str) -> frozenset[str]:
    file = files("accord.capabilities.rag").joinpath("data", f"stopwords.{language}.txt")
    return frozenset(file.read_text("utf-8").casefold().split())


_STOPPED: Final = {language: _stopped(language) for language in ("de", "en")}
"""The words that every text of a language has."""
