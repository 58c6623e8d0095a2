"""Whose tokens are counted: the embedding model's, or words where there is none."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accord.capabilities import models
from accord.capabilities.rag.chunks import Cut, Spans
from accord.community.errors import Code, CommunityError

_WORD: Final = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenizer by name.

    Attributes:
        name: Which it is; chunks of different tokenizers have different ids.
        spans: Where the tokens of a text are.
    """

    name: str
    spans: Spans

    @property
    def cut(self) -> Cut:
        """How documents are cut by it."""
        return Cut(self.name)


def words() -> Tokens:
    """Words and signs."""
    return Tokens("words", lambda text: [match.span() for match in _WORD.finditer(text)])


def of_model(folder: Path, name: str = models.MINILM) -> Tokens:
    """The tokens of an embedding model.

    Args:
        folder: Where its `tokenizer.json` is; see `models.embedding_model`.
        name: The model's.

    Raises:
        CommunityError: The library is missing, or the file is damaged: `not_implemented`.
    """
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

    return Tokens(name, spans)


def found(weights: Path | None = None) -> Tokens:
    """The tokens of the embedding model that is here, else words."""
    try:
        return of_model(models.embedding_model(weights))
    except CommunityError:
        return words()
