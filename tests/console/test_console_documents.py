"""Ask and Files: adding a document, looking into it, and an answer that rests on it."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from tests.console.consoles import EVIL, Browser, Opened, opened

from accord.community.errors import Code, CommunityError
from accord.console.pages import Origin, origins
from accord.console.pages.files import split_passage
from accord.console.templates import MemberNames
from accord.kernel.signing import SigningKey

WATER = (
    b"# Rain water\n\nRain water from the roof must be boiled for five minutes before drinking.\n"
)
CID = re.compile(r"blake3:[0-9a-f]{64}")


async def add(browser: Browser, content: bytes = WATER, **fields: str) -> str:
    given = {"corpus": "library", "licence": "CC0-1.0", "title": "Water", **fields}
    file = ("water.md", content, "text/markdown")
    answer = await browser.send("files/add", given, files={"file": file})
    return answer.text


async def corpora(found: Opened) -> list[str]:
    [community] = await found.parts.node.communities()
    async with found.parts.node.client(community["community_id"]) as client:
        told = await client.call("rag.list_corpora", {}, {})
    return [each["name"] for each in told["output"]["corpora"]]


async def test_a_document_is_added_listed_and_looked_into(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        shown = await add(browser, title=f"Water {EVIL}")
        assert "is in library, in 1 part" in shown
        assert EVIL not in shown
        cid = CID.search(shown)
        assert cid is not None
        document = (await browser.get(f"files/document/{cid[0]}")).text
        assert "boiled for five minutes" in document
        blob = await browser.get(f"files/blob/{cid[0]}")
        assert blob.content == WATER
        assert blob.headers["content-disposition"].startswith("attachment")
        assert blob.headers["x-content-type-options"] == "nosniff"


async def test_an_attachment_of_a_sealed_message_is_shown_as_it_was_sent(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        [community] = await found.parts.node.communities()
        attached = [{"cid": await found.parts.blobs.put(WATER), "name": "water.md"}]
        async with found.parts.node.client(community["community_id"]) as client:
            given = {
                "client_id": "1",
                "recipient": found.parts.node.key.id,
                "body": "for later",
                "attachments": attached,
            }
            await client.call("chat.send", {}, given)
            [message] = (await client.call("chat.history", {}, {}))["output"]["messages"]
        cid = message["attachments"][0]["cid"]
        assert WATER not in b"".join([part async for part in found.parts.blobs.read(cid)])
        assert "boiled for five minutes" in (await browser.get(f"files/document/{cid}")).text
        blob = await browser.get(f"files/blob/{cid}")
        assert blob.content == WATER


async def test_a_document_needs_no_licence(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "Water is in library, in 1 part." in await add(browser, licence="")
        assert await corpora(found) == ["library"]


async def test_documents_are_found_by_their_licence(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser, licence="CC-BY-4.0")
        [community] = await found.parts.node.communities()
        async with found.parts.node.client(community["community_id"]) as client:
            for licence, count in (("CC-BY-4.0", 1), ("CC0-1.0", 0)):
                given = {"query": "rain water", "filter": {"licence": licence}}
                told = await client.call("rag.query", {"corpus": "library"}, given)
                assert len(told["output"]["chunks"]) == count


async def test_a_file_is_kept_without_being_a_document(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        shown = await add(browser, b"\0\1 not text", corpus="", licence="", share="yes")
        assert "water.md is kept, and every member may read it." in shown
        assert "Unpin" in shown
        assert await corpora(found) == []
        [cid] = found.parts.blobs.cids()
        assert "It is not plain text." in (await browser.get(f"files/document/{cid}")).text
        assert "no longer pinned" in (await browser.send("files/unpin", {"cid": cid})).text
        assert found.parts.blobs.pinned() == set()


async def test_a_kept_file_has_its_name_and_title_and_is_downloaded_by_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        # A browser may send a path; only its last part is a name.
        file = {"file": ("C:\\photos\\фото <script>.jpg", b"\0\1", "image/jpeg")}
        title = {"corpus": "", "title": f"Our street {EVIL}"}
        shown = (await browser.send("files/add", title, files=file)).text
        assert "for this station alone" in shown
        assert EVIL not in shown
        assert "Unnamed" not in shown
        for page in (shown, (await browser.get("files")).text):
            assert "фото &lt;script&gt;" in page
            assert "Our street &lt;script&gt;" in page
        [cid] = found.parts.blobs.cids()
        document = (await browser.get(f"files/document/{cid}")).text
        assert "фото &lt;script&gt;.jpg</h2>" in document
        saved = (await browser.get(f"files/blob/{cid}")).headers["content-disposition"]
        assert saved.startswith("attachment; ")
        assert unquote(saved.partition("filename*=UTF-8''")[2]) == "фото <script>.jpg"


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        (b"", {"corpus": "library"}),
        (b"", {"corpus": "", "share": "yes"}),
        (b" \n ", {"corpus": "library"}),
        (WATER, {"corpus": "library", "language": "no language"}),
        (WATER, {"corpus": "", "title": "two\u2028lines"}),
    ],
)
async def test_a_refused_file_leaves_nothing_behind(
    tmp_path: Path, content: bytes, fields: dict[str, str]
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert 'role="alert"' in await add(browser, content, **fields)
        assert found.parts.blobs.cids() == []
        assert found.parts.blobs.pinned() == set()
        assert "There are none yet." in (await browser.get("files")).text


async def test_a_refusal_does_not_remove_what_was_here_before(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        [cid] = found.parts.blobs.cids()
        assert 'role="alert"' in await add(browser, language="no language")
        assert found.parts.blobs.cids() == [cid]
        assert "boiled for five minutes" in (await browser.get(f"files/document/{cid}")).text


async def test_what_nobody_wants_any_more_is_no_file_of_this_station(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser, corpus="")
        [cid] = found.parts.blobs.cids()
        await browser.send("files/unpin", {"cid": cid})
        shown = (await browser.get("files")).text
        assert cid not in shown
        assert "Unused blobs beside them: 1" in shown


async def test_a_document_is_shared_with_every_member_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        [cid] = found.parts.blobs.cids()
        document = (await browser.get(f"files/document/{cid}")).text
        assert 'value="everybody" checked' in document
        assert "<bdi>every member</bdi>" in (await browser.get("files")).text
        back = await browser.send("files/share", {"cid": cid, "whom": "nobody"})
        assert "It is no longer shared" in back.text
        assert 'value="nobody" checked' in back.text


async def test_sharing_is_an_act_that_is_shown_and_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser, corpus="", title="")
        [cid] = found.parts.blobs.cids()
        assert "<td>every member</td>" not in (await browser.get("files")).text
        shared = await browser.send("files/share", {"cid": cid, "whom": "everybody"})
        assert "Every member may read it." in shared.text
        assert 'value="everybody" checked' in shared.text
        assert "<bdi>every member</bdi>" in (await browser.get("files")).text
        back = await browser.send("files/share", {"cid": cid, "whom": "nobody"})
        assert "It is no longer shared" in back.text
        assert "<bdi>every member</bdi>" not in (await browser.get("files")).text
        stranger = SigningKey.generate().id
        for wrong in (
            {"cid": cid, "whom": "members"},
            {"cid": cid, "whom": "members", f"with-{stranger}": "yes"},
            {"cid": cid, "whom": "members", "with-nonsense": "yes"},
            {"cid": cid, "whom": "the world"},
            {"cid": "blake3:" + "0" * 64, "whom": "everybody"},
            {"cid": "nonsense", "whom": "everybody"},
        ):
            assert 'role="alert"' in (await browser.send("files/share", wrong)).text, wrong
        assert found.parts.blobs.shares.referenced() == set()


async def test_files_are_called_by_what_the_log_says_of_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser, title=f"Water {EVIL}")
        await add(browser, b"shared", corpus="", licence="", share="yes")
        shown = (await browser.get("files")).text
        await add(browser, b"quiet", corpus="", licence="")
        assert "Water &lt;" in shown
        assert "<td>a document in library</td>" in shown
        assert "<td>a shared file</td>" in shown
        assert "<td>nobody</td>" not in shown
        quiet = (await browser.get("files")).text
        assert "<td>a file</td>" in quiet
        assert "<td>nobody</td>" in quiet
        for cid in found.parts.blobs.cids():
            assert f'<code title="{cid}" data-whole="{cid}">{cid[:15]}…</code>' in quiet
            assert f"<code>{cid}</code>" in (await browser.get(f"files/document/{cid}")).text
        assert EVIL not in quiet


@pytest.mark.parametrize("cids", [None, "blake3:", [1], {}])
async def test_a_node_is_asked_for_files_by_a_list_of_names(tmp_path: Path, cids: Any) -> None:
    async with opened(tmp_path / "home") as found:
        [community] = await found.parts.node.communities()
        async with found.parts.node.client(community["community_id"]) as client:
            with pytest.raises(CommunityError) as refused:
                await client.post("/node/v1/files", {"cids": cids})
            assert refused.value.code is Code.BAD_REQUEST
            told = (await client.post("/node/v1/files", {"cids": ["unknown"]}))["files"]
            assert told == [{"cid": "unknown", "held_by": [], "documents": []}]


def test_an_attachment_names_a_file_and_a_document_comes_first() -> None:
    ann, ben = SigningKey.generate().id, SigningKey.generate().id
    told: list[dict[str, Any]] = [
        {"cid": "a", "held_by": [ann], "documents": []},
        {"cid": "b", "held_by": [ann, ben], "documents": []},
        {"cid": "c", "held_by": [], "documents": [{"corpus": "x", "title": None, "by": ben}]},
        {"cid": "d", "held_by": [], "documents": []},
    ]
    said = [{"from": ben, "attachments": [{"cid": each, "name": f"{each}.txt"} for each in "ac"]}]
    known = origins(told, said, MemberNames({}))
    assert (known["a"].name, known["a"].kind) == ("a.txt", "attached to a message")
    assert (known["b"].name, known["b"].kind, len(known["b"].shared_by)) == ("", "a shared file", 2)
    assert (known["c"].name, known["c"].kind) == ("", "a document in x")
    assert known["d"] == Origin()


async def test_a_document_that_cannot_be_added_gets_a_banner(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert 'role="alert"' in await add(browser, corpus="Our library")
        assert 'role="alert"' in await add(browser, corpus="../etc")
        assert 'role="alert"' in await add(browser, language="no language")
        assert 'role="alert"' in await add(browser, b"")
        assert await corpora(found) == []


async def test_a_form_that_is_none_or_too_long_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        token = {"x-csrf-token": browser.csrf}
        for content in (b"nonsense", b"--x\r\nbroken", b"", b"--x\r\n\r\n" + b"x" * 300_000):
            refused = await browser.http.post(
                "/console/files/add", content=content, headers=kind | token
            )
            assert 400 <= refused.status_code < 500
        plain = {"content-type": "application/x-www-form-urlencoded"} | token
        for content in (b"a=%ff", b"a=1&" * 1000, b"x" * 300_000):
            refused = await browser.http.post("/console/files/add", content=content, headers=plain)
            assert 400 <= refused.status_code < 500
        assert found.parts.blobs.cids() == []


async def test_a_name_of_no_file_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        for cid in ("nonsense", "blake3:" + "0" * 63, "..%2f..%2fkeys", "%00"):
            for path in (f"files/document/{cid}", f"files/blob/{cid}"):
                assert (await browser.get(path)).status_code in (400, 404)


async def test_a_file_that_is_elsewhere_says_so_and_offers_to_fetch_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        cid = "blake3:" + "0" * 64
        assert "It is not on this station." in (await browser.get(f"files/document/{cid}")).text
        assert 'role="alert"' in (await browser.get(f"files/blob/{cid}")).text
        assert 'role="alert"' in (await browser.send("files/fetch", {"cid": cid})).text


async def test_the_passage_that_an_answer_rests_on_is_opened_in_its_document(
    tmp_path: Path,
) -> None:
    assert split_passage("a  b\nc d\n\ne", "b c") == ("a  ", "b\nc d", "\n\ne")
    assert split_passage("a (b", "(b") == ("a ", "(b", "")
    assert split_passage("a b", "") == split_passage("a b", "c") == ("a b", "", "")
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        await add(browser)
        [cid] = found.parts.blobs.cids()
        shown = (await browser.get(f"files/document/{cid}?passage=boiled+for")).text
        assert '<mark id="passage">boiled for five' in shown
