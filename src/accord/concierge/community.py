"""The community as the concierge uses it: calls on the bus.

The corpus `personal` belongs to the node's owner and is never searched for others.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import httpx

from accord.community.bus import Frame
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.concierge.rules.answers import (
    ANSWER_TOKENS,
    LanguageModel,
    RetrievedPassage,
    first_model,
)
from accord.concierge.rules.conversation import PostDraft
from accord.kernel import canonical
from accord.web import responses

_SECONDS: Final = 10.0


async def offered_model(address: str, wanted: str = "") -> LanguageModel:
    """Return the wanted or the default language model of the node at an address."""
    try:
        async with responses.bounded_client(
            responses.SMALL, trust_env=False, timeout=_SECONDS
        ) as http:
            answer = await http.get(f"{address}/manifest")
        manifest = canonical.decode(answer.content)
    except (httpx.HTTPError, canonical.CanonicalError) as error:
        raise CommunityError(
            Code.PARTITION, f"the node's manifest cannot be read ({type(error).__name__})"
        ) from error
    return first_model(manifest if isinstance(manifest, dict) else {}, wanted)


_PERSONAL: Final = "personal"
_MOST_CORPORA: Final = 8
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

    async def corpora(self) -> dict[str, int]:
        """Return the corpora that are searched, with their numbers of documents."""
        answer = await self.bus.call("rag.list_corpora", {}, {}, idempotent=True)
        found = {str(each["name"]): int(each["docs"]) for each in answer["output"]["corpora"]}
        if self.corpus:
            return {name: count for name, count in found.items() if name == self.corpus}
        return {name: count for name, count in found.items() if name != _PERSONAL}

    async def passages(self, question: str, corpora: Sequence[str]) -> list[RetrievedPassage]:
        """Return the passages nearest to a question, the best first."""
        found: list[RetrievedPassage] = []
        model = None
        for corpus in corpora[:_MOST_CORPORA]:
            given = {"query": question, "k": _K}
            answer = await self.bus.call("rag.query", {"corpus": corpus}, given, idempotent=True)
            found += [_passage(corpus, each) for each in answer["output"]["chunks"]]
            model = answer["meta"].get("embedding_model", model)
        found.sort(key=lambda each: -each.score)
        return await self._with_similarity(question, found[:_K], model)

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
            return found  # words have to do
        asked, *others = answer["output"]["embeddings"]
        return [
            replace(each, similarity=sum(a * b for a, b in zip(asked, other, strict=True)))
            for each, other in zip(found, others, strict=True)
        ]


def _passage(corpus: str, chunk: Mapping[str, Any]) -> RetrievedPassage:
    about = chunk["metadata"]
    cid = str(about["doc_cid"])
    return RetrievedPassage(
        corpus,
        cid,
        str(about.get("doc_title") or cid),
        str(chunk.get("text", "")),
        float(chunk["score"]),
        page=about.get("page"),
        heading=about.get("heading"),
    )
