"""The contracts of a generated history: a few lineages, each with several digests.

Owns what the contracts say and how a payload is made that keeps one of their schemas. Nothing here
has happened yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final

from accord.contracts import compare, digest
from accord.contracts.authoring import Contract
from accord.pipeline.errors import PipelineError

Schema = Mapping[str, Any]

_WORDS: Final = ("alder", "birch", "cedar", "elm", "hazel", "linden", "maple", "oak", "rowan")


@dataclass(frozen=True, slots=True)
class Release:
    """One contract of a lineage.

    Attributes:
        manifest: What it says.
        digest: By which it is known.
        classification: What the step from the release before it means; None for the first.
        previous: The digest of that.
    """

    manifest: Mapping[str, Any]
    digest: str
    classification: str | None
    previous: str | None

    @property
    def contract_id(self) -> str:
        """The lineage."""
        return str(self.manifest["id"])

    def schema(self, kind: str, surface: str, part: str) -> Schema:
        """The schema of a payload."""
        declared = self.manifest[kind][surface]
        entry = declared[part] if part in declared else declared["signals"][part[7:]]["input"]
        schema: Schema = self.manifest["schemas"][entry["schema"]]
        return schema


@cache
def lineages() -> tuple[tuple[Release, ...], ...]:
    """Every lineage, with its releases from the first to the last."""
    return tuple(
        _releases([write(step) for step in range(3)])
        for write in (_graph, _orders, _weather, _shop)
    )


def payload(schema: Schema, chance: Random) -> Any:
    """A value that keeps a schema, of the few forms that these contracts use."""
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: payload(member, chance)
            for name, member in schema["properties"].items()
            if name in required or chance.random() < 0.5
        }
    if kind == "array":
        return [payload(schema["items"], chance) for _ in range(chance.randrange(1, 4))]
    if kind == "integer":
        return chance.randrange(schema["minimum"], schema["maximum"] + 1)
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "string":
        return " ".join(chance.choices(_WORDS, k=chance.randrange(1, 4)))
    raise PipelineError(f"no payload is made for schemas of type {kind!r}")


def broken_payload(schema: Schema, chance: Random) -> Any:
    """A value that breaks a schema of an object: a member is missing, or is something else."""
    value = payload(schema, chance)
    name = chance.choice(schema["required"])
    turn = chance.randrange(3)
    if turn == 0:
        return {key: member for key, member in value.items() if key != name}
    if turn == 1:
        return {**value, name: [["unexpected"]]}
    return None


def _releases(manifests: list[dict[str, Any]]) -> tuple[Release, ...]:
    releases: list[Release] = []
    for manifest in manifests:
        before = releases[-1] if releases else None
        releases.append(
            Release(
                manifest,
                digest(manifest),
                compare(before.manifest, manifest).classification if before else None,
                before.digest if before else None,
            )
        )
    return tuple(releases)


def _object(required: dict[str, Schema], **optional: Schema) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": sorted(required),
    }


_TEXT: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_FLAG: Final[Schema] = {"type": "boolean"}


def _graph(step: int) -> dict[str, Any]:
    """Grows by an optional member, then asks for more than it did."""
    contract = Contract("graph@v1", display_name="Graph", description="Who knows whom.")
    user = {"id": _TEXT, "name": _TEXT, "age": {**_NUMBER, "maximum": 120}}
    more: dict[str, Schema] = {"nickname": _TEXT} if step else {}
    asked = {"id": _TEXT, "purpose": _TEXT} if step == 2 else {"id": _TEXT}
    contract.schema("FindUser", _object(asked))
    contract.schema("User", _object(user, **more))
    contract.schema("Friends", _object({"users": {"type": "array", "items": _TEXT}}))
    contract.rpc("User.Find", "FindUser", "User")
    contract.rpc("User.Friends", "FindUser", "Friends")
    contract.event("User.Changed", "User")
    return contract.manifest()


def _orders(step: int) -> dict[str, Any]:
    """Gets a feed, then a state more that an order can be in."""
    contract = Contract("orders@v1", display_name="Orders", description="What is bought.")
    states = ["placed", "packed", "sent", *(["returned"] if step == 2 else [])]
    line = _object({"article": _TEXT, "pieces": {**_NUMBER, "minimum": 1, "maximum": 99}})
    contract.schema("Order", _object({"lines": {"type": "array", "items": line}}, gift=_FLAG))
    contract.schema("Progress", _object({"state": {"enum": states}}, note=_TEXT))
    contract.schema("Receipt", _object({"number": _NUMBER, "cents": _NUMBER}))
    contract.schema("Hurry", _object({"reason": _TEXT}))
    signals = {"hurry": "Hurry"}
    contract.operation("Order.Place", "Order", "Receipt", progress="Progress", signals=signals)
    contract.job("pack", "Order", "Receipt")
    if step:
        contract.schema("Watch", _object({"number": _NUMBER}))
        contract.feed("Order.Watch", "Watch", "Progress")
    return contract.manifest()


def _weather(step: int) -> dict[str, Any]:
    """Loses a member, which its readers may miss."""
    contract = Contract("weather@v1", display_name="Weather", description="What is outside.")
    report = {"place": _TEXT, "degrees": {**_NUMBER, "maximum": 45}}
    more: dict[str, Schema] = {"wind": _NUMBER} if step < 2 else {}
    contract.schema("Report", _object({**report, **more} if step == 0 else report, **more))
    contract.schema("Place", _object({"place": _TEXT}, days={**_NUMBER, "maximum": 14}))
    contract.event("Report.Made", "Report")
    contract.rpc("Report.Get", "Place", "Report")
    return contract.manifest()


def _shop(step: int) -> dict[str, Any]:
    """An app that uses the others, a little more each time."""
    contract = Contract("shop@v1", display_name="Shop", description="Sells things.", kind="app")
    contract.uses("graph", "graph@v1", rpc=["User.Find", "User.Friends"][: 1 + step])
    contract.uses("orders", "orders@v1", operations=["Order.Place"])
    if step == 2:
        contract.uses("weather", "weather@v1", subscribe=["Report.Made"], optional=True)
    return contract.manifest()
