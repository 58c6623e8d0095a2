"""Connectors of the previous version are replaced one by one by those of this one, under load."""

from pathlib import Path

import pytest
from tests.faults.test_rolling_restarts import restarted_connectors
from tests.upgrade.previous import previous

from accord.testing.servers import Server

pytestmark = pytest.mark.slow


@pytest.mark.long
async def test_connectors_are_upgraded_one_after_another_and_lose_and_double_nothing(
    postgres_url: str, redis: Server, tmp_path: Path
) -> None:
    before = {"PYTHONPATH": str(previous(tmp_path / "previous").source)}
    await restarted_connectors(postgres_url, redis.url, tmp_path, 4, before)
