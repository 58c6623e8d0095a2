"""Full-text search in this node's own messages.

What is stored of a message's words are digests under a key that follows from the device key, for
each community another one: whoever copies the store can neither read nor look up what was said.
"""

import asyncio
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

import structlog
from blake3 import blake3

from accord.capabilities.chat.messages import MessageReader
from accord.community.bus import Call
from accord.community.communities import HostedCommunity
from accord.community.errors import CommunityError, bad_request
from accord.community.messages import (
    MAX_WORDS,
    OwnMessage,
    index_words,
    new_messages,
    search_messages,
)
from accord.community.node import Node
from accord.kernel.signing import SigningKey
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

SEARCH: Final = "experimental.chat.search"

WORDS_OF_A_MESSAGE: Final = 2000
"""How many different words of one message are indexed."""

_CONTEXT: Final = "accord 2026 chat search words"
_DIGEST_BYTES: Final = 8
_LONGEST: Final = 64
_TOGETHER: Final = 64
# A search indexes so many messages itself; the rest is left to `run`.
_AT_ONCE: Final = 512
_PAUSE_SECONDS: Final = 1.0
_LIMIT: Final = 50
_MAX_BYTES: Final = 4 * 1024 * 1024
_RUN: Final = re.compile(r"\w+")
# Scripts that are written without spaces: Thai, Lao, Khmer, kana, Han.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


def words_of(text: str) -> Iterator[str]:
    """The words by which a text is found, without case and accents.

    Scripts that put no spaces between words give every character and every pair of neighbours.
    """
    plain = "".join(
        each
        for each in unicodedata.normalize("NFKD", text.casefold())
        if not unicodedata.category(each).startswith("M")
    )
    for run in _RUN.findall(unicodedata.normalize("NFC", plain)):
        at = 0
        for part in _UNSPACED.finditer(run):
            if part.start() > at:
                yield run[at : part.start()][:_LONGEST]
            signs = part.group()
            yield from signs
            yield from (signs[n : n + 2] for n in range(len(signs) - 1))
            at = part.end()
        if at < len(run):
            yield run[at:][:_LONGEST]


def asked_words(text: str) -> list[str]:
    """The words of a query, each once; of unspaced scripts the pairs where there are any."""
    found = list(dict.fromkeys(words_of(text)))
    pairs = "".join(each for each in found if len(each) == 2 and _UNSPACED.fullmatch(each))
    return [
        each
        for each in found
        if len(each) > 1 or not _UNSPACED.fullmatch(each) or each not in pairs
    ]


class WordDigests:
    """The digests of words in one community's messages."""

    def __init__(self, key: SigningKey, community: str) -> None:
        derived = blake3(key.seed + community.encode(), derive_key_context=_CONTEXT)
        self._key = derived.digest()

    def of(self, word: str) -> bytes:
        """The digest of one word."""
        return blake3(word.encode(), key=self._key).digest(length=_DIGEST_BYTES)

    def of_text(self, text: str) -> set[bytes]:
        """The digests of a text's words."""
        found: set[bytes] = set()
        for word in words_of(text):
            found.add(self.of(word))
            if len(found) >= WORDS_OF_A_MESSAGE:
                break
        return found


class MessageSearch:
    """Indexes the messages of a node's communities, and answers searches."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._digests: dict[str, WordDigests] = {}
        self._indexing = asyncio.Lock()

    async def run(self) -> None:
        """Index new messages until cancelled."""
        seen: dict[str, int] = {}
        while True:
            for community_id, hosted in tuple(self._node.communities.items()):
                head = hosted.log.head_lamport
                if seen.get(community_id) != head:
                    try:
                        await self.index(hosted)
                    except (CommunityError, StoreError) as error:
                        _log.warning("messages are not indexed yet", why=error.what)
                    else:
                        seen[community_id] = head
            await asyncio.sleep(_PAUSE_SECONDS)

    async def index(self, hosted: HostedCommunity, most: int | None = None) -> bool:
        """Index messages that are not indexed yet, all or the oldest; whether none is left."""
        done = 0
        async with self._indexing:
            while most is None or done < most:
                some = await self._index_some(hosted)
                done += some
                if some < _TOGETHER:
                    return True
        return False

    async def _index_some(self, hosted: HostedCommunity) -> int:
        number = hosted.log.number
        found = await hosted.log.store.read(lambda c: new_messages(c, number, _TOGETHER))
        words = await asyncio.to_thread(self._words, hosted.community_id, found)
        if words:
            await hosted.log.store.write(lambda c: index_words(c, words))
        return len(found)

    async def answer(self, call: Call) -> Mapping[str, Any]:
        """Answer a search of the node's owner."""
        call.check_own("search its messages")
        hosted = self._node.community(call.community)
        given = call.body["input"]
        asked = asked_words(given["query"])
        if not asked:
            raise bad_request("the query has no word", where="/input/query")
        if len(asked) > MAX_WORDS:
            raise bad_request(f"a search has at most {MAX_WORDS} words", where="/input/query")
        is_indexed = await self.index(hosted, _AT_ONCE)
        digests = self._digests_of(hosted.community_id)
        limit = given.get("limit", _LIMIT)
        found = await hosted.log.store.read(
            lambda c: search_messages(
                c,
                hosted.log.number,
                [digests.of(word) for word in asked],
                peer=given.get("peer"),
                before=given.get("before"),
                limit=limit + 1,
            )
        )
        reader = MessageReader(self._node.key, hosted.community_id)
        shown, last = await asyncio.to_thread(_shown, reader, found[:limit])
        more = None if len(shown) == len(found) else last
        return call.answer({"messages": shown}, more=more, indexing=None if is_indexed else True)

    def _words(self, community: str, found: list[OwnMessage]) -> dict[int, set[bytes]]:
        reader, digests = MessageReader(self._node.key, community), self._digests_of(community)
        return {each.number: digests.of_text(reader.text(each)) for each in found}

    def _digests_of(self, community: str) -> WordDigests:
        found = self._digests.get(community)
        if found is None:
            found = self._digests[community] = WordDigests(self._node.key, community)
        return found


def _shown(reader: MessageReader, found: list[OwnMessage]) -> tuple[list[dict[str, Any]], int]:
    """The messages that fit into one answer, and the number of the last one."""
    shown: list[dict[str, Any]] = []
    size = last = 0
    for message in found:
        size += len(message.body or b"")
        if shown and size > _MAX_BYTES:
            break
        shown.append(reader.show(message))
        last = message.number
    return shown, last
