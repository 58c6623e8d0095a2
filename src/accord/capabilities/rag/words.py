"""Words and tokens for retrieval.

A term is the digest of a word's stem, without case and stop words, so that indexes of any documents
can be merged. German and English are told apart by their stop words. Tokens are the embedding
model's, or words without one.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from accord.capabilities import models
from accord.capabilities.rag.rules.chunks import ChunkSettings, TokenSpans
from accord.community.errors import Code, CommunityError

_TOKEN: Final = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer; chunks of tokenizers with different names have different ids."""

    name: str
    spans: TokenSpans

    @property
    def cut(self) -> ChunkSettings:
        """How documents are cut with it."""
        return ChunkSettings(self.name)


def word_tokens() -> Tokenizer:
    """Return the tokenizer for words and punctuation."""
    return Tokenizer("words", lambda text: [match.span() for match in _TOKEN.finditer(text)])


def model_tokens(folder: Path, name: str = models.MINILM) -> Tokenizer:
    """Return the tokenizer of an embedding model in a folder, or raise `not_implemented`."""
    tokenizers = models.library("tokenizers")
    file = folder / "tokenizer.json"
    try:
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no type of its own for this
        raise CommunityError(
            Code.NOT_IMPLEMENTED,
            f"the tokenizer cannot be loaded ({type(error).__name__})",
            where=str(file),
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def spans(text: str) -> Sequence[tuple[int, int]]:
        offsets: Sequence[tuple[int, int]] = tokenizer.encode(
            text, add_special_tokens=False
        ).offsets
        return offsets

    return Tokenizer(name, spans)


def find_tokens(weights: Path | None = None) -> Tokenizer:
    """Return the tokenizer of the installed embedding model, else that of words."""
    try:
        return model_tokens(models.embedding_model(weights))
    except CommunityError:
        return word_tokens()


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

_INDEXED_WORD: Final = re.compile(r"[^\W_]+")
_LONGEST: Final = 64
# Enough of a text to detect its language.
_SAMPLE: Final = 20_000
_LEAST_SHARE: Final = 0.05


def split(text: str) -> list[str]:
    """Return the words of a text, without case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return [word[:_LONGEST] for word in _INDEXED_WORD.findall(folded)]


def language_of(text: str) -> str | None:
    """Detect German or English by stop words."""
    words = split(text[:_SAMPLE])
    shares = {
        language: sum(word in stopped for word in words) for language, stopped in _STOPPED.items()
    }
    language, count = max(shares.items(), key=lambda each: each[1])
    return language if count > _LEAST_SHARE * len(words) and count > 0 else None


def stemming(language: str | None) -> str:
    """Return the language of the stemmer for texts of a language, or `PLAIN`."""
    main = (language or "").partition("-")[0].lower()
    return main if main in STEMMERS else PLAIN


def stems(text: str, language: str) -> list[str]:
    """Return the stems of a text's words without stop words; `language` comes from `stemming`."""
    stopped = _STOPPED.get(language, frozenset())
    kept = [word for word in split(text) if word not in stopped]
    if language == PLAIN:
        return kept
    # One per call: a stemmer caches words and is not thread-safe.
    stemmer = models.library("Stemmer").Stemmer(STEMMERS[language])
    stemmed: list[str] = stemmer.stemWords(kept)
    return stemmed


def count(texts: Sequence[str], language: str) -> list[Counter[int]]:
    """Count the terms of each text."""
    return [Counter(map(term, stems(text, language))) for text in texts]


def asked(text: str, languages: Iterable[str]) -> list[int]:
    """Return the terms of a question, by the stemmers of the texts that are searched."""
    found = {term(stem) for language in languages for stem in stems(text, language)}
    return sorted(found)


@lru_cache(maxsize=65_536)
def term(stem: str) -> int:
    """Return the number of a stem, the same everywhere."""
    return int.from_bytes(blake3(stem.encode()).digest(8), "little")


def _stopped(language: str) -> frozenset[str]:
    file = files("accord.capabilities.rag").joinpath("data", f"stopwords.{language}.txt")
    return frozenset(file.read_text("utf-8").casefold().split())


_STOPPED: Final = {language: _stopped(language) for language in ("de", "en")}
"""Stop words."""
