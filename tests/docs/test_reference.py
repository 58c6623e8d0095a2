"""The reference is what the code says: pages as they would be made now, and nothing unexplained."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer
from docs.making import commands, fabric, rules, schemas, typescript
from docs.making.__main__ import differing, write
from docs.making.errors import MakingError
from docs.making.indexes import DOCS
from docs.making.markdown import code, meaning, table
from docs.making.notes import FOLDER, Notes, woven
from docs.making.pages import rendered

import accord.fabric
from accord.cli import app
from accord.station.settings import sections, tables, variable

REFERENCE = DOCS / "reference"


def text(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def test_every_made_page_is_as_the_code_has_it_now() -> None:
    assert differing() == [], "run `make docs` and commit what it writes"


def test_every_setting_is_on_the_page_with_its_variable() -> None:
    page = text("settings")
    for section, model in sections().items():
        assert f"\n## [{section}]\n" in page
        for key in model.model_fields:
            assert code(variable(section, key)) in page
        for key, inner in tables(model).items():
            below = page.partition(f"\n### [[{section}.{key}]]\n")[2].partition("\n##")[0]
            assert all(f"| {code(name)} |" in below for name in inner.model_fields), key


def test_every_command_and_every_option_is_on_a_page() -> None:
    listed = commands.commands(app)
    assert len(listed) > 100
    overview = text("cli")
    for command in listed:
        assert f"(cli/{command.page}.md#{command.anchor})" in overview
        below = text(f"cli/{command.page}").partition(f"\n## {command.name}\n")[2]
        section = below.partition("\n## ")[0]
        assert f"$ {command.words[0]}" in section or "| accord " in section, "an example"
        for taken in command.parsed.params:
            for spelled in taken.opts if taken.param_type_name == "option" else ():
                assert spelled == "--help" or code(spelled) in section, (command.name, spelled)


def test_every_name_that_the_client_library_exports_is_on_its_page() -> None:
    page = text("fabric")
    for module in (accord.fabric, *fabric.MODULES):
        told = page.partition(f"\n## {module.__name__}\n")[2].partition("\n## ")[0]
        names = module.__all__ if module is accord.fabric else fabric.MODULES[module][1]
        for name in names:
            assert f"\n### {name}\n" in told, name
            for method, it in vars(getattr(module, name)).items():
                if inspect.isfunction(it) and not method.startswith("_"):
                    assert f"\n#### {name}.{method}\n" in told, (name, method)


# What no program makes or takes apart by itself: the library hands it from one part to another.
INNER = {"Answers", "Bucket", "CallJournal", "Callers", "Finding", "JobStreams", "Schema", "Trace"}
INNER |= {"Activation", "Job", "OperationRecord", "QueueTerms", "SessionBindings", "Surface"}


def named(hint: Any) -> Iterator[str]:
    """The names of the classes of ours that an annotation consists of."""
    for one in (hint, get_origin(hint)):
        if inspect.isclass(one) and one.__module__.startswith("accord."):
            yield one.__name__
    for inner in get_args(hint):
        yield from named(inner)


def test_what_the_client_library_returns_is_on_its_page_too() -> None:
    page, found = text("fabric"), set()
    for owner in map(accord.fabric.__dict__.get, accord.fabric.__all__):
        members = vars(owner).items() if inspect.isclass(owner) else [("", owner)]
        for name, it in members:
            told = it.fget if isinstance(it, property) else it
            if inspect.isfunction(told) and not name.startswith("_"):
                found |= set(named(get_type_hints(told).get("return")))
    assert {"Run", "Session", "StateEntry", "Received"} <= found
    for name in found - INNER:
        assert f"\n### {name}\n" in page, name


TYPESCRIPT = DOCS.parent / "packages/typescript/src"


def test_every_export_of_the_npm_package_is_on_its_page() -> None:
    page = text("typescript")
    index = (TYPESCRIPT / "index.ts").read_text(encoding="utf-8")
    names = {
        each.strip().removeprefix("type ").rpartition(" as ")[2]
        for listed in re.findall(r"\{([^}]*)\}", index)
        for each in listed.split(",")
    } - {""}
    assert 'export * from "./errors.js"' in index
    errors = (TYPESCRIPT / "errors.ts").read_text(encoding="utf-8")
    names |= set(re.findall(r"^export \w+ (\w+)", errors, re.MULTILINE))
    assert {"Session", "canonicalJson", "RemoteError"} <= names
    assert names == set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    session = page.partition("\n## Session\n")[2].partition("\n## ")[0]
    for member in ("get key(): string;", "client(contract: Contract): Client;", "close(): Promise"):
        assert member in session
    assert "private" not in page
    assert "readonly id: string;" in page.partition("\n## Run\n")[2].partition("\n## ")[0]


def package(folder: Path, index: str, source: str) -> list[typescript.Export]:
    (folder / "index.ts").write_text(index)
    (folder / "one.ts").write_text(source)
    return list(typescript.exports(folder))


def test_a_declaration_is_told_without_what_implements_it(tmp_path: Path) -> None:
    source = """/** Adds. */
export async function* add<T extends { n: number }>(
  one: T,
  { two = 2 }: { two?: number } = {},
): AsyncGenerator<(n: number) => T, void, void> {
  yield () => one;
}
/** Holds. */
export class Box<T> extends Base {
  static override readonly type = "Box";
  #hidden = 1;
  constructor(
    private readonly link: Link,
    /** What is held. */
    readonly value: T,
  ) {}
  /** Open it. */
  async open(): Promise<T> {
    const inner = { value: this.value };
    return inner.value;
  }
  private shut(): void {}
}
"""
    add, box = package(tmp_path, 'export { Box, add as sum } from "./one.js";', source)[::-1]
    assert add.name == "sum"
    assert add.declaration.startswith("function sum<T extends { n: number }>(\n  one: T,")
    assert add.declaration.endswith("): AsyncGenerator<(n: number) => T, void, void>;")
    assert box.declaration.splitlines() == [
        "class Box<T> extends Base {",
        "  /** What is held. */",
        "  readonly value: T;",
        '  static readonly type = "Box";',
        "  /** Open it. */",
        "  open(): Promise<T>;",
        "}",
    ]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("export class Box {\n}\n", "one.ts: Box: it has no sentence of meaning"),
        ("/** Holds. */\nclass Box {\n}\n", "one.ts: Box: its declaration is not found"),
    ],
)
def test_an_export_that_nothing_explains_is_refused(tmp_path: Path, source: str, why: str) -> None:
    with pytest.raises(MakingError, match=why):
        package(tmp_path, 'export { Box } from "./one.js";', source)


def test_every_note_belongs_to_a_page() -> None:
    pages = rendered().keys()
    for file in FOLDER.rglob("*.md"):
        assert file.relative_to(FOLDER).as_posix() in pages


def test_a_command_or_an_option_without_a_meaning_is_refused() -> None:
    unexplained = typer.Typer()

    @unexplained.command(epilog="Example: accord do")
    def do() -> None: ...

    @unexplained.command(epilog="Example: accord other")
    def other(size: Annotated[int, typer.Option(help="How large.")] = 1, name: str = "") -> None:
        """Do something."""

    with pytest.raises(MakingError, match="accord do: it has no sentence of meaning"):
        commands.overview(unexplained)
    only = typer.Typer()
    only.command(epilog="Example: accord other")(other)
    only.command(epilog="Example: accord fine", help="Do nothing.")(do)
    with pytest.raises(MakingError, match="accord other: name: it has no sentence of meaning"):
        commands.nouns(only)


def test_an_example_is_asked_of_every_command() -> None:
    bare = typer.Typer()

    @bare.command()
    def first() -> None:
        """Do something."""

    @bare.command()
    def second() -> None:
        """Do something else."""

    with pytest.raises(MakingError, match="the example of accord first"):
        commands.nouns(bare)


def test_a_note_for_a_heading_that_is_gone_is_refused() -> None:
    notes = Notes.read("Opening.\n\n## There\n\nMore.\n")
    assert woven("page", "## There\n\nBody.", notes) == "Opening.\n\n## There\n\nMore.\n\nBody."
    with pytest.raises(MakingError, match="there is no heading 'There'"):
        woven("page", "## Elsewhere", notes)


def test_what_stands_below_a_member_of_an_enumeration_is_its_meaning() -> None:
    assert rules.member_docs(Told) == {"FIRST": "The first."}


class Told(Enum):
    FIRST = 1
    """The first."""
    SECOND = 2


def test_a_meaning_is_a_line_and_a_cell_keeps_its_bars() -> None:
    assert meaning("over\n  two lines ", "it") == "over two lines"
    assert table(("a",), [("x | y",)]) == "| a |\n| --- |\n| x \\| y |"
    assert code("a`b") == "``a`b``"


def test_a_schema_is_told_member_by_member() -> None:
    schema = {
        "type": "object",
        "properties": {
            "names": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/name"}},
            "inner": {"properties": {"size": {"type": "integer", "minimum": 1, "default": 2}}},
        },
        "required": ["names"],
    }
    told = list(schemas.members(schema, {"name": {"type": "string", "minLength": 1}}))
    assert [(each.path, each.kind, each.required) for each in told] == [
        ("names", "array of string (name), at most 3 items", True),
        ("inner", "any JSON value", False),
        ("inner.size", "integer, ≥ 1, default `2`", False),
    ]


def test_what_is_no_page_any_more_is_removed_and_the_rest_written(tmp_path: Path) -> None:
    stale = tmp_path / "reference" / "gone.md"
    stale.parent.mkdir()
    stale.write_text("old")
    written = write(tmp_path)
    assert "reference/gone.md" in written
    assert not stale.exists()
    assert differing(tmp_path) == []
