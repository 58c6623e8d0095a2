"""Jobs that follow each other by key, over all instances: compare-and-set on a bucket.

`k.<key>` holds the slots of a key, `j.<job>` the work of a job that was let in, `h.<job>` the lease
of whoever runs it. A slot is had before the work is given to anybody, so a job that waits costs
the workers nothing. Whoever ends in between leaves a slot that nobody uses: `repair` finds it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from accord.fabric.errors import ConflictError
from accord.fabric.jobs import slots as steps
from accord.fabric.jobs.events import Happened, Job, read_job
from accord.fabric.jobs.queue import Keyed
from accord.fabric.jobs.slots import EMPTY, Admission, Slots
from accord.fabric.jobs.telling import Telling
from accord.fabric.kv import Bucket, Entry, Lease, take, take_over
from accord.fabric.link import Link

GRANT_SECONDS: Final = 30.0
"""After how long the work of a job that nobody has begun is given once more."""

_EVER: Final = (1 << 62) - 1

_log = structlog.stdlib.get_logger(__name__)


class Keys:
    """The keys of one queue.

    Args:
        link: The instance's link.
        keyed: The policy.
        telling: Tells of what happens to jobs.
    """

    def __init__(self, link: Link, keyed: Keyed, telling: Telling) -> None:
        self._link = link
        self._keyed = keyed
        self._telling = telling
        self._bucket = Bucket(link.inbox, keyed.bucket)

    async def admit(self, job: Job, work: bytes, *, anyway: bool = False) -> Admission:
        """Let a job in; where it is granted, its work is still to be given.

        One that had to make way was told so.
        """
        key = self._keyed.key(job.payload)
        kept = await self._bucket.put(_work(job.id), work)
        admission = await self._admit(key, job.id, anyway=anyway)
        if admission.outcome != "granted" and await self._evict(key):
            admission = await self._admit(key, job.id, anyway=anyway)
        if admission.outcome in ("rejected", "coalesced"):
            await self._bucket.discard(_work(job.id), kept)
        elif admission.other is not None:
            await self._drop(admission.other)
        return admission

    async def claim(self, job: Job) -> Lease | None:
        """The right to run a job now; None while another worker has it."""
        return await take(
            self._bucket,
            _lease(job.id),
            self._link.ids.new(),
            self._keyed.ttl,
            every=self._keyed.heartbeat,
        )

    async def begin(self, job: Job) -> int | None:
        """Begin a job whose lease is held: which try it is, or None where it has no slot."""
        tries: int | None = None

        def decide(found: Slots) -> Slots:
            nonlocal tries
            begun = steps.begin(found, job.id)
            slot = begun.slot(job.id)
            tries = None if slot is None else slot.tries
            return begun

        await self._change(self._keyed.key(job.payload), decide)
        return tries

    async def release(self, job: Job) -> None:
        """Let a job's slot go, and give the work of whoever has it now."""
        await self._release(self._keyed.key(job.payload), job.id)

    async def cancel(self, identity: str) -> None:
        """Let a job that only waits go; one that has a slot is its worker's."""
        work = await self._bucket.get(_work(identity))
        if work is None:
            return
        job = read_job(work.value)
        key = self._keyed.key(job.payload)
        found = await self._bucket.get(_slots(key))
        if found is not None and identity in steps.read(found.value).queued:
            await self._release(key, identity)

    async def repair(self) -> None:
        """See to slots that nobody uses, and to jobs that wait behind stale ones."""
        now = await self._bucket.server_time()
        for name in [name async for name in self._bucket.keys("k.*")]:
            entry = await self._bucket.get(name)
            if entry is None:
                continue
            found, key = steps.read(entry.value), name.removeprefix("k.")
            if found.is_empty:
                await self._bucket.discard(name, entry.revision)
            elif now - entry.at > GRANT_SECONDS and any(not s.tries for s in found.active):
                await self._give_again(key, entry)
            elif found.queued:
                await self._evict(key)

    async def _admit(self, key: str, identity: str, *, anyway: bool) -> Admission:
        admission = Admission("rejected")

        def decide(found: Slots) -> Slots:
            nonlocal admission
            left, admission = steps.admit(found, identity, self._keyed, anyway=anyway)
            return left

        await self._change(key, decide, is_new=True)
        return admission

    async def _release(self, key: str, identity: str) -> None:
        """Let a slot go, give the work of whoever has it now, and forget the job."""
        granted: tuple[str, ...] = ()
        left = EMPTY

        def decide(found: Slots) -> Slots:
            nonlocal granted, left
            left, granted = steps.release(found, identity, self._keyed)
            return left

        revision = await self._change(key, decide)
        follows = [self._give(job) for job in granted]
        if left.is_empty:  # which is as good as nothing
            follows.append(self._bucket.discard(_slots(key), revision))
        await asyncio.gather(self._forget(identity), *follows)

    async def _give(self, identity: str) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            await self._telling.give(identity, work.value, again=True)

    async def _evict(self, key: str) -> bool:
        """Let stale jobs make way, where the policy says so; whether any did."""
        entry = await self._bucket.get(_slots(key)) if self._keyed.fails_stale else None
        made_way = False
        for slot in () if entry is None else steps.read(entry.value).active:
            # Without a lease it has not begun, or waits for its next try.
            lease = await take_over(
                self._bucket, _lease(slot.job), self._link.ids.new(), self._keyed.ttl
            )
            if lease is not None:
                await self._fail_stale(key, slot.job, slot.tries)
                await lease.release()
                made_way = True
        return made_way

    async def _fail_stale(self, key: str, identity: str, tries: int) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            error = {"type": "StaleError", "message": "its worker has fallen silent"}
            await self._telling.tell(
                *(read_job(work.value), Happened.STALE),
                tries=tries,
                previous="active",
                error=error,
            )
        await self._release(key, identity)
        _log.warning("a stale job makes way", job=identity)

    async def _drop(self, identity: str) -> None:
        work = await self._bucket.get(_work(identity))
        if work is not None:
            error = {"type": "ReplacedError", "message": "a later job of its key took its place"}
            await self._telling.tell(
                read_job(work.value), Happened.CANCELLED, previous="pending", error=error
            )
            await self._forget(identity)

    async def _give_again(self, key: str, entry: Entry) -> None:
        try:
            # Written anew, so that of all instances one does it, and not too often.
            await self._bucket.update(entry.key, entry.value, entry.revision)
        except ConflictError:
            return
        for slot in steps.read(entry.value).active:
            if slot.tries:
                continue
            work = await self._bucket.get(_work(slot.job))
            if work is None:
                await self._release(key, slot.job)
            else:
                job = read_job(work.value)
                await self._telling.tell(job, Happened.CREATED, once="", payload=job.payload)
                await self._telling.give(job.id, work.value, again=True)

    async def _forget(self, identity: str) -> None:
        await self._bucket.discard(_work(identity), _EVER)

    async def _change(
        self, key: str, change: Callable[[Slots], Slots], *, is_new: bool = False
    ) -> int:
        def decide(entry: Entry | None) -> bytes | None:
            found = EMPTY if entry is None else steps.read(entry.value)
            changed = change(found)
            return None if changed == found else steps.write(changed)

        return await self._bucket.change(_slots(key), decide, is_new=is_new)


def _slots(key: str) -> str:
    return f"k.{key}"


def _work(job: str) -> str:
    return f"j.{job}"


def _lease(job: str) -> str:
    return f"h.{job}"
