"""Two stations, each with its console: inviting, joining, and talking to each other."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.console.consoles import EVIL, Opened, opened

from accord.community.discovery import Endpoint
from accord.station import listener


@asynccontextmanager
async def reachable(found: Opened) -> AsyncIterator[None]:
    """Others can reach the node."""
    with listener.bind("127.0.0.1", 0) as listening:
        server = listener.Listener(found.node.application())
        serving = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        port = listening.getsockname()[1]
        found.node.presence.endpoints = (Endpoint("http", "127.0.0.1", port),)
        for community, hosted in found.node.communities.items():
            manifest = dict(found.node.presence.manifest(hosted))
            await found.node.act(community, "node.manifest.updated", {"manifest": manifest})
        try:
            yield
        finally:
            server.should_exit = True
            await serving


async def test_neighbours_invite_join_and_chat_by_their_pages(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "anna") as anna,
        opened(tmp_path / "ben", founded=False) as ben,
        reachable(anna),
        reachable(ben),
        anna.inside() as annas,
        ben.inside() as bens,
    ):
        own = ben.parts.node.key.id
        assert own in (await bens.get("")).text
        invited = await annas.send("members/invite", {"node_id": own, "hours": "1"})
        link = re.search(r"hearthnet://v1/[^<\s]+", invited.text)
        assert link is not None
        joined = await bens.send("home/join", {"link": html.unescape(link[0])})
        assert "This station has joined." in joined.text
        assert "Our street" in joined.text

        sent = await bens.send(
            "chat/send", {"recipient": anna.parts.node.key.id, "body": f"Hello {EVIL}"}
        )
        assert "It is with the recipient." in sent.text
        assert "Unread messages: 1" in (await annas.get("")).text
        shown = (await annas.get("chat")).text
        assert "Hello &lt;script&gt;" in shown
        assert EVIL not in shown
        assert "Mark 1 as read" in shown
        assert "1 marked as read." in (await annas.send("chat/read")).text
        assert "Unread" not in (await annas.get("")).text

        answered = await annas.send("chat/send", {"recipient": own, "body": "Hello Ben"})
        assert "Hello Ben" in answered.text

        same = await annas.send("members/move", {"node_id": own, "level": "member"})
        assert "it is that already" in same.text
        trusted = await annas.send("members/move", {"node_id": own, "level": "trusted"})
        assert '<h2 id="outcome">Done</h2>' in trusted.text
        lowered = await annas.send("members/move", {"node_id": own, "level": "member"})
        blob = re.search(r'<code class="long">([^<]+)</code>', lowered.text)
        assert blob is not None
        looked = await annas.send("members/look", {"petition": blob[1]})
        assert "It asks to demote" in looked.text
        signed = await annas.send("members/cosign", {"petition": blob[1]})
        assert "1 of 3 have signed" in signed.text  # a second signature of one node is none
        for wrong in ("", "nonsense", "e30"):
            refused = await annas.send("members/look", {"petition": wrong})
            assert 'role="alert"' in refused.text

        revoked = await annas.send("members/revoke", {"node_id": own, "sure": "yes"})
        assert "1 of 3 have signed" in revoked.text
