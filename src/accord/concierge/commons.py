"""The community as the concierge uses it: calls on the bus, and nothing else.

Owns which capability is called with what. It decides nothing about what was found. The corpus
`personal` is the node owner's alone, and is never looked into for others.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias, cast

from accord.community.bus import Frame
from accord.community.errors import Code, CommunityError
from accord.concierge.intent import Draft
from accord.concierge.passages import Passage
from accord.concierge.prompting import ANSWER_TOKENS

_PERSONAL: Final = "personal"
_MOST_CORPORA: Final = 8
_K: Final = 5
_EMBEDDED_CHARS: Final = 4000
_TTL_SECONDS: Final = 7 * 86_400


class Bus(Protocol):
    """A client of a node in a community, such as `accord.community.client.Client`."""

    async def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        *,
        idempotent: bool = False,
    ) -> dict[str, Any]:
        """Call a capability and return its answer."""
        ...

    def stream(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
    ) -> AsyncIterator[Frame]:
        """Call a capability that answers by a stream."""
        ...


Reach: TypeAlias = Callable[[], AbstractAsyncContextManager[Bus]]
"""Opens the bus for one turn; raises CommunityError where there is none."""

FindModel: TypeAlias = Callable[[], Awaitable[str]]
"""The language model to ask for; raises CommunityError where there is none."""


class Commons:
    """One community, for one turn.

    Args:
        bus: The way to it.
        corpus: The only corpus to look in; empty for all of the community's.
    """

    def __init__(self, bus: Bus, corpus: str = "") -> None:
        self._bus = bus
        self._corpus = corpus

    async def corpora(self) -> dict[str, int]:
        """The corpora that are looked into, with how many documents each has.

        Raises:
            CommunityError: With the node's code.
        """
        answer = await self._bus.call("rag.list_corpora", {}, {}, idempotent=True)
        found = {str(each["name"]): int(each["docs"]) for each in answer["output"]["corpora"]}
        if self._corpus:
            return {name: count for name, count in found.items() if name == self._corpus}
        return {name: count for name, count in found.items() if name != _PERSONAL}

    async def passages(self, question: str, corpora: Sequence[str]) -> list[Passage]:
        """What comes nearest to a question, the best first.

        Raises:
            CommunityError: With the node's code.
        """
        found: list[Passage] = []
        model = None
        for corpus in corpora[:_MOST_CORPORA]:
            given = {"query": question, "k": _K}
            answer = await self._bus.call("rag.query", {"corpus": corpus}, given, idempotent=True)
            found += [_passage(corpus, each) for each in answer["output"]["chunks"]]
            model = answer["meta"].get("embedding_model", model)
        found.sort(key=lambda each: -each.score)
        return await self._likened(question, found[:_K], model)

    async def speak(
        self, model: str, messages: Sequence[Mapping[str, Any]], stop: Sequence[str]
    ) -> AsyncGenerator[str]:
        """What the model says, piece by piece, until it would say one of the stops.

        Raises:
            CommunityError: With the node's code.
        """
        given = {
            "messages": list(messages),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stop": list(stop),
        }
        frames = self._bus.stream("llm.chat", {"model": model}, given)
        async with aclosing(cast("AsyncGenerator[Frame]", frames)) as closing:
            async for frame in closing:
                if frame.event == "token":
                    yield str(frame.data["text"])

    async def posts(self, query: str, k: int) -> tuple[list[dict[str, Any]], bool]:
        """The posts that come nearest, and whether they were compared by meaning.

        Raises:
            CommunityError: With the node's code.
        """
        answer = await self._bus.call("market.search", {}, {"query": query, "k": k})
        return list(answer["output"]["posts"]), answer["meta"].get("ranking") != "words"

    async def post(self, draft: Draft, client_id: str, author: str) -> str:
        """Post on the market, once under a client id, and return the post's id.

        Raises:
            CommunityError: With the node's code.
        """
        given: dict[str, Any] = {
            "client_id": client_id,
            "category": draft.category.value,
            "title": draft.title,
            "body": f"{draft.body}\n({author}, by the concierge)".strip(),
            "tags": [],
            "ttl_seconds": _TTL_SECONDS,
        }
        answer = await self._bus.call("market.post", {}, given, idempotent=True)
        return str(answer["output"]["event_id"])

    async def blobs(self, prefix: str) -> list[str]:
        """The blobs whose ids begin so.

        Raises:
            CommunityError: With the node's code.
        """
        answer = await self._bus.call("file.list", {}, {"prefix": prefix}, idempotent=True)
        return [str(each) for each in answer["output"]["cids"]]

    async def _likened(
        self, question: str, found: list[Passage], model: str | None
    ) -> list[Passage]:
        """The passages with their likeness to the question, where a model can tell."""
        if model is None or not found:
            return found
        texts = [question, *(each.text[:_EMBEDDED_CHARS] or each.title for each in found)]
        try:
            answer = await self._bus.call(
                "embed.text", {"model": model}, {"texts": texts}, idempotent=True
            )
        except CommunityError as error:
            if error.code not in (Code.NOT_FOUND, Code.NOT_IMPLEMENTED):
                raise
            return found  # words have to do
        asked, *others = answer["output"]["embeddings"]
        return [
            replace(each, likeness=sum(a * b for a, b in zip(asked, other, strict=True)))
            for each, other in zip(found, others, strict=True)
        ]


def _passage(corpus: str, chunk: Mapping[str, Any]) -> Passage:
    about = chunk["metadata"]
    cid = str(about["doc_cid"])
    return Passage(
        corpus,
        cid,
        str(about.get("doc_title") or cid),
        str(chunk.get("text", "")),
        float(chunk["score"]),
        page=about.get("page"),
        heading=about.get("heading"),
    )
