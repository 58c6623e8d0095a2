"""What was found in documents, and whether it bears on a question at all.

Pure. Owns the rule by which the concierge would rather say that it does not know. A search returns
its best whatever was asked, and its score is relative to the best; so a passage must have most of
the words that the question is about, or mean nearly the same.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LEAST_SCORE: Final = 0.5
"""Below it not even a word is shared, as far as was measured."""
LEAST_WORDS: Final = 0.6
"""The share of the question's words that a passage must have."""
LEAST_LIKENESS: Final = 0.3
"""The cosine between question and passage from which they are about the same."""

_WORD: Final = re.compile(r"\w+")
# A word stands for its other forms when this much of it, and never less than four letters, agrees.
_ENDING: Final = 3
_STEM: Final = 4
_SMALL: Final = frozenset(
    _WORD.findall("""
    a about all an and any are as at be by can could did do does for from give had has have he
    her how i if in is it its know many may me much must my need of on or our please shall she
    should some tell that the their them there they this to us was we were what when where which
    who whom whose why will with would you your
    als am an auf aus bei bin bitte das dem den der die du ein eine einen er es für gibt hat habe
    ich ihr im in ist kann man mein mir mit nach nicht oder sie sind soll und uns viel vom von
    wann war warum was weiß welche welcher wem wen wer wie wird wo woher womit zu zum zur
    """)
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document.

    Attributes:
        corpus: In which corpus it was found.
        cid: The document's id.
        title: The document's title; its id where it has none.
        text: What it says.
        score: How well the search thinks it fits, from 0 to 1.
        likeness: The cosine between it and the question; None where nobody could tell.
        page: Where in the document.
        heading: Below which heading.
    """

    corpus: str
    cid: str
    title: str
    text: str
    score: float
    likeness: float | None = None
    page: int | None = None
    heading: str | None = None


@dataclass(frozen=True, slots=True)
class Bearing:
    """Whether a passage bears on a question, by which rule, in a sentence."""

    bears: bool
    rule: str
    sentence: str


_FAR: Final = Bearing(False, "passage.far", "It is about something else.")
_WORDS: Final = Bearing(True, "passage.words", "It has the words that were asked about.")
_MEANING: Final = Bearing(True, "passage.meaning", "It means nearly the same.")


def bearing(question: str, passage: Passage) -> Bearing:
    """Whether a passage bears on a question."""
    if passage.score < LEAST_SCORE:
        return _FAR
    if passage.likeness is not None and passage.likeness >= LEAST_LIKENESS:
        return _MEANING
    asked = _stems(question)
    if asked:
        text = f"{passage.title} {passage.heading or ''} {passage.text}".casefold()
        had = {word[:length] for word in _WORD.findall(text) for length in _lengths(word)}
        if len(asked & had) >= LEAST_WORDS * len(asked):
            return _WORDS
    return _FAR


def bearing_on(question: str, found: Sequence[Passage], most: int) -> list[Passage]:
    """Those passages that bear on a question, the best first."""
    kept = [each for each in found if bearing(question, each).bears]
    return sorted(kept, key=lambda each: -each.score)[:most]


def _stems(question: str) -> set[str]:
    """What the question is about: its words but the small ones, without their endings."""
    words = (word for word in _WORD.findall(question.casefold()) if word not in _SMALL)
    return {word[: max(_STEM, len(word) - _ENDING)] for word in words}


def _lengths(word: str) -> range:
    """How long the beginnings of a word are that may stand for it."""
    return range(min(_STEM, len(word)), min(len(word), 40) + 1)


def near_posts(found: Sequence[Mapping[str, Any]], *, by_meaning: bool) -> list[Mapping[str, Any]]:
    """Those posts that come near enough; words that are shared always do."""
    return [each for each in found if not by_meaning or each["score"] >= LEAST_LIKENESS]
