"""What turns texts into vectors, as those who search by meaning see it.

Owns nothing but the form. `accord.capabilities.embed` has the one that runs in this process; a
test may bring its own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Embedder(Protocol):
    """Turns texts into vectors of one length.

    Attributes:
        model: Its name; vectors of different models are not comparable.
        dimensions: How long each vector is.
    """

    model: str
    dimensions: int

    async def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row for each text, in order, each of length 1."""
        ...
