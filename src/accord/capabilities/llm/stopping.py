"""Stop sequences: cut the answer where the first one begins.

Pure. Text that could be the beginning of a stop sequence is held back until it is sure. Every
backend is cut here, so that `stop_sequence` means the same on all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from accord.capabilities.llm.pieces import Text


@dataclass(frozen=True, slots=True)
class Cut:
    """What may be shown.

    Attributes:
        text: The piece to show, or None when all of it is held back.
        stopped: Whether a stop sequence came.
    """

    text: Text | None
    stopped: bool


class Stopper:
    """Looks for stop sequences in an answer that comes piece by piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._logprob: float | None = 0.0
        self._tokens_out = 0

    def add(self, piece: Text) -> Cut:
        """Hear the next piece."""
        text = self._held + piece.text
        self._note(piece)
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            return Cut(self._show(text[: min(found)]), stopped=True)
        kept = self._begun(text)
        shown = self._show(text[: len(text) - kept])
        self._held = text[len(text) - kept :]
        return Cut(shown, stopped=False)

    def rest(self) -> Text | None:
        """What was held back, once the answer has ended without a stop sequence."""
        return self._show(self._held)

    def _note(self, piece: Text) -> None:
        self._tokens_out = piece.tokens_out
        if self._logprob is not None:
            self._logprob = None if piece.logprob is None else self._logprob + piece.logprob

    def _begun(self, text: str) -> int:
        """How many characters at the end may begin a stop sequence."""
        longest = max(map(len, self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0

    def _show(self, text: str) -> Text | None:
        if not text:
            return None
        shown = Text(text, self._logprob, self._tokens_out)
        self._logprob = 0.0
        self._held = ""
        return shown
