"""Answers kept by idempotency key: a request that is repeated is answered, not run again.

They lie in a bucket of the contract, so any instance can give them. An answer or a declared error
is stored before it is sent. A handler runs again only where no instance could store how it ended,
or where it failed in a way that the contract does not declare.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.authoring import ANSWERS
from accord.fabric.kv import Bucket, BucketEntry
from accord.fabric.link import Link
from accord.fabric.requests import Request
from accord.fabric.rules.errors import ConflictError, FabricError, UnavailableError, read_error
from accord.fabric.rules.idempotency import stored_name, used_otherwise
from accord.fabric.rules.terms import Rpc, parse_json
from accord.kernel import canonical

_GRACE: Final = 5.0
"""Seconds after a handler's deadline in which its instance may still store the answer."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The stored answers of one service; after `patience` seconds a claim counts as abandoned."""

    bucket: Bucket
    patience: float

    async def once(
        self, request: Request, rpc: Rpc, payload: Any, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """What `run` answers, or what it answered to this caller's key before.

        Raises ConflictError if the key came with another payload, UnavailableError while an
        earlier request with it is being answered.
        """
        assert request.key is not None
        name = stored_name(request.who.identity, rpc.name, request.key)
        claim = {"input": hashlib.sha256(canonical.encode(payload)).hexdigest()}
        try:
            revision = await self.bucket.create(name, canonical.encode(claim))
        except ConflictError:
            found = await self.bucket.get(name)
            kept = None if found is None else parse_json(found.value, "the stored answer")
            if found is None or kept is None:
                raise _under_way() from None
            if kept["input"] != claim["input"]:
                raise used_otherwise() from None
            if "answer" in kept:
                return kept["answer"]
            if "error" in kept:
                raise read_error(canonical.encode(kept["error"])) from None
            revision = await self._take_over(name, found)
        try:
            answer = await run()
        except FabricError as error:
            if error.type not in rpc.errors:
                await self._forget(name, revision)
                raise
            await self._keep(name, revision, {**claim, "error": error.members()})
            raise
        except BaseException:
            await self._forget(name, revision)
            raise
        await self._keep(name, revision, {**claim, "answer": answer})
        return answer

    async def _take_over(self, name: str, found: BucketEntry) -> int:
        """Claim a key whose instance did not end what it began; raises UnavailableError."""
        if await self.bucket.server_time() - found.at < self.patience:
            raise _under_way()
        try:
            return await self.bucket.update(name, found.value, found.revision)
        except ConflictError:
            raise _under_way() from None

    async def _keep(self, name: str, revision: int, kept: dict[str, Any]) -> None:
        try:
            await self.bucket.update(name, canonical.encode(kept), revision)
        except ConflictError:  # this took so long that another instance claimed the key
            raise _under_way() from None

    async def _forget(self, name: str, revision: int) -> None:
        with suppress(FabricError):
            await self.bucket.delete(name, revision)  # services may not purge their buckets


def open_answers(link: Link, deadline: float) -> Answers:
    """The answers of a session's service, whose handlers may take `deadline` seconds."""
    bound = link.bound.resources.get("kv", {}).get(ANSWERS)
    if bound is None:
        raise UnavailableError("no bucket for answers is bound", mend="accept the contract again")
    return Answers(Bucket(link.inbox, bound["bucket"]), deadline + _GRACE)


def _under_way() -> UnavailableError:
    return UnavailableError("the first request with this key is being answered", mend="ask again")
