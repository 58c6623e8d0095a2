"""An embedding model behind an OpenAI-compatible server: `POST /embeddings`.

The address comes from the settings. What the server answers is checked: one vector of finite
numbers for each text, all of the length that was learned first.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import httpx

from accord.capabilities import models
from accord.capabilities.model_server import MALFORMED, ModelServer
from accord.community.errors import Code, CommunityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TEXTS_AT_ONCE: Final = 64
_MAX_DIMENSIONS: Final = 65_536


class RemoteModel:
    """One model of one server.

    Args:
        dimensions: The length of its vectors; None to `learn` it.
        key: The API key; empty for none.
        seconds: The longest time for one answer of the server.
        transport: Replaces the socket, for tests.
    """

    def __init__(
        self,
        url: str,
        model: str,
        dimensions: int | None = None,
        *,
        key: str = "",
        seconds: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = model
        self.dimensions = dimensions or 0
        self._server = ModelServer(url, model, key=key, seconds=seconds, transport=transport)

    async def learn(self) -> None:
        """Ask for the length of the vectors unless it is known; raises `CommunityError`."""
        if not self.dimensions:
            self.dimensions = len((await self._ask(["dimensions"]))[0])

    async def fetch(self, texts: Sequence[str]) -> "list[NDArray[np.float32] | CommunityError]":
        """Return a vector for each text, or why the server refuses this one.

        Raises:
            CommunityError: The server cannot be reached or answers something else.
        """
        found: list[NDArray[np.float32] | CommunityError] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            found += await self._fetch(texts[start : start + _TEXTS_AT_ONCE])
        return found

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()

    async def _fetch(self, texts: Sequence[str]) -> "list[NDArray[np.float32] | CommunityError]":
        try:
            return list(await self._ask(texts))
        except CommunityError as error:
            if error.code is not Code.BAD_REQUEST:
                raise
            if len(texts) == 1:
                return [error]
        # One text that is too long must not fail those of other callers.
        middle = len(texts) // 2
        return [*await self._fetch(texts[:middle]), *await self._fetch(texts[middle:])]

    async def _ask(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        # Some servers refuse an empty text.
        given = {"model": self.model, "input": [text or " " for text in texts]}
        answer = await self._server.ask("embeddings", given)
        try:
            return self._read(answer, len(texts))
        except MALFORMED as error:
            raise self._server.malformed(f"embeddings of {len(texts)} texts") from error

    def _read(self, answer: Any, count: int) -> "NDArray[np.float32]":
        """Read an answer, or raise `ValueError` and its like."""
        numpy = models.library("numpy")
        rows: list[Any] = [None] * count
        for place, each in enumerate(answer["data"]):
            rows[each.get("index", place)] = each["embedding"]
        if any(not isinstance(row, list) or not 0 < len(row) <= _MAX_DIMENSIONS for row in rows):
            raise ValueError("a text has no vector")
        with numpy.errstate(over="ignore"):  # what is too large is infinite, and refused below
            vectors: NDArray[np.float32] = numpy.array(rows, numpy.float32)
        if vectors.ndim != 2 or not numpy.isfinite(vectors).all():
            raise ValueError("a vector has something else than numbers")
        if self.dimensions and vectors.shape[1] != self.dimensions:
            raise CommunityError(
                Code.INTERNAL_ERROR,
                f"the server of {self.model} answers with {vectors.shape[1]} dimensions, and had "
                f"{self.dimensions} before: it has another model under this name",
                mend="start the station again, then `accord rag reembed` each corpus",
            )
        return vectors
