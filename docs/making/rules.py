"""The pages of rules: the gate's layers, the law of contracts, and what error codes mean."""

import ast
import inspect
import textwrap
from collections.abc import Iterable
from enum import Enum

from docs.making.markdown import code, join, meaning, sentence, table

import accord.authority.rules.errors
import accord.community.errors
import accord.fabric.rules.errors
import accord.relay.errors
from accord.contracts import permissions
from accord.contracts.compatibility import RULES as COMPARING
from accord.contracts.effective import RULES as UNITING
from accord.contracts.manifest import RULES as VALIDATING
from accord.fabric import FabricError
from accord.pipeline.rules import RULES as CHECKING
from accord.relay.rules import ERROR_RULE, GATE_RULES, Layer


def gate() -> str:
    """The page of the gate: every layer, and what it can say."""
    about = member_docs(Layer)
    parts = []
    for layer in Layer:
        rows = [
            (code(each.rule), "yes" if each.passed else "no", sentence(each.sentence))
            for each in GATE_RULES.values()
            if each.layer is layer
        ]
        told = meaning(about.get(layer.name), f"the layer {layer.value}")
        parts.append(join([f"## {layer.value}", told, table(("rule", "passes", "reason"), rows)]))
    failed = f"A layer that fails by itself says no by the rule {code(ERROR_RULE)}."
    return join([*parts, "## When a layer fails", failed])


def contracts() -> str:
    """The page of the law of contracts."""
    return join(
        [
            "## Of validity",
            _purposes((each.id, each.category, each.purpose) for each in VALIDATING),
            "## Of compatibility",
            _purposes(
                (each.id, f"{each.category}, from `{each.level}`", each.purpose)
                for each in COMPARING
            ),
            "## Of what stands together",
            _purposes((each.id, each.category, each.purpose) for each in UNITING),
            "## Of permissions",
            _permissions(),
        ]
    )


def checks() -> str:
    """The rules by which records of the pipeline stand."""
    rows = [
        (code(rule), sentence(meaning(text, f"the rule {rule}"))) for rule, text in CHECKING.items()
    ]
    return table(("rule", "asks"), rows)


def codes() -> str:
    """The page of error codes, and of the errors that travel on the fabric."""
    return join(
        [
            "## Community",
            _codes(accord.community.errors.Code),
            "## Relay",
            _codes(accord.relay.errors.Code),
            "## Authority",
            _codes(accord.authority.rules.errors.Code),
            "## Fabric",
            _fabric(),
        ]
    )


def member_docs(kind: type[Enum]) -> dict[str, str]:
    """What is written below each member of an enumeration, by the member's name."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, str] = {}
    name = ""
    for statement in getattr(body, "body", ()):
        match statement:
            case ast.Assign(targets=[ast.Name(id=assigned)]):
                name = assigned
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                found[name] = text
                name = ""
            case _:
                name = ""
    return found


def _purposes(rules: Iterable[tuple[str, str, str]]) -> str:
    rows = [
        (code(rule), category, meaning(purpose, f"the rule {rule}"))
        for rule, category, purpose in rules
    ]
    return table(("rule", "category", "asks"), rows)


def _permissions() -> str:
    listed = [*permissions.USED, *permissions.OWNED]
    rows = [
        (
            code(each.id),
            each.permission,
            each.section,
            "whoever uses it" if each.selector else "its owner",
            meaning(each.purpose, f"the rule {each.id}"),
        )
        for each in listed
    ]
    return table(("rule", "gives", "on", "to", "for"), rows)


def _codes(kind: type[Enum]) -> str:
    about = member_docs(kind)
    rows = [
        (
            code(each.value),
            str(getattr(each, "status")),  # noqa: B009 - three enumerations have it, and share no type
            meaning(about.get(each.name), f"the code {each.value} of {kind.__module__}"),
        )
        for each in kind
    ]
    return table(("code", "HTTP", "means"), rows)


def _fabric() -> str:
    kinds: list[type[FabricError]] = [FabricError, *_below(FabricError)]
    rows = [(_wire_type(each), _summary(each)) for each in kinds]
    return table(("type on the wire", "means"), rows)


def _below(kind: type[FabricError]) -> Iterable[type[FabricError]]:
    for each in kind.__subclasses__():
        if each.__module__ == accord.fabric.rules.errors.__name__:
            yield each
        yield from _below(each)


def _wire_type(kind: type[FabricError]) -> str:
    return code(kind.type) if "type" in vars(kind) else "any other"


def _summary(kind: type[FabricError]) -> str:
    return meaning((kind.__doc__ or "").partition("\n\n")[0], kind.__name__)
