"""Forty-five questions that teams ask, as docs/concepts/compatibility.md answers them.

The page has the sentences and the answers; here is the change that each sentence describes.
"""

import re
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from accord.contracts import compare, digest
from accord.contracts.compatibility import (
    LEVELS,
    KnownVersion,
    Policy,
    Relation,
    read_policy,
    review,
)

Contract = Callable[..., dict[str, Any]]
Manifest = dict[str, Any]
Pair = tuple[Manifest, Manifest]

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "compatibility.md"
TODAY = date(2026, 6, 1)
_ROW = re.compile(r"^\| (\d+) \| (.+?) \|(.+)\|$", re.MULTILINE)


def rows(heading: str) -> list[tuple[str, tuple[str, ...]]]:
    """The questions below a heading of the page, with their answers."""
    section = PAGE.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    found = [
        (question, tuple(each.strip() for each in answers.split("|")))
        for _, question, answers in _ROW.findall(section)
    ]
    assert found, heading
    return found


def verdict(
    old: list[Manifest], new: Manifest, policy: Policy, relation: Relation = "replacement"
) -> str:
    versions = [
        (KnownVersion(f"version {number}", digest(each), each), compare(each, new, relation))
        for number, each in enumerate(old, 1)
    ]
    return review(new, digest(new), versions, policy).verdict


def thing(
    *optional: str, required: tuple[str, ...] = (), closed: bool = False, **types: Any
) -> dict[str, Any]:
    names = {name: {"type": "string"} for name in (*optional, *required)} | types
    schema: dict[str, Any] = {"type": "object", "properties": names, "required": list(required)}
    return {**schema, "additionalProperties": False} if closed else schema


def schemas(place: str, old: Any, new: Any) -> Callable[[Contract], Pair]:
    return lambda contract: (contract({place: old}), contract({place: new}))


def edit(change: Callable[[Manifest], Any]) -> Callable[[Contract], Pair]:
    def build(contract: Contract) -> Pair:
        new = contract()
        change(new)
        return contract(), new

    return build


def put(*path: str, value: Any) -> Callable[[Contract], Pair]:
    def change(manifest: Manifest) -> None:
        for step in path[:-1]:
            manifest = manifest[step]
        manifest[path[-1]] = value

    return edit(change)


def drop(*path: str) -> Callable[[Contract], Pair]:
    def change(manifest: Manifest) -> None:
        for step in path[:-1]:
            manifest = manifest[step]
        del manifest[path[-1]]

    return edit(change)


def both(*changes: Callable[[Contract], Pair]) -> Callable[[Contract], Pair]:
    """Changes of sections one after another, each seen from the same old contract."""

    def build(contract: Contract) -> Pair:
        old, new = contract(), contract()
        for change in changes:
            before, after = change(contract)
            for section in after.keys() | before.keys():
                if before.get(section) != after.get(section):
                    new[section] = after.get(section, {})
        return old, new

    return build


ENUM = {"enum": ["a", "b"]}
UUID = {"type": "string", "format": "uuid"}
MANY = [f"value {number:020}" for number in range(25_000)]
FIND = ("rpc", "Find")

LEVEL_CHANGES: dict[str, Callable[[Contract], Pair]] = {
    "An RPC is removed.": drop(*FIND),
    "An RPC is renamed.": edit(lambda it: it["rpc"].update(Search=it["rpc"].pop("Find"))),
    "An RPC moves to another subject.": put(*FIND, "subject", value="rpc.v2.Find"),
    "An RPC is added.": edit(
        lambda it: it["rpc"].update(More={**it["rpc"]["Find"], "subject": "rpc.v1.More"})
    ),
    "The version of an RPC goes from v1 to v2 on the same subject.": put(
        *FIND, "version", value="v2"
    ),
    "Callers may send one more optional member.": schemas("rpc.input", thing("a"), thing("a", "b")),
    "Callers have to send one more member.": schemas(
        "rpc.input", thing("a"), thing("a", required=("b",))
    ),
    "A member that callers may leave out becomes required.": schemas(
        "rpc.input", thing("a", "b"), thing("a", required=("b",))
    ),
    "A member that the service may leave out is always sent now.": schemas(
        "rpc.output", thing("a", "b"), thing("a", required=("b",))
    ),
    "The service no longer sends a member that it always sent.": schemas(
        "rpc.output", thing(required=("a", "b")), thing(required=("a",))
    ),
    "The service no longer declares a member that it may leave out.": schemas(
        "rpc.output", thing("a", "b"), thing("a")
    ),
    "Callers need no longer send a required member.": schemas(
        "rpc.input", thing(required=("a", "b")), thing(required=("a",))
    ),
    "Callers may send fewer values of a list.": schemas(
        "rpc.input", thing(a=ENUM), thing(a={"enum": ["a"]})
    ),
    "The service sends fewer values of a list.": schemas(
        "rpc.output", thing(a=ENUM), thing(a={"enum": ["a"]})
    ),
    "The service sends more values of a list.": schemas(
        "rpc.output", thing(a={"enum": ["a"]}), thing(a=ENUM)
    ),
    "A text that callers send gets a format.": schemas("rpc.input", thing("a"), thing(a=UUID)),
    "A text that the service sends loses its format.": schemas(
        "rpc.output", thing(a=UUID), thing("a")
    ),
    "An object that callers send is closed to unknown members.": schemas(
        "rpc.input", thing("a"), thing("a", closed=True)
    ),
    "A closed object that callers send gets an optional member.": schemas(
        "rpc.input", thing("a", closed=True), thing("a", "b", closed=True)
    ),
    "A closed object that the service sends gets an optional member.": schemas(
        "rpc.output", thing("a", closed=True), thing("a", "b", closed=True)
    ),
    "A list of forbidden values is so long that no proof is found.": schemas(
        "rpc.input", thing(a={"not": {"enum": MANY}}), thing(a={"not": {"enum": MANY[1:]}})
    ),
    "An event loses a required member, and old events are still stored.": schemas(
        "events.event", thing(required=("a", "b")), thing(required=("a",))
    ),
    "A call needs one more capability.": edit(
        lambda it: it["operations"]["Import"]["capabilities"]["call"].append("graph::read")
    ),
    "A call needs one capability less.": put(
        *FIND, "capabilities", value={"call": ["graph::read"]}
    ),
    "A declared error is removed.": drop(*FIND, "errors"),
    "Records of an earlier state version are no longer read.": put(
        "state", "drafts", "acceptedVersions", value={}
    ),
    "A bucket is removed.": drop("resources", "kv", "cache"),
    "A bucket keeps its values for half the time.": put(
        "resources", "kv", "cache", "ttlMs", value=500
    ),
    "A queue tries a job less often.": put("jobs", "plain", "maxDeliver", value=2),
    "A description changes, and nothing else.": put("description", value="Says it better."),
}

EXCEPTED: dict[str, tuple[Callable[[Contract], Pair], dict[str, Any]]] = {
    "An RPC is removed, and an exception names the rule and the RPC.": (
        drop(*FIND),
        {"pointer": "/rpc/Find"},
    ),
    "An RPC is removed, and an exception names the rule for the whole contract.": (drop(*FIND), {}),
    "An RPC is removed, and the exception names another RPC.": (
        drop(*FIND),
        {"pointer": "/rpc/Search"},
    ),
    "An RPC is removed, and the exception is for another contract.": (
        drop(*FIND),
        {"contract": "paper@v1"},
    ),
    "An RPC and a feed are removed, and the exception names the RPC.": (
        both(drop(*FIND), drop("feeds", "Watch")),
        {"pointer": "/rpc/Find"},
    ),
    "A bucket is removed, and an exception names the migration.": (
        drop("resources", "kv", "cache"),
        {"rule": "resource.removed"},
    ),
    "An RPC is removed and a bucket shrinks, and the exception names the RPC.": (
        both(drop(*FIND), put("resources", "kv", "cache", "ttlMs", value=500)),
        {"pointer": "/rpc/Find"},
    ),
    "An RPC is removed, and the exception ends today.": (drop(*FIND), {"expires": TODAY}),
    "An RPC is removed, and the exception ended yesterday.": (
        drop(*FIND),
        {"expires": TODAY - timedelta(days=1)},
    ),
}


def steps(*changes: Callable[[Contract], Pair]) -> Callable[[Contract], list[Manifest]]:
    return lambda contract: [contract(), *(change(contract)[1] for change in changes)]


def unchanged(contract: Contract) -> Pair:
    return contract(), contract()


TRANSITIVE: dict[str, tuple[Callable[[Contract], list[Manifest]], Relation]] = {
    "Each version adds an RPC.": (
        steps(
            LEVEL_CHANGES["An RPC is added."],
            edit(
                lambda it: it["rpc"].update(
                    {
                        name: {**it["rpc"]["Find"], "subject": f"rpc.v1.{name}"}
                        for name in ("More", "Most")
                    }
                )
            ),
        ),
        "replacement",
    ),
    "An RPC was removed one version ago, and the last step changes a description.": (
        steps(
            drop(*FIND),
            both(drop(*FIND), LEVEL_CHANGES["A description changes, and nothing else."]),
        ),
        "replacement",
    ),
    "An RPC was removed one version ago, and the last step brings it back.": (
        steps(drop(*FIND), unchanged),
        "replacement",
    ),
    "A member was dropped one version ago, and comes back with another type.": (
        lambda contract: [
            contract({"rpc.input": schema})
            for schema in (thing("a", "b"), thing("a"), thing("a", b={"type": "integer"}))
        ],
        "replacement",
    ),
    "A bucket was removed one version ago, and the last step adds an RPC.": (
        steps(
            drop("resources", "kv", "cache"),
            both(drop("resources", "kv", "cache"), LEVEL_CHANGES["An RPC is added."]),
        ),
        "replacement",
    ),
    "The service sends more values than two versions ago, and as many as in the last one.": (
        lambda contract: [
            contract({"rpc.output": schema})
            for schema in (thing(a={"enum": ["a"]}), thing(a=ENUM), thing(a=ENUM, b={}))
        ],
        "replacement",
    ),
}


def test_the_page_has_forty_five_questions_and_each_is_asked_here() -> None:
    asked = [
        [question for question, _ in rows(heading)]
        for heading in ("By level", "With exceptions", "Over several versions")
    ]
    assert asked == [list(LEVEL_CHANGES), list(EXCEPTED), list(TRANSITIVE)]
    assert sum(map(len, asked)) == 45
    numbers = [int(number) for number, _, _ in _ROW.findall(PAGE.read_text())]
    assert numbers == list(range(1, 46))


@pytest.mark.parametrize(("question", "answers"), rows("By level"))
def test_questions_by_level(contract: Contract, question: str, answers: tuple[str, ...]) -> None:
    old, new = LEVEL_CHANGES[question](contract)
    assert tuple(verdict([old], new, Policy(level)) for level in LEVELS) == answers


@pytest.mark.parametrize(("question", "answers"), rows("With exceptions"))
def test_questions_with_exceptions(
    contract: Contract, question: str, answers: tuple[str, ...]
) -> None:
    change, members = EXCEPTED[question]
    written = {
        "rule": "surface.removed",
        "contract": "graph@v1",
        "owner": "graph team",
        "reason": "nobody calls it",
        "expires": TODAY + timedelta(days=30),
        **members,
    }
    text = "[[exceptions]]\n" + "\n".join(
        f"{name} = {value}" if isinstance(value, date) else f'{name} = "{value}"'
        for name, value in written.items()
    )
    old, new = change(contract)
    try:
        found = verdict([old], new, read_policy(text, TODAY))
    except Exception as error:  # noqa: BLE001 - compared with the page
        found = "error" if "policy.expired" in str(error) else str(error)
    assert (found,) == answers


@pytest.mark.parametrize(("question", "answers"), rows("Over several versions"))
def test_questions_over_several_versions(
    contract: Contract, question: str, answers: tuple[str, ...]
) -> None:
    build, relation = TRANSITIVE[question]
    *earlier, new = build(contract)
    last = verdict(earlier[-1:], new, Policy(), relation)
    assert (last, verdict(earlier, new, Policy(), relation)) == answers
