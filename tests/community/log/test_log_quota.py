"""What a log counts of its authors, over restarts, repetitions and days."""

from io import BytesIO
from typing import Any

from accord.community.errors import Code
from accord.community.log import export_log, import_log
from accord.community.settings import LogLimits

LIMITS = LogLimits(author_bytes_per_day=5000, min_free_bytes=0)
DAY = 86_400


async def test_a_restart_gives_nobody_a_new_budget(town: Any, where: str) -> None:
    async with town.log(where=where, limits=LIMITS) as log:
        await town.found(log)
        raws = [event.encode() for event in town.chain(town.founder, None, 20)]
        first = await log.receive(raws)
        assert 0 < first.accepted < 20
        assert {each.code for each in first.rejected} == {Code.CAPACITY_EXCEEDED}
    async with town.log(where=where, limits=LIMITS) as log:
        again = await log.receive(raws)
        assert (again.accepted, again.duplicates) == (0, first.accepted)
        town.clock.advance(DAY)
        assert (await log.receive(raws)).accepted > 0


async def test_what_is_known_or_not_stored_costs_nothing(town: Any) -> None:
    async with town.log(limits=LIMITS) as log:
        await town.found(log)
        raws = [event.encode() for event in town.chain(town.founder, None, 4)]
        for _ in range(10):
            await log.receive(raws)
        used = log.quota.largest_share
        assert used < 1
        assert log.quota.refused["quota"] == 0
        await log.receive([raws[0][:-9] + b'"forged"}'] * 50)
        assert log.quota.largest_share == used


async def test_the_owner_imports_any_amount(town: Any, tmp_path: Any) -> None:
    file = BytesIO()
    async with town.log() as log:
        await town.found(log)
        await log.receive([event.encode() for event in town.chain(town.founder, None, 40)])
        await export_log(log, file)
    file.seek(0)
    (tmp_path / "other").mkdir()
    async with town.log(where=str(tmp_path / "other"), limits=LIMITS) as log:
        assert (await import_log(log, file)).rejected == 0


async def test_zero_is_any_amount(town: Any) -> None:
    async with town.log(limits=LogLimits(0, 0)) as log:
        await town.found(log)
        raws = [event.encode() for event in town.chain(town.founder, None, 40)]
        assert (await log.receive(raws)).accepted == 40
        assert log.quota.largest_share == 0
