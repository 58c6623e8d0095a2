"""A community's bus that answers from a script, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from accord.community.bus import Frame
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.concierge import LanguageModel

SHED = "The tool shed is open on Saturdays from 10 to 12. The key is with Maria."
CID = f"blake3:{'a' * 64}"
PRIVATE = f"blake3:{'b' * 64}"
"""A file that the node shares with somebody, and not with everybody."""
EVENT = "01M7HGRM84M1NF2CN1RH21YBPE"


def chunk(
    text: str = SHED, score: float = 0.9, title: str = "tools", cid: str = CID
) -> dict[str, Any]:
    about = {"doc_cid": cid, "doc_title": title, "chunk_id": "1"}
    return {"rank": 1, "score": score, "text": text, "metadata": about}


@dataclass
class ScriptedBus(Client):
    """What a node would answer.

    Attributes:
        fails: Which capability fails, and how.
        spoken: What the model says.
        breaks: Whether the model fails after what it says.
        built_in: Whether it is the small built-in model.
        gate: Holds the model up before its last word.
        embedder: The embedding model, and what its node tells about it.
        near: The cosine of any two texts.
    """

    corpora: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"manuals": [chunk()]})
    posts: list[dict[str, Any]] = field(default_factory=list)
    fails: dict[str, CommunityError] = field(default_factory=dict)
    spoken: list[str] = field(default_factory=lambda: ["It is open", " on Saturdays [7]."])
    breaks: bool = False
    built_in: bool = False
    gate: asyncio.Event | None = None
    embedder: tuple[str, dict[str, Any]] | None = None
    near: float = 0.9
    asked: list[tuple[str, Any, Any]] = field(default_factory=list)
    open: int = 0
    node_id: str = "own"

    @asynccontextmanager
    async def reach(self) -> AsyncIterator["ScriptedBus"]:
        if "reach" in self.fails:
            raise self.fails["reach"]
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def find_model(self) -> LanguageModel:
        if "model" in self.fails:
            raise self.fails["model"]
        return LanguageModel("small", built_in=self.built_in)

    async def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        *,
        idempotent: bool = False,
        **_options: Any,
    ) -> dict[str, Any]:
        given = dict(input or {})
        self.asked.append((capability, dict(params or {}), given))
        if capability in self.fails:
            raise self.fails[capability]
        match capability:
            case "experimental.rag.corpora":
                found = [{"name": name, "docs": len(each)} for name, each in self.corpora.items()]
                return {"output": {"corpora": found, "failed": []}, "meta": {}}
            case "experimental.rag.search":
                public = [name for name in self.corpora if name != "personal"]
                chunks = [
                    {"corpus": name, "node_id": self.node_id, "node": "this node", **each}
                    for name in (params or {}).get("corpora", public)
                    for each in self.corpora[name]
                ]
                chunks.sort(key=lambda each: -each["score"])
                meta = {} if self.embedder is None else {"embedding_model": self.embedder[0]}
                return {"output": {"chunks": chunks[: given["k"]], "failed": []}, "meta": meta}
            case "embed.text" if self.embedder is not None:
                rows = [[1.0], *([self.near] for _ in given["texts"][1:])]
                return {"output": {"embeddings": rows, "dim": 1}, "meta": self.embedder[1]}
            case "market.search":
                return {"output": {"posts": self.posts}, "meta": {"ranking": "embeddings"}}
            case "market.post":
                return {"output": {"event_id": EVENT, "lamport": 1}, "meta": {}}
            case "experimental.file.shared":
                shared = {CID: "community", PRIVATE: "members"}
                files = [
                    {"cid": cid, "scope": scope}
                    for cid, scope in shared.items()
                    if cid.startswith(given["prefix"])
                ]
                return {"output": {"files": files}, "meta": {}}
        raise CommunityError(Code.NOT_FOUND, f"{capability} is not offered here")

    async def stream(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        **_options: Any,
    ) -> AsyncIterator[Frame]:
        self.asked.append((capability, dict(params or {}), dict(input or {})))
        if capability in self.fails:
            raise self.fails[capability]
        for number, text in enumerate(self.spoken, start=1):
            if self.gate is not None and number == len(self.spoken):
                await self.gate.wait()
            yield Frame("token", {"text": text})
        if self.breaks:
            raise CommunityError(Code.INTERNAL_ERROR, "the model broke")
        yield Frame("done", {"tokens_out": 2, "stop_reason": "end", "ms": 1})

    def given(self, capability: str) -> list[Any]:
        return [each[2] for each in self.asked if each[0] == capability]
