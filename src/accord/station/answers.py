"""`experimental.rag.answer`: the concierge's answers as a capability of the node.

By it, programs that know only OpenAI's API or MCP get answers from the community's documents.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from accord.community.bus import Call, Frame
from accord.community.bus.calls import Produced
from accord.community.client import Client, LocalTransport
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.concierge import Concierge, LanguageModel, offered_model
from accord.concierge.rules.answers import cited_documents
from accord.concierge.rules.conversation import Ask, ConciergeConversation
from accord.kernel.clock import Clock

_SECONDS: Final = 300.0
_MOST_CONCURRENT: Final = 8
_MOST_SOURCES: Final = 20


def register(node: Node, clock: Clock) -> None:
    """Offer answers from documents on a node's own bus."""
    descriptors = capabilities.load_descriptors("accord.capabilities.rag")
    node.bus.registry.register(
        descriptors["experimental.rag.answer@1.0"],
        _AnswerService(node, clock).serve,
        max_concurrent=_MOST_CONCURRENT,
        seconds=_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class _AnswerService:
    node: Node
    clock: Clock

    async def serve(self, call: Call) -> Produced:
        call.check_own("ask its concierge")
        frames = self._frames(call)
        if call.body["input"].get("stream", True):
            return frames
        text = ""
        async with aclosing(frames) as closing:
            async for frame in closing:
                if frame.event == "token":
                    text += frame.data["text"]
                else:
                    return _whole(text, frame.data)
        raise RuntimeError("an answer has no end")

    async def _frames(self, call: Call) -> AsyncGenerator[Frame]:
        params, session = call.body["params"], ConciergeConversation()

        @asynccontextmanager
        async def bus() -> AsyncIterator[Client]:
            async with Client(
                "http://node",
                self.node.key,
                call.community,
                self.node.key.id,
                transport=LocalTransport(self.node.application()),
                seconds=_SECONDS,
                routed=True,
                clock=self.clock,
            ) as client:
                yield client

        async def find_model() -> LanguageModel:
            async with bus() as client:
                return await offered_model(client, params.get("model", ""))

        concierge = Concierge(bus, find_model, corpus=params.get("corpus", ""))
        pieces = 0
        question = Ask(call.body["input"]["question"])
        async with aclosing(concierge.answer(question, session)) as answer:
            async for text in answer:
                if text:
                    pieces += 1
                    yield Frame("token", {"text": text})
        told: dict[str, Any] = {
            "outcome": session.outcome.value,
            "sources": _sources(session),
            "tokens_out": pieces,
            "stop_reason": "end",
            "ms": call.elapsed_ms,
        }
        if session.model is not None:
            told["model"] = session.model.name
        yield Frame("done", told)


def _whole(text: str, told: Mapping[str, Any]) -> dict[str, Any]:
    meta = {
        name: told[name] for name in ("model", "tokens_out", "stop_reason", "ms") if name in told
    }
    return {
        "output": {
            "message": {"role": "assistant", "content": text},
            "outcome": told["outcome"],
            "sources": told["sources"],
        },
        "meta": meta | {"tokens_in": 0},
    }


def _sources(session: ConciergeConversation) -> list[dict[str, Any]]:
    return [
        {
            "title": passage.title[:500],
            "doc_cid": passage.cid,
            "corpus": passage.corpus,
            "node": passage.node[:120],
            **({"pages": sorted(pages)[:64]} if pages else {}),
        }
        for passage, pages in cited_documents(session.passages)[:_MOST_SOURCES]
    ]
