"""The files of generated TypeScript packages, and the types as a compiler sees them."""

from pathlib import Path
from typing import Any

import pytest
from tests.fabric.typescript_build import Workshop

from accord.contracts import render_sdk
from accord.contracts.export.typescript import render_typescript, typescript_name


def manifest(schemas: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """A contract with these schemas; all are kept, since it exports them."""
    declared = schemas or {}
    return {
        "format": "trellis.contract.v1",
        "id": "odd.things@v1",
        "displayName": "Odd",
        "description": "Odd things.",
        "kind": "service",
        "schemas": declared,
        "exports": {"schemas": sorted(declared)},
        **sections,
    }


def rendered(file: str, contract: dict[str, Any]) -> str:
    return render_typescript(contract)[f"{typescript_name(contract)}/src/{file}.ts"]


def rendered_type(schema: Any) -> str:
    """What is written for one schema, without its comment."""
    text = rendered("types", manifest({"Thing": schema}))
    return text.partition("export ")[2].strip()


def test_members_are_readonly_and_optional_unless_they_are_required() -> None:
    properties = {"name": {"type": "string"}, "count": {"type": "integer"}}
    written = rendered_type({"type": "object", "properties": properties, "required": ["name"]})
    assert written == ("interface Thing {\n  readonly count?: number;\n  readonly name: string;\n}")


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["integer", "null"]}, "number | null"),
        ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "string | boolean"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "number"),
        ({"oneOf": [{"type": "string"}, {}]}, "unknown"),
        ({"enum": ["red", 'a "b"\n', 7, True, None]}, '"red" | "a \\"b\\"\\n" | 7 | true | null'),
        ({"const": 1.5}, "1.5"),
        ({"const": {"a": 1}}, "unknown"),
        (True, "unknown"),
        (False, "never"),
        ({"not": {}}, "unknown"),
        ({"type": "array", "items": {"type": "string"}}, "ReadonlyArray<string>"),
        ({"type": "array", "items": {"enum": [1, 2]}}, "ReadonlyArray<1 | 2>"),
        ({"type": "array"}, "ReadonlyArray<unknown>"),
        (
            {
                "items": [{"type": "string"}, {"type": "null"}],
                "additionalItems": {"type": "boolean"},
            },
            "ReadonlyArray<string | null | boolean>",
        ),
        ({"type": "object"}, "Readonly<Record<string, unknown>>"),
        (
            {"type": "object", "additionalProperties": {"type": "number"}},
            "Readonly<Record<string, number>>",
        ),
    ],
)
def test_what_is_no_object_with_members_is_an_alias(schema: Any, written: str) -> None:
    assert rendered_type(schema) == f"type Thing = {written};"


def test_a_union_of_objects_keeps_what_tells_them_apart() -> None:
    def shape(kind: str, member: str) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, member: {"type": "number"}}
        return {"type": "object", "properties": properties, "required": ["kind"]}

    written = rendered_type({"oneOf": [shape("circle", "r"), shape("square", "a")]})
    assert " ".join(written.split()) == (
        'type Thing = { readonly kind: "circle"; readonly r?: number; } '
        '| { readonly a?: number; readonly kind: "square"; };'
    )


def test_what_must_hold_at_once_is_one_object() -> None:
    left = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "c"]}
    right = {"properties": {"b": {"type": "null"}}}
    written = " ".join(rendered_type({"allOf": [left, right]}).split())
    assert written == (
        "interface Thing { readonly a: string; readonly b?: null; readonly c: unknown; }"
    )


def test_objects_in_objects_are_written_in_place() -> None:
    # Contracts have no references, so no schema holds itself; `authoring` refuses such models.
    tree: dict[str, Any] = {"type": "object", "properties": {"leaf": {"type": "null"}}}
    for _ in range(2):
        tree = {"type": "object", "properties": {"inner": {"type": "array", "items": tree}}}
    assert rendered_type(tree) == (
        "interface Thing {\n"
        "  readonly inner?: ReadonlyArray<{\n"
        "    readonly inner?: ReadonlyArray<{\n"
        "      readonly leaf?: null;\n"
        "    }>;\n"
        "  }>;\n"
        "}"
    )


def test_names_that_typescript_or_the_package_has_are_not_taken_again() -> None:
    words = ("Promise", "Record", "Readonly", "ReadonlyArray", "string", "class", "await", "a-b")
    schemas = {word: {"type": "string"} for word in (*words, "a.b", "1st")}
    text = rendered("types", manifest(schemas))
    names = {line.split()[2] for line in text.splitlines() if line.startswith("export type")}
    assert names == {
        *("Promise_2", "Record_2", "Readonly_2", "ReadonlyArray_2", "String_2"),
        *("Class", "Await", "AB", "AB_2", "T1St"),
    }
    # The package exports a client of its own, and its errors stand on RemoteError.
    kinds = ("Client", "RemoteError", "Error", "Gone")
    errors = rendered("errors", manifest(errors={kind: {"type": kind} for kind in kinds}))
    for kind in kinds:
        name = kind if kind == "Gone" else f"{kind}_2"
        assert f"export class {name} extends RemoteError {{" in errors
        assert f'  static override readonly type = "{kind}";' in errors
        assert f"  {kind}: {name},\n" in errors


def test_members_of_any_name_are_written() -> None:
    odd = ("a b", "__proto__", "class", "ä", 'a"b', "", "1", "*/")
    properties = {name: {"type": "null"} for name in odd}
    written = rendered_type({"type": "object", "properties": properties})
    lines = sorted(line.strip().removeprefix("readonly ") for line in written.splitlines()[1:-1])
    assert lines == sorted(
        (
            *('["a b"]?: null;', '["__proto__"]?: null;', "class?: null;", '["\\u00e4"]?: null;'),
            *('["a\\"b"]?: null;', '[""]?: null;', '["1"]?: null;', '["*/"]?: null;'),
        )
    )


def test_methods_of_surfaces_that_read_alike_have_names_of_their_own() -> None:
    schemas = {"Thing": {"type": "string"}}
    refers = {"input": {"schema": "Thing"}, "output": {"schema": "Thing"}, "version": "v1"}
    names = ("Odd.Delete", "Odd.delete", "odd-delete")
    calls = {name: {**refers, "subject": f"rpc.v1.{n}"} for n, name in enumerate(names)}
    text = rendered("client", manifest(schemas, rpc=calls))
    methods = [line.strip() for line in text.splitlines() if line.startswith("  callOdd")]
    assert len(methods) == len(set(methods)) == 3
    for name in names:
        assert f'this.wire.call("{name}", payload, options)' in text


def test_what_the_author_wrote_is_kept_and_cannot_end_a_comment() -> None:
    schema = {
        "type": "object",
        "description": "A thing */ of\nmany lines.",
        "properties": {"name": {"type": "string", "description": "What it is called."}},
    }
    refers = {"input": {"schema": "Thing"}, "output": {"schema": "Thing"}, "version": "v1"}
    docs = {"summary": "Finds it.", "markdown": "Looks *everywhere*.\n\n- here */\n- there"}
    contract = manifest(
        {"Thing": schema}, rpc={"Find": {**refers, "subject": "rpc.v1.Find", "docs": docs}}
    )
    types, client = rendered("types", contract), rendered("client", contract)
    assert "/**\n * A thing * / of\n * many lines.\n */\nexport interface Thing {" in types
    assert "  /** What it is called. */\n  readonly name?: string;" in types
    for line in ("Call Find.", "Finds it.", "Looks *everywhere*.", "- here * /", "- there"):
        assert f"   * {line}\n" in client
    assert client.count("*/") == client.count("/**")


def test_both_languages_have_a_package_of_one_contract() -> None:
    contract = manifest({"Thing": {"type": "string"}})
    assert {path.split("/")[0] for path in render_typescript(contract)} == {"odd-things-v1"}
    assert {path.split("/")[0] for path in render_sdk(contract)} == {"odd_things_v1"}


PROGRAM = """
import { type types, Client_2, errors } from "odd-things-v1";

const least: types.Item = { name: "saw" };
const most: types.Item = { name: "saw", count: 2, color: "red", tags: { a: [1] } };
// @ts-expect-error the name is required
const nameless: types.Item = { count: 2 };
// @ts-expect-error no such color
const green: types.Item = { name: "saw", color: "green" };
// @ts-expect-error what was read is not changed
least.name = "hammer";
// @ts-expect-error a member that is left out is left out, and not undefined
const vague: types.Item = { name: "saw", count: undefined };

function area(shape: types.Shape): number {
  return shape.kind === "circle" ? shape.r * shape.r * 3 : shape.a * shape.a;
}

console.log(area({ kind: "square", a: 2 }), most, nameless, green, vague);
console.log(errors.Client === Client_2);
"""


@pytest.mark.slow
def test_the_types_say_what_the_schemas_say(npm: Path, tmp_path: Path) -> None:
    item = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "color": {"enum": ["red", "blue"]},
            "tags": {"type": "object", "additionalProperties": {"items": {"type": "number"}}},
        },
        "required": ["name"],
    }
    shapes = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, side: {"type": "number"}},
            "required": ["kind", side],
        }
        for kind, side in (("circle", "r"), ("square", "a"))
    ]
    # Names that the generated code would itself use.
    taken = {name: {"type": "object", "properties": {"a": {}}} for name in ("Readonly", "Record")}
    schemas = {"Item": item, "Shape": {"oneOf": shapes}, **taken}
    contract = manifest(schemas, errors={"Client": {"type": "Client"}})
    workshop = Workshop(tmp_path / "workshop", npm)
    workshop.add([contract])
    (workshop.folder / "program.ts").write_text(PROGRAM)
    workshop.programs()
    assert workshop.node("built/program.js").splitlines()[-1] == "true"
