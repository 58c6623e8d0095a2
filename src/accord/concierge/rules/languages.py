"""In which language a question is, as far as one can tell from a few words.

Pure. By its script, or by its small words; a question that could be of several languages has none.
"""

import re
import unicodedata
from collections import Counter
from typing import Final

NAMES: Final = {
    "ar": "Arabic",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "nl": "Dutch",
    "pt": "Portuguese",
    "ru": "Russian",
    "th": "Thai",
    "zh": "Chinese",
}
"""The languages that are told apart."""

# The beginnings of the Unicode names of letters.
_SCRIPTS: Final = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "CYRILLIC": "ru",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "THAI": "th",
    "DEVANAGARI": "hi",
}
_WORD: Final = re.compile(r"[^\W\d_]+")
_READ: Final = 2000
_SMALL: Final = {
    "de": "aber als am auf auch aus bei bin bis da dann das dass dem den der die dies du ein eine "
    "einem einen einer er es für gegen gibt habe haben hat hier ich ihr ihre im ist kann kein "
    "keine können man mehr mein mit muss nach nicht noch nur oder ohne sein sich sie sind so soll "
    "über um und uns unter viel vom von vor wann warum was welche welcher welches wenn wer werden "
    "wie wieviel wir wird wo woher wohin zu zum zur zwischen",
    "en": "a about all an and any are as at be been but by can could did do does for from had has "
    "have he her here how i if in is it its may me more most much must my no not of on or our "
    "shall she should so some than that the their them then there these they this those to too "
    "under us was we were what when where which who why will with would you your",
    "es": "a al algo como cómo con cuál cuáles cuando cuándo cuánto cuántos de del desde donde "
    "dónde el ella en entre eres es esta está están este esto fue hace hasta hay la las lo los "
    "más me mi muy no nos o para pero por porque puede puedo qué quién se ser si sin sobre son "
    "su sus también tengo tiene un una unos y ya yo",
    "fr": "à au aux avec avoir ce ces cette comment combien dans de des dois du elle en est et "
    "être fait faut il ils je la le les leur lui mais me mon ne nous on où ou par pas peut peux "
    "plus pour pourquoi quand que quel quelle quels qui quoi sa sans se si son sont sous sur ton "
    "un une vous y",
    "it": "a ai al alla anche che chi ci come con cosa da dal dei del della delle di dove e è "
    "essere fare gli ha ho i il in io la le lo ma mi nei nel nella non o per perché più può "
    "quale quali quando quanto questa questo se senza si sono su sul un una uno",
    "nl": "aan als bij daar dan dat de deze die dit doen door een en er geen heb hebben het hij "
    "hoe hoeveel ik in is je kan kun maar meer met mijn moet naar niet nog of om onder onze ook "
    "op over te tot uit van veel voor waar waarom wanneer wat welke wie wij worden zijn zonder",
    "pt": "a ao aos as até com como da das de do dos e é ela ele em entre essa esse esta está este "
    "eu foi há isso isto mais mas me meu minha muito na não nas no nos o onde os ou para pela "
    "pelo por porque pode posso qual quais quando quanto que quem se sem ser seu sua são sobre "
    "também tem tenho um uma você",
}
_WORDS: Final = {language: frozenset(words.split()) for language, words in _SMALL.items()}
# Of so few letters of its own script, a question is about something foreign.
_LEAST_SHARE: Final = 0.3


def question_language(question: str) -> str | None:
    """Return a question's language, one of `NAMES`; None if it cannot be told."""
    text = unicodedata.normalize("NFKC", question[:_READ]).casefold()
    return _by_script(text) or _by_small_words(text)


def _by_script(text: str) -> str | None:
    letters = [each for each in text if each.isalpha()]
    counts: Counter[str] = Counter()
    for each in letters:
        name = unicodedata.name(each, "").partition(" ")[0].partition("-")[0]
        if name in _SCRIPTS:
            counts[_SCRIPTS[name]] += 1
    if not counts or counts.total() < _LEAST_SHARE * len(letters):
        return None
    # Japanese has Chinese letters between its own.
    return "ja" if counts["ja"] else max(counts, key=lambda each: counts[each])


def _by_small_words(text: str) -> str | None:
    words = set(_WORD.findall(text))
    counts = {language: len(words & small) for language, small in _WORDS.items()}
    first, second = sorted(counts.values(), reverse=True)[:2]
    if first == 0 or first == second:
        return None
    return max(counts, key=lambda each: counts[each])
