"""`experimental.rag.search` and `experimental.rag.corpora`: one question of all nodes' corpora.

The node asks every node that offers retrieval, itself included, as itself: each decides what the
caller may read. A node that is slow or fails is named in the answer, and delays it by no more than
the time for all.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import LRUCache

from accord.capabilities.rag.rules import fusion
from accord.capabilities.rag.rules.fusion import FoundList, FusedChunk
from accord.capabilities.settings import PERSONAL_CORPUS, RagSettings
from accord.community.bus import Call
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.routing import Route
from accord.kernel.clock import Clock
from accord.telemetry import tracing

_K: Final = 5
_FRESH_SECONDS: Final = 30.0
_CHECKED_CHARS: Final = 2000
_OWN: Final = "search its community through it"


def register(node: Node, clock: Clock, settings: RagSettings) -> None:
    """Offer the search over all nodes on a node's own bus."""
    descriptors = capabilities.load_descriptors("accord.capabilities.rag")
    service = SearchService(node, clock, settings)
    seconds = settings.search_seconds + 30.0
    offer = node.bus.registry.register
    offer(descriptors["experimental.rag.search@1.0"], service.search, seconds=seconds)
    offer(descriptors["experimental.rag.corpora@1.0"], service.list_corpora, seconds=seconds)


@dataclass(frozen=True, slots=True)
class HeldCorpus:
    """A corpus on a node."""

    route: Route
    name: str
    listed: Mapping[str, Any]


@dataclass(eq=False, repr=False)
class SearchService:
    """Searches the corpora of a community from one node."""

    node: Node
    clock: Clock
    settings: RagSettings
    _listed: LRUCache[tuple[str, str], tuple[float, list[Any]]] = field(
        default_factory=lambda: LRUCache(1024), init=False
    )

    async def list_corpora(self, call: Call) -> Mapping[str, Any]:
        """Answer `experimental.rag.corpora`."""
        call.check_own(_OWN)
        held, failed = await self._held(call, fresh=True)
        listed = [
            {
                "name": each.name,
                "node_id": each.route.node_id,
                "node": each.route.name[:120],
                **{
                    name: each.listed[name]
                    for name in ("docs", "chunks", "language_majority")
                    if name in each.listed
                },
            }
            for each in sorted(held, key=lambda each: (each.name, not each.route.local))
        ]
        return call.answer({"corpora": listed, "failed": failed})

    async def search(self, call: Call) -> Mapping[str, Any]:
        """Answer `experimental.rag.search`."""
        call.check_own(_OWN)
        asked = call.body["input"]
        wanted = call.body["params"].get("corpora")
        held, failed = await self._held(call)
        chosen = [each for each in held if _is_wanted(each, wanted)][: self.settings.search_corpora]
        if wanted and not chosen:
            raise CommunityError(
                Code.NOT_FOUND,
                "no node that can be reached has such a corpus",
                where="/params/corpora",
                mend="experimental.rag.corpora lists them",
            )
        k = asked.get("k", _K)
        with tracing.span("rag search", corpora=len(chosen)):
            lists = await self._ask_all(call, chosen, failed)
            found = fusion.fuse(lists, 2 * k)
            found = (await self._checked(call, lists, found))[:k]
        shown = asked.get("include_text", True)
        chunks = [_chunk(rank, each, shown=shown) for rank, each in enumerate(found, start=1)]
        models = {each.model for each in lists if each.model}
        return call.answer(
            {"chunks": chunks, "failed": failed[:256]},
            asked=len(chosen),
            embedding_model=min(models, default=None),
        )

    async def _held(
        self, call: Call, *, fresh: bool = False
    ) -> tuple[list[HeldCorpus], list[dict[str, Any]]]:
        """The corpora of every node that offers retrieval, and the nodes that did not answer."""
        router = self.node.router
        needs = router.needs("rag.list_corpora", "1.0", {}, {})
        routes = await router.explain(call.community, needs)
        asked = [each for each in routes if each.usable][: self.settings.search_nodes]
        failed: list[dict[str, Any]] = []

        async def listed(route: Route) -> list[HeldCorpus]:
            key = call.community, route.node_id
            known = self._listed.get(key)
            now = self.clock.monotonic()
            if known is None or fresh or now - known[0] > _FRESH_SECONDS or route.local:
                try:
                    answer = await router.call_node(
                        call.community,
                        route.node_id,
                        "rag.list_corpora",
                        {},
                        {},
                        seconds=self.settings.search_seconds,
                    )
                except CommunityError as error:
                    failed.append(_failure(route, error))
                    return []
                known = self._listed[key] = now, answer["output"]["corpora"]
            return [HeldCorpus(route, str(each["name"]), each) for each in known[1]]

        found = await asyncio.gather(*map(listed, asked))
        return [each for part in found for each in part], failed

    async def _ask_all(
        self, call: Call, chosen: Sequence[HeldCorpus], failed: list[dict[str, Any]]
    ) -> list[FoundList]:
        places = asyncio.Semaphore(self.settings.search_at_once)
        asked = call.body["input"]
        given = {name: asked[name] for name in ("query", "filter") if name in asked} | {
            "k": min(20, 2 * asked.get("k", _K))
        }

        async def ask(held: HeldCorpus) -> FoundList | None:
            try:
                async with places:
                    answer = await self.node.router.call_node(
                        call.community,
                        held.route.node_id,
                        "rag.query",
                        {"corpus": held.name},
                        given,
                        seconds=self.settings.search_seconds,
                    )
            except CommunityError as error:
                failed.append(_failure(held.route, error, held.name))
                return None
            chunks, meta = answer["output"]["chunks"], answer["meta"]
            model = meta.get("embedding_model")
            return FoundList(
                held.route.node_id,
                held.route.name,
                held.name,
                chunks,
                fusion.read_parts(meta, len(chunks)),
                model if isinstance(model, str) else None,
            )

        found = await asyncio.gather(*map(ask, chosen))
        return [each for each in found if each is not None]

    async def _checked(
        self, call: Call, lists: Sequence[FoundList], found: list[FusedChunk]
    ) -> list[FusedChunk]:
        """Measure the nearness of other nodes' chunks here, where this node has their model."""
        embed = self.node.bus.registry.serving("embed.text", None)
        models = {each.model for each in lists if each.model}
        own = None if embed is None else embed.params.get("model")
        foreign = [
            place
            for place, each in enumerate(found)
            if each.node_id != self.node.key.id and each.meaning is not None
        ]
        if own not in models or not foreign or not self.settings.search_checked:
            return found
        texts = [
            f"{found[place].chunk['metadata'].get('doc_title', '')}\n"
            f"{found[place].chunk.get('text', '')}"[:_CHECKED_CHARS]
            for place in foreign
        ]
        query = call.body["input"]["query"]
        try:
            answer = await self.node.router.call_node(
                call.community,
                self.node.key.id,
                "embed.text",
                {"model": own},
                {"texts": [query, *texts]},
                seconds=self.settings.search_seconds,
            )
        except CommunityError:
            return found  # the claims have to do
        first, *others = answer["output"]["embeddings"]
        for place, other in zip(foreign, others, strict=True):
            near = sum(a * b for a, b in zip(first, other, strict=True))
            found[place] = fusion.corrected(found[place], near)
        return fusion.in_order(found)


def _is_wanted(held: HeldCorpus, wanted: Sequence[str] | None) -> bool:
    if held.name == PERSONAL_CORPUS:
        return held.route.local and wanted is not None and PERSONAL_CORPUS in wanted
    return wanted is None or held.name in wanted


def _failure(route: Route, error: CommunityError, corpus: str | None = None) -> dict[str, Any]:
    told = {"node_id": route.node_id, "node": route.name[:120], "error": error.code.value}
    return told if corpus is None else told | {"corpus": corpus}


def _chunk(rank: int, found: FusedChunk, *, shown: bool) -> dict[str, Any]:
    chunk: dict[str, Any] = {
        "rank": rank,
        "score": round(min(1.0, found.score), 4),
        "corpus": found.corpus,
        "node_id": found.node_id,
        "node": found.node[:120],
        "metadata": found.chunk["metadata"],
    }
    if shown and "text" in found.chunk:
        chunk["text"] = found.chunk["text"]
    return chunk
