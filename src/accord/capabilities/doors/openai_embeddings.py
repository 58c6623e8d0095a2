"""OpenAI's embeddings in the words of `embed.text`, and back. Pure."""

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from accord.community.errors import Code, CommunityError

AT_ONCE: Final = 256
"""How many texts one call of `embed.text` takes."""

_MOST: Final = 2048


def read(body: Any) -> tuple[str, list[str], bool]:
    """The model, the texts, and whether the vectors are wanted as bytes.

    Raises:
        CommunityError: It wants something that is not offered: `bad_request`.
    """
    if not isinstance(body, dict):
        raise _bad("the body is a JSON object", None)
    texts = [body["input"]] if isinstance(body.get("input"), str) else body.get("input")
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise _bad("expected a text or a list of texts; tokens are not taken here", "input")
    if not 1 <= len(texts) <= _MOST:
        raise _bad(f"expected 1 to {_MOST} texts", "input")
    form = body.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise _bad("expected float or base64", "encoding_format")
    model = body.get("model")
    if not isinstance(model, str):
        raise _bad("expected the name of a model", "model")
    return model, texts, form == "base64"


def batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in calls of `embed.text`."""
    for begin in range(0, len(texts), AT_ONCE):
        yield list(texts[begin : begin + AT_ONCE])


def check_dimensions(body: Any, dimensions: int) -> None:
    """Refuse to shorten vectors.

    Raises:
        CommunityError: Another length is wanted: `bad_request`.
    """
    if body.get("dimensions") not in (None, dimensions):
        raise _bad(f"the vectors have {dimensions} dimensions", "dimensions")


def answer(model: str, rows: Sequence[Sequence[float]], *, as_bytes: bool) -> dict[str, Any]:
    """What the client reads. Tokens are not counted here, so their number is 0."""
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _bytes(row) if as_bytes else row}
            for index, row in enumerate(rows)
        ],
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


def _bytes(row: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode()


def _bad(what: str, where: str | None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
