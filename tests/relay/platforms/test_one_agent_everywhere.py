"""One agent on all platforms at once, with the same few lines; one's trouble is its own."""

import asyncio
from pathlib import Path

import pytest
from tests.relay.platforms.edges import EVERY, Stage, staged

from accord.station.doctor import examine
from accord.testing.servers import Server

pytestmark = pytest.mark.slow


async def answered(stage: Stage, name: str, text: str) -> None:
    await stage.edges[name].write(text)
    await stage.edges[name].until_said(f"heard {text}")


async def test_one_agent_answers_on_every_platform_at_once(tmp_path: Path, synapse: Server) -> None:
    async with staged(tmp_path / "home", synapse, *EVERY) as stage:
        await asyncio.gather(*(answered(stage, name, f"hello {name}") for name in EVERY))
        assert stage.agent.heard == {name: [f"hello {name}"] for name in EVERY}
        assert {state for state, _ in (await stage.process.parts()).values()} == {"ready"}


def looked(home: Path) -> dict[str, tuple[str, str]]:
    """What `accord doctor` says of each bot."""
    checks = {check.name: check for check in examine(home)}
    return {
        name.partition(" ")[0]: (check.status.value, check.seen)
        for name, check in checks.items()
        if name.partition(" ")[0] in EVERY
    }


async def test_a_service_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, synapse: Server
) -> None:
    home = tmp_path / "home"
    async with staged(home, synapse, "telegram", "webhook") as stage:
        service = stage.edges["telegram"].service
        service.fail("getUpdates", 500, times=1000)  # until it is well again, below
        await stage.edges["telegram"].write("before")
        reason = await stage.process.until("telegram", "troubled")
        assert "500" in reason
        await answered(stage, "webhook", "are you there?")
        status, seen = (await asyncio.to_thread(looked, home))["telegram"]
        assert (status, reason in seen) == ("warn", True)
        service.failures.clear()
        assert await stage.process.until("telegram", "ready") == ""
        await stage.edges["telegram"].until_said("heard before")


async def test_a_token_that_was_revoked_is_told_with_what_to_do(
    tmp_path: Path, synapse: Server
) -> None:
    home = tmp_path / "home"
    async with staged(home, synapse, "telegram", "discord", "webhook") as stage:
        stage.edges["telegram"].service.revoked = True
        stage.edges["discord"].service.revoke_token()
        for name in ("telegram", "discord"):
            reason = await stage.process.until(name, "troubled")
            assert "token" in reason
            assert (await asyncio.to_thread(looked, home))[name][0] == "warn"
        await answered(stage, "webhook", "are you there?")


async def test_a_table_that_cannot_be_opened_keeps_no_other_from_starting(
    tmp_path: Path, synapse: Server
) -> None:
    home = tmp_path / "home"
    async with staged(home, synapse, "webhook") as stage:
        broken = '\n[[relay.telegram]]\ntoken_file = "nowhere"\n'
        file = home / "accord.toml"
        await asyncio.to_thread(lambda: file.write_text(file.read_text() + broken))
        await stage.process.kill()
        await stage.process.start()
        assert "cannot be read" in await stage.process.until("telegram", "troubled")
        await answered(stage, "webhook", "are you there?")
