"""Two stations, each with its console: inviting, joining, and talking to each other."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from tests.console.consoles import EVIL, Browser, Opened, opened, served

from accord.community.peers import Endpoint, announced
from accord.station import listener


@asynccontextmanager
async def reachable(found: Opened) -> AsyncIterator[None]:
    """Others can reach the node."""
    with (
        listener.bind("127.0.0.1", 0) as listening,
        announced(listening.getsockname()[1]),
    ):
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


async def join(anna: Opened, annas: Browser, ben: Opened, bens: Browser) -> None:
    """Have ben join anna's community, by their pages."""
    own = ben.parts.node.key.id
    invited = await annas.send("members/invite", {"node_id": own, "hours": "1", "name": "ben"})
    link = re.search(r"hearthnet://v1/[^<\s]+", invited.text)
    assert link is not None
    joined = await bens.send("home/join", {"link": html.unescape(link[0])})
    assert "This station has joined." in joined.text


async def sync(found: Opened) -> None:
    [community] = await found.parts.node.communities()
    async with found.parts.node.client(community["community_id"]) as client:
        await client.post("/node/v1/sync", {})


async def test_a_friend_sees_a_shared_file_by_its_name_and_fetches_it(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "anna") as anna,
        opened(tmp_path / "ben", founded=False) as ben,
        reachable(anna),
        reachable(ben),
        anna.inside() as annas,
        ben.inside() as bens,
    ):
        await join(anna, annas, ben, bens)
        for name, share in (("pump.txt", "yes"), ("diary.txt", "")):
            fields = {"corpus": "", "title": f"About {name}", "share": share}
            file = {"file": (name, name.encode(), "text/plain")}
            await annas.send("files/add", fields, files=file)
        await sync(ben)
        page = (await bens.get("files")).text
        live = re.search(r'data-live="/console/([^"]+)"', page)
        assert live is not None
        path = html.unescape(live[1])
        async with served(ben) as address, httpx.AsyncClient(timeout=30) as http:
            http.cookies = bens.http.cookies
            # The page is told as soon as its owner was asked what the file is called.
            async with http.stream("GET", f"{address}/console/{path}") as told:
                lines = told.aiter_lines()
                while await anext(lines) != "event: news":
                    pass
        page = (await bens.get("files")).text
        assert "pump.txt" in page
        assert "About pump.txt" in page
        assert "diary" not in page
        cid = re.search(r"files/document/(blake3:[0-9a-f]{64})", page)
        assert cid is not None
        assert "It is not on this station." in (await bens.get(f"files/document/{cid[1]}")).text
        fetched = (await bens.send("files/fetch", {"cid": cid[1]})).text
        assert "It is here now, and kept." in fetched
        assert '<h2 id="document" dir="auto">pump.txt</h2>' in fetched
        assert (await bens.get(f"files/blob/{cid[1]}")).content == b"pump.txt"
        assert cid[1] in ben.parts.blobs.pinned()

        # For ben alone, and then for nobody.
        [diary] = set(anna.parts.blobs.cids()) - {cid[1]}
        own = ben.parts.node.key.id
        given = {"cid": diary, "whom": "members", f"with-{own}": "yes"}
        assert "1 of the members may read it." in (await annas.send("files/share", given)).text
        assert "Every member was asked." in (await bens.send("files/refresh")).text
        page = (await bens.get("files")).text
        assert "diary.txt" in page
        assert "not with everybody" in page
        await annas.send("files/share", {"cid": diary, "whom": "nobody"})
        await bens.send("files/refresh")
        assert "diary" not in (await bens.get("files")).text
        assert 'role="alert"' in (await bens.send("files/fetch", {"cid": diary})).text


async def test_neighbours_invite_join_and_chat_by_their_pages(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "anna", founded=False) as anna,
        opened(tmp_path / "ben", founded=False) as ben,
        reachable(anna),
        reachable(ben),
        anna.inside() as annas,
        ben.inside() as bens,
    ):
        await anna.node.found("Our street", {"min_signatures_to_promote": 2})
        own = ben.parts.node.key.id
        assert own in (await bens.get("")).text
        await join(anna, annas, ben, bens)
        assert "Our street" in (await bens.get("")).text

        live = re.search(r'data-live="([^"]+)"', (await annas.get("chat")).text)
        assert live is not None
        async with (
            served(anna) as address,
            httpx.AsyncClient(cookies=annas.http.cookies, timeout=30) as http,
            http.stream("GET", address + html.unescape(live[1])) as told,
        ):
            sent = await bens.send(
                "chat/send", {"recipient": anna.parts.node.key.id, "body": f"Hello {EVIL}"}
            )
            # Her open page is told at once.
            assert await anext(told.aiter_lines()) == "event: news"
        assert "Delivered to the recipient." in sent.text
        home = (await annas.get("")).text
        assert re.search(r"Unread messages from [^<]+: 1", home)
        assert '<svg class="map"' in home
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
        raised = await annas.send("members/move", {"node_id": own, "level": "trusted"})
        blob = re.search(r'<code class="long">([^<]+)</code>', raised.text)
        assert blob is not None
        looked = await annas.send("members/look", {"petition": blob[1]})
        assert "It asks to promote" in looked.text
        signed = await annas.send("members/cosign", {"petition": blob[1]})
        assert "1 of 2 have signed" in signed.text  # a second signature of one node is none
        for wrong in ("", "nonsense", "e30"):
            refused = await annas.send("members/look", {"petition": wrong})
            assert 'role="alert"' in refused.text

        revoked = await annas.send("members/revoke", {"node_id": own, "sure": "yes"})
        assert '<h2 id="outcome">Done</h2>' in revoked.text  # nobody else is trusted
