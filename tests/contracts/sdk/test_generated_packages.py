"""Generated packages as their readers, type checkers and formatters see them."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.contracts import render_sdk, validate

pytestmark = pytest.mark.slow

ODD = (
    *("class", "None", "import", "match", "type", "self", "payload", "list", "str", "Any", "types"),
    *("Client", "Service", "Transport", "Run", "TypedDict", "_", "__", "__private", "__init__"),
    *("a-b", "a.b", "a_b", "A.B", "aB", "1st", "", " ", "ä", "字", "e\u0301", "ﬁ", '"', "'", "\\"),
    *('"""', "{x}", "\n", "\t", "\x00", "\x7f", "\u2028", "\u202e", "😀", "\\N{DASH}", "%s", "#"),
    *("x" * 40, "Y" * 100, "word " * 20, "ÄÖÜ" * 20, "漢" * 45),
)
names = st.sampled_from(ODD) | st.text(max_size=50)
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-2, 2).filter(bool) | names


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(names, inner, max_size=4)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": members},
            optional={"required": st.lists(names, unique=True, max_size=3)},
        ),
        st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner}),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"items": st.lists(inner, min_size=1, max_size=3)}),
        *(
            st.fixed_dictionaries({keyword: st.lists(inner, min_size=1, max_size=3)})
            for keyword in ("anyOf", "oneOf", "allOf")
        ),
    )


schemas = st.recursive(
    st.one_of(
        st.booleans(),
        st.just({}),
        st.sampled_from(("string", "integer", "number", "null")).map(lambda name: {"type": name}),
        st.just({"type": ["string", "null", "array"]}),
        st.lists(scalars, max_size=5).map(lambda values: {"enum": values}),
        scalars.map(lambda value: {"const": value}),
    ),
    combined,
    max_leaves=8,
)


@st.composite
def odd_manifests(draw: st.DrawFn) -> dict[str, Any]:
    """Valid contracts in which every name that an author chooses is odd."""
    declared = draw(st.dictionaries(names, schemas, min_size=1, max_size=5))
    reference = st.sampled_from(sorted(declared)).map(lambda name: {"schema": name})
    declared["Ok"] = {"type": "string"}

    def surfaces(section: str, **members: st.SearchStrategy[Any]) -> dict[str, Any]:
        chosen = draw(st.lists(names.filter(bool), unique=True, max_size=4))
        return {
            name: {
                "version": "v1",
                "subject": f"{section}.v1.{number}",
                **draw(st.fixed_dictionaries(members)),
            }
            for number, name in enumerate(chosen)
        }

    signals = st.dictionaries(
        names, st.fixed_dictionaries({"input": reference}), min_size=1, max_size=3
    )
    jobs = surfaces("jobs", payload=reference, result=reference)
    kinds = draw(st.lists(names.filter(bool), unique=True, max_size=3))
    raised = st.lists(st.sampled_from(kinds), unique=True) if kinds else st.just([])
    failing = raised.map(lambda chosen: [{"type": kind} for kind in chosen])
    docs = st.fixed_dictionaries(
        {"markdown": st.lists(names, min_size=1, max_size=4).map("\n  ".join)},
        optional={"summary": names},
    )
    return {
        "format": "trellis.contract.v1",
        "id": "odd.names@v1",
        "displayName": draw(names),
        "description": draw(names),
        "kind": "service",
        "schemas": {name: schema for name, schema in declared.items() if name},
        "errors": {
            kind: {"type": kind, "docs": draw(docs), **draw(st.sampled_from(bodies))}
            for kind in kinds
            for bodies in [[{}, {"schema": draw(reference)}]]
        },
        "rpc": surfaces("rpc", input=reference, output=reference, errors=failing, docs=docs),
        "operations": surfaces(
            "operations",
            input=reference,
            output=reference,
            signals=signals,
            cancel=st.booleans(),
            errors=failing,
            docs=docs,
        ),
        "events": surfaces("events", event=reference),
        "feeds": surfaces("feeds", input=reference, event=reference),
        "jobs": {
            name: {"payload": job["payload"], "result": job["result"]} for name, job in jobs.items()
        },
        "state": {
            name: {"kind": "value", "schema": {"schema": "Ok"}}
            for name in draw(st.lists(names.filter(bool), unique=True, max_size=3))
        },
        "resources": {
            "kv": {
                name: {"purpose": draw(names), "schema": draw(reference)}
                for name in draw(st.lists(names.filter(bool), unique=True, max_size=3))
            }
        },
    }


class Shelf:
    """A folder of generated packages, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def add(self, manifest: dict[str, Any]) -> None:
        self.count += 1
        for path, text in render_sdk(manifest).items():
            file = self.folder / f"n{self.count}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    def check(self) -> None:
        """Everything type-checks strictly and is formatted; the folder is emptied."""
        assert self.count
        tool = Path(sys.executable).parent
        # Namespace folders keep the packages of one name apart.
        typed = [str(tool / "mypy"), "--strict", "--config-file=", "--cache-dir=.mypy"]
        typed += ["--namespace-packages", "--explicit-package-bases", "--python-version=3.11", "."]
        formatted = [str(tool / "ruff"), "format", "--isolated", "--no-cache", "--diff", "."]
        linted = [
            str(tool / "ruff"),
            "check",
            "--isolated",
            "--no-cache",
            "--select=F,I,E9",
            ".",
        ]
        for command in (formatted, linted, typed):
            answer = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300
            )
            assert answer.returncode == 0, (answer.stdout + answer.stderr)[-8000:]
        shutil.rmtree(self.folder)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


def test_packages_of_known_contracts_type_check_and_are_formatted(
    shelf: Shelf, vectors: Callable[[str], Any]
) -> None:
    for case in vectors("contracts/digests.json")["cases"]:
        if not validate(case["manifest"]):
            shelf.add(case["manifest"])
    assert shelf.count > 40
    shelf.check()


def draw_onto(shelf: Shelf, strategy: st.SearchStrategy[dict[str, Any]], examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy.filter(lambda manifest: not validate(manifest)))
    def draw(manifest: dict[str, Any]) -> None:
        shelf.add(manifest)

    draw()


def test_packages_of_any_contract_type_check_and_are_formatted(shelf: Shelf) -> None:
    draw_onto(shelf, manifests(), 25)
    shelf.check()


def test_packages_of_contracts_with_odd_names_type_check_and_are_formatted(shelf: Shelf) -> None:
    draw_onto(shelf, odd_manifests(), 60)
    shelf.check()


@pytest.mark.long
def test_packages_of_many_contracts_with_odd_names_type_check_and_are_formatted(
    shelf: Shelf,
) -> None:
    draw_onto(shelf, odd_manifests(), 1500)
    draw_onto(shelf, manifests(), 200)
    shelf.check()
