"""Refusals are gathered: equal ones are one entry, and nobody fills the disk by being refused."""

from collections.abc import Sequence

from accord.authority.revisions import AuditedRefusal, AuditEvent, RefusalLog
from accord.authority.rules import Code
from accord.storage import StoreError


class Kept:
    """A history in memory, that can fail."""

    def __init__(self) -> None:
        self.acts: list[AuditEvent] = []
        self.fails = False

    async def note(self, acts: Sequence[AuditEvent]) -> None:
        if self.fails:
            raise StoreError("the disk is full")
        self.acts += acts


async def test_equal_refusals_are_one_entry_that_says_how_many() -> None:
    kept = Kept()
    auditing = RefusalLog(kept)
    for _ in range(5):
        auditing.note(AuditedRefusal(Code.BAD_REQUEST, "connect", "10.0.0.1"))
    auditing.note(AuditedRefusal(Code.BAD_REQUEST, "connect", "10.0.0.2"))
    await auditing.write()
    assert [(each.by, each.why) for each in kept.acts] == [
        ("10.0.0.1", "bad_request at connect, 5 times"),
        ("10.0.0.2", "bad_request at connect, once"),
    ]
    await auditing.write()
    assert len(kept.acts) == 2


async def test_of_very_many_callers_only_the_count_is_kept() -> None:
    kept = Kept()
    auditing = RefusalLog(kept)
    for number in range(10_000):
        auditing.note(AuditedRefusal(Code.BAD_REQUEST, "connect", f"host {number}"))
    await auditing.write()
    assert len(kept.acts) == 101
    assert kept.acts[-1].why == "9900 times more, from many"


async def test_what_the_store_does_not_take_is_written_later() -> None:
    kept = Kept()
    auditing = RefusalLog(kept)
    kept.fails = True
    auditing.note(AuditedRefusal(Code.BAD_REQUEST, "connect", "10.0.0.1"))
    await auditing.write()
    kept.fails = False
    await auditing.write()
    assert [each.by for each in kept.acts] == ["10.0.0.1"]
