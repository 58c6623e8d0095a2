"""The calls that a generated node's bus answered: by whom, of what, how it went."""

from collections.abc import Iterator
from random import Random
from typing import Final

from blake3 import blake3

from accord.community.errors import Code
from accord.kernel import canonical
from accord.kernel.ulid import UlidSource
from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import Calendar

_CAPABILITIES: Final = (
    "llm.chat",
    "embed.text",
    "rag.query",
    "market.post",
    "market.search",
    "chat.send",
    "file.put",
    "community.invite",
)
_REFUSALS: Final = (
    ("trust", Code.UNAUTHORIZED),
    ("schema", Code.SCHEMA_MISMATCH),
    ("schema", Code.BAD_REQUEST),
    ("replay", Code.BAD_REQUEST),
    ("capability", Code.NOT_FOUND),
    ("capability", Code.CAPACITY_EXCEEDED),
    (None, Code.TIMEOUT),
    (None, Code.INTERNAL_ERROR),
)
"""The check that refused a call, if one did, and the code of the answer."""


def calls(count: int, community: str, callers: list[str], chance: Random) -> Iterator[Draft]:
    """So many calls by members of a community."""
    calendar = Calendar()
    ids = UlidSource(calendar, lambda: chance.getrandbits(80))
    for _ in range(count):
        calendar.time += chance.expovariate(1 / 15)
        check, code = None, None
        if chance.random() < 0.06:
            check, code = chance.choice(_REFUSALS)
        request = ids.new()
        body = {
            "request_id": request,
            "community": community,
            "caller": callers[int(len(callers) * chance.random() ** 2)],
            "capability": chance.choice(_CAPABILITIES),
            "version": "1.0",
            "status": code.status if code else 200,
            "code": code.value if code else None,
            "check": check,
            "ms": int(chance.lognormvariate(3, 1.2)),
            "request_bytes": chance.randrange(40, 4000),
            "response_bytes": chance.randrange(60, 20_000),
            "request_digest": _digest(f"asked {request}"),
            "response_digest": _digest(f"answered {request}"),
        }
        at = int(calendar.time * 1000)
        yield Draft(ids.new(), at, canonical.encode(body).decode())


def _digest(text: str) -> str:
    return f"blake3:{blake3(text.encode()).hexdigest()}"
