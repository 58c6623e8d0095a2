"""What refusals of forms say: the words of people, never those of a schema."""

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.console.consoles import Browser, opened

from accord.community.errors import Code, CommunityError
from accord.console.templates import Refusal, plain_refusal
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey

ALERT = re.compile(r'<div class="trouble" role="alert">(.*?)</div>', re.DOTALL)
FORMULA = re.compile(r"\^|\$&|\[[a-zA-Z0-9]-|\{\d+|anyOf|/input|/data/")


def refused(what: str, where: str | None = None) -> Refusal:
    return plain_refusal(CommunityError(Code.BAD_REQUEST, what, where=where))


def patterns(value: Any) -> Iterator[str]:
    """Every pattern within a schema."""
    if isinstance(value, dict):
        if isinstance(found := value.get("pattern"), str):
            yield found
        for each in value.values():
            yield from patterns(each)
    elif isinstance(value, list):
        for each in value:
            yield from patterns(each)


def documents(folder: Traversable) -> Iterator[Any]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from documents(each)
        elif each.name.endswith(".json"):
            yield orjson.loads(each.read_bytes())


def test_no_pattern_of_any_schema_is_shown() -> None:
    roots = [files("accord.capabilities"), files("accord.community") / "data"]
    known = {found for root in roots for each in documents(root) for found in patterns(each)}
    assert len(known) > 5
    for pattern in known:
        schema = compile_schema({"type": "string", "pattern": pattern})
        for wrong in ("", "\n", "wrong \N{SNOWMAN}"):
            for finding in schema.findings(wrong):
                told = refused(f"/input/recipient: {finding.message}")
                assert pattern not in told.what
                assert "match" not in told.what
                assert told.what.startswith("the recipient ")


def test_a_place_becomes_the_name_of_a_field() -> None:
    assert refused("the value is longer than 120 characters", "/data/display_name") == Refusal(
        "the name is longer than 120 characters"
    )
    assert refused("/input/tags/2: the value is longer than 40 characters") == Refusal(
        "a tag is longer than 40 characters"
    )
    assert refused("/input/min_signatures: expected a number") == Refusal(
        "expected a number", "the min signatures"
    )
    assert refused('/input: "title" is a required property').where == "what was sent"


def test_an_id_before_a_sentence_is_not_its_first_word() -> None:
    friend = SigningKey.generate().id
    told = refused(f"{friend}: the recipient is no member of this community")
    assert told == Refusal("the recipient is no member of this community", friend)


def test_other_sentences_stay_as_they_are() -> None:
    error = CommunityError(Code.NOT_FOUND, "not a petition: it is cut", where="x", mend="copy it")
    assert plain_refusal(error) == Refusal("not a petition: it is cut", "x", "copy it")


async def alert(browser: Browser, path: str, **fields: str) -> str:
    options = {"files": {"file": ("a.txt", b"text", "text/plain")}} if "files/" in path else {}
    found = ALERT.search((await browser.send(path, fields, **options)).text)
    assert found is not None, path
    return found[1]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("members/invite", {"node_id": "kitchen", "hours": "1"}),
        ("members/revoke", {"node_id": "kitchen", "sure": "yes"}),
        ("home/found", {"name": "x" * 300}),
        ("market/expire", {"event_id": "nonsense"}),
        ("market/post", {"title": "x", "days": "7", "tags": "x" * 80}),
        ("chat/send", {"recipient": "kitchen", "body": "Hello"}),
        ("files/add", {"corpus": "library", "language": "no language"}),
        ("files/add", {"corpus": "library", "licence": "x" * 3000}),
        ("files/fetch", {"cid": "blake3:" + "0" * 64}),
    ],
)
async def test_a_refused_form_speaks_plainly(
    tmp_path: Path, path: str, fields: dict[str, str]
) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        told = await alert(browser, path, **fields)
        assert not FORMULA.search(told), told
        assert "Ed25519:" not in told
        assert "Blake3:" not in told
