"""The pages about a community: its events, its capabilities, the bus's checks, the fold's rules."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from docs.making.markdown import code, join, meaning, sentence, table
from docs.making.schemas import members_table

from accord.community.bus import CHECKS
from accord.community.rules import EVENT_TYPES, VERDICTS, Status, event_schema, read_descriptor


def events() -> str:
    """The page of the events of a community's log."""
    shared = json.loads(files("accord.community").joinpath("data/definitions.json").read_bytes())
    parts = []
    for name, kind in EVENT_TYPES.items():
        schema = event_schema(name)
        decided = f"Version {kind.version}; the fold decides it with the {kind.stage.value} events."
        about = meaning(schema.get("description"), f"the event {name}")
        parts += [f"## {name}", about, decided, members_table(schema, shared["$defs"])]
    return join(parts)


def capabilities() -> str:
    """The page of what a node offers on the bus."""
    return join(_capability(form) for form in _descriptions())


def checks() -> str:
    """The checks of a call, in their order."""
    rows = [
        (
            str(number),
            code(check.name),
            meaning(check.asks, f"the check {check.name}"),
            ", ".join(code(each) for each in sorted(each.value for each in check.codes)),
        )
        for number, check in enumerate(CHECKS, 1)
    ]
    return join(["## The checks of a call", table(("", "check", "asks", "refuses with"), rows)])


def fold() -> str:
    """The page of the fold's rules."""
    parts = []
    for status in Status:
        rows = [
            (code(each.rule), sentence(meaning(each.reason, f"the rule {each.rule}")))
            for each in VERDICTS.values()
            if each.status is status
        ]
        parts.append(join([f"## {status.value.capitalize()}", table(("rule", "because"), rows)]))
    return join(parts)


def _descriptions() -> Iterator[Any]:
    for folder in sorted(files("accord.capabilities").iterdir(), key=lambda each: each.name):
        data = folder.joinpath("data")
        if data.is_dir():
            for file in sorted(data.iterdir(), key=lambda each: each.name):
                if file.name.endswith(".json"):
                    yield json.loads(file.read_bytes())


def _capability(form: Any) -> str:
    described = read_descriptor(form)
    about = meaning(described.description, f"the capability {described.key}")
    facts = [
        ("stability", described.stability),
        ("for", f"{described.trust.text}s"),
        ("asked twice", "answers the same" if described.idempotent else "does it twice"),
        ("refuses with", ", ".join(code(each) for each in sorted(form.get("errors", ())))),
        ("schema hash", code(described.schema_hash)),
    ]
    parts = [f"## {described.key}", about, table(("", ""), [each for each in facts if each[1]])]
    for title, member in (
        ("Request", "request_schema"),
        ("Answer", "response_schema"),
        ("Frame of the stream", "stream_schema"),
    ):
        if form.get(member) is not None:
            parts += [f"**{title}**", members_table(form[member])]
    return join(parts)
