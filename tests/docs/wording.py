"""Whether a text says what a page shows of it. Pure.

A page cannot foresee ids, times and keys. It writes them short, `01M7H5YE…`, and wherever it writes
the same again it means the same, also in a later command. A bare `…` stands for anything, a line of
it for any lines. White space counts as one space. What a page leaves out is no difference, and
neither is the order of lines, since many lists are in the order of their ids.
"""

import re
from collections.abc import Mapping, Sequence

_SHORT = re.compile(r"([^\s\"'(),;]*…)")


def matched(text: str, said: Sequence[str], known: Mapping[str, str]) -> dict[str, str] | None:
    """What the short words of a page stand for, if a text has its lines.

    Args:
        text: What was really said.
        said: The lines of the page.
        known: What short words are known to stand for.

    Returns:
        The known words with those that were found, or None if a line is missing.
    """
    words = dict(known)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for wanted in said:
        if wanted.strip() == "…":
            continue
        for line in lines:
            found = _line(line, " ".join(wanted.split()), words)
            if found is not None:
                words |= found
                lines.remove(line)
                break
        else:
            return None
    return words


def filled(command: str, known: Mapping[str, str]) -> str:
    """A command with its short words written out."""
    return _SHORT.sub(lambda word: known.get(word[1], word[1]), command)


def _line(line: str, wanted: str, known: Mapping[str, str]) -> dict[str, str] | None:
    pattern, names = "", dict[str, str]()
    for word in _SHORT.split(wanted):
        if word == "…":
            pattern += ".*?"
        elif not word.endswith("…"):
            pattern += re.escape(word)
        elif word in known:
            pattern += re.escape(known[word])
        elif word in names:
            pattern += f"(?P={names[word]})"
        else:
            names[word] = f"word{len(names)}"
            pattern += rf"(?P<{names[word]}>[^\s\"']+?)"
    found = re.fullmatch(pattern, line)
    return None if found is None else {word: found[name] for word, name in names.items()}
