"""The community as the concierge uses it: calls on the bus.

The corpus `personal` belongs to the node's owner and is never searched for others.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

from accord.community.bus import Frame
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.concierge.rules.answers import (
    ANSWER_TOKENS,
    LanguageModel,
    RetrievedPassage,
    choose_model,
    read_embedder,
)
from accord.concierge.rules.conversation import PostDraft


async def offered_model(bus: Client, wanted: str = "") -> LanguageModel:
    """Return the wanted or the best language model of the community."""
    answer = await bus.post("/node/v1/models", {"capability": "llm.chat"})
    return choose_model(answer["models"], wanted)


_PERSONAL: Final = "personal"
_K: Final = 5
_EMBEDDED_CHARS: Final = 4000
_TTL_SECONDS: Final = 7 * 86_400


OpenBus: TypeAlias = Callable[[], AbstractAsyncContextManager[Client]]
"""Opens the bus for one turn; raises CommunityError if there is none."""

FindModel: TypeAlias = Callable[[], Awaitable[LanguageModel]]
"""Returns the language model to use; raises CommunityError if there is none."""


@dataclass(frozen=True, slots=True)
class CommunityAccess:
    """One community for one turn. Every call raises `CommunityError` with the node's code.

    Args:
        corpus: The only corpus to search; empty for all of the community's.
    """

    bus: Client
    corpus: str = ""

    async def corpora(self, *, personal: bool = False) -> dict[str, int]:
        """Return the corpora that are searched, with their numbers of documents on all nodes.

        `personal` includes the owner's own corpus.
        """
        answer = await self.bus.call("experimental.rag.corpora", {}, {}, idempotent=True)
        found: dict[str, int] = {}
        for each in answer["output"]["corpora"]:
            name = str(each["name"])
            is_open = personal or name != _PERSONAL
            if name == self.corpus or (not self.corpus and is_open):
                found[name] = found.get(name, 0) + int(each["docs"])
        return found

    async def passages(self, question: str) -> list[RetrievedPassage]:
        """Return the passages nearest to a question, the best first."""
        params = {"corpora": [self.corpus]} if self.corpus else {}
        given = {"query": question, "k": _K}
        answer = await self.bus.call("experimental.rag.search", params, given, idempotent=True)
        found = [_passage(each, self.bus.node_id) for each in answer["output"]["chunks"]]
        return await self._with_similarity(question, found, answer["meta"].get("embedding_model"))

    async def generate(
        self, model: str, messages: Sequence[Mapping[str, Any]], stop: Sequence[str]
    ) -> AsyncGenerator[str]:
        """Yield the model's answer piece by piece, up to a stop sequence."""
        given = {
            "messages": list(messages),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stop": list(stop),
        }
        frames = self.bus.stream("llm.chat", {"model": model}, given)
        async with aclosing(cast("AsyncGenerator[Frame]", frames)) as closing:
            async for frame in closing:
                if frame.event == "token":
                    yield str(frame.data["text"])

    async def posts(self, query: str, k: int) -> tuple[list[dict[str, Any]], bool]:
        """Return the nearest posts, and whether they were compared by meaning."""
        answer = await self.bus.call("market.search", {}, {"query": query, "k": k})
        return list(answer["output"]["posts"]), answer["meta"].get("ranking") != "words"

    async def post(self, draft: PostDraft, client_id: str, author: str) -> str:
        """Post on the market, once per client id, and return the post's id."""
        given: dict[str, Any] = {
            "client_id": client_id,
            "category": draft.category.value,
            "title": draft.title,
            "body": f"{draft.body}\n({author}, by the concierge)".strip(),
            "tags": [],
            "ttl_seconds": _TTL_SECONDS,
        }
        answer = await self.bus.call("market.post", {}, given, idempotent=True)
        return str(answer["output"]["event_id"])

    async def shared(self, prefix: str) -> list[str]:
        """Return the files with this id prefix that every member of the community may read."""
        answer = await self.bus.call("experimental.file.shared", {}, {"prefix": prefix})
        # The node answers as to its owner, who sees more than the people whom the concierge
        # answers.
        return [
            str(each["cid"]) for each in answer["output"]["files"] if each["scope"] == "community"
        ]

    async def _with_similarity(
        self, question: str, found: list[RetrievedPassage], model: str | None
    ) -> list[RetrievedPassage]:
        """Add the cosine between question and passage where an embedding model is available."""
        if model is None or not found:
            return found
        texts = [question, *(each.text[:_EMBEDDED_CHARS] or each.title for each in found)]
        try:
            answer = await self.bus.call(
                "embed.text", {"model": model}, {"texts": texts}, idempotent=True
            )
        except CommunityError as error:
            if error.code not in (Code.NOT_FOUND, Code.NOT_IMPLEMENTED):
                raise
            embedder = read_embedder(model, {})
            return [replace(each, embedder=embedder) for each in found]  # words have to do
        asked, *others = answer["output"]["embeddings"]
        embedder = read_embedder(model, answer["meta"])
        return [
            replace(
                each,
                similarity=sum(a * b for a, b in zip(asked, other, strict=True)),
                embedder=embedder,
            )
            for each, other in zip(found, others, strict=True)
        ]


def _passage(chunk: Mapping[str, Any], own_id: str) -> RetrievedPassage:
    about = chunk["metadata"]
    cid = str(about["doc_cid"])
    return RetrievedPassage(
        str(chunk["corpus"]),
        cid,
        str(about.get("doc_title") or cid),
        str(chunk.get("text", "")),
        float(chunk["score"]),
        page=about.get("page"),
        heading=about.get("heading"),
        node="" if chunk["node_id"] == own_id else str(chunk["node"]),
    )
