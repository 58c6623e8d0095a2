"""Which words of a command line are options, and which are values that only look like one.

One key and one contract in sixty-four begins with a dash, and so does the id of every group on
Telegram. Such a word is handed on behind the `--` that a careful person would have typed.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from typer.core import TyperGroup, TyperOption

# A key or a digest in base64url, or a whole number. No option has one of these forms.
_DASHED: Final = re.compile(r"-(?:[A-Za-z0-9_-]{42}|[0-9]+)", re.ASCII)


class Commands(TyperGroup):
    """The commands of `accord`, with values that may begin with a dash."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line."""
        return super().parse_args(ctx, list(self._sorted(args)))

    def _sorted(self, words: Sequence[str]) -> Iterator[str]:
        """The words, those of a command with a dashed value as its options, `--` and its values."""
        command: Any = self
        for at, word in enumerate(words):
            if not isinstance(command, TyperGroup):
                yield from _values_last(command, words[at:])
                return
            yield word
            command = command.commands.get(word, command)


def _values_last(command: Any, words: Sequence[str]) -> list[str]:
    if not any(map(_DASHED.fullmatch, words)):
        return list(words)
    wanting = {
        name
        for param in command.params
        if isinstance(param, TyperOption) and not param.is_flag
        for name in param.opts
    }
    options: list[str] = []
    values: list[str] = []
    wanted = False
    for at, word in enumerate(words):
        if word == "--" and not wanted:
            values.extend(words[at + 1 :])
            break
        option = word.startswith("-") and word != "-" and not _DASHED.fullmatch(word)
        (options if wanted or option else values).append(word)
        wanted = not wanted and word in wanting
    # An option that lacks its value stands last, or it would take the dashes for it.
    return options if wanted else [*options, "--", *values]
