"""What an anchor holds for somebody survives the anchor's death, and arrives once."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.capabilities.chat.conftest import Neighbour

from accord.community import queries
from accord.community.settings import NodeSettings
from accord.kernel.clock import SystemClock
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow

ANCHOR = str(Path(__file__).with_name("chat_anchor.py"))
ROOT = str(Path(__file__).parents[3])
MESSAGES = 5


async def test_a_message_that_an_anchor_held_arrives_once_after_its_restart(
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    bob, carol = (Neighbour(name, tmp_path / name, clock) for name in ("bob", "carol"))
    env = {"PYTHONPATH": ROOT}
    home = str(tmp_path / "anchor")
    async with AsyncExitStack() as opened:
        for each in (bob, carol):
            await each.arrive()
            opened.push_async_callback(each.leave)
        with python_child(ANCHOR, home, "bob", "carol", env=env) as child:
            _, community, *links = read_lines(child, 4)
            for each, link in zip((bob, carol), links, strict=True):
                await each.node.join(link)
                each.community = community
            await bob.sync()
            await carol.leave()
            sent = [await bob.send(carol, str(number)) for number in range(MESSAGES)]
            child.kill()
            child.assert_gone()
        assert {each["delivered"] for each in sent} == {"forwarded"}
        # The sender is gone for good; only the anchor's disk has what was said.
        await bob.leave()
        with python_child(ANCHOR, home, env=env) as child:
            url, _ = read_lines(child, 2)
            await carol.arrive(NodeSettings(display_name="carol", peers=(url,)))
            for _ in range(2):
                await carol.sync()
            found = await carol.history()
            assert [each["event_id"] for each in found] == [each["event_id"] for each in sent]
            assert [each["body"] for each in found] == [str(each) for each in range(MESSAGES)]
            await carol.until(lambda: all(carol.receipt(each["event_id"]) for each in sent))
            receipts = await queries.log_entries(
                carol.hosted, limit=100, event_type="chat.message.delivered"
            )
            assert [each["status"] for each in receipts] == ["accepted"] * MESSAGES


def read_lines(child: Child, count: int) -> list[str]:
    return [child.read_line() for _ in range(count)]
