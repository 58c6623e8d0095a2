"""Reviews for other programs: SARIF, GitHub and GitLab, with the lines of the file."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import jsonschema_rs
import pytest
from filelock import FileLock

from accord.contracts import compare, digest
from accord.contracts.compatibility import RULES, KnownVersion, Policy, PolicyException, review
from accord.contracts.export.annotations import ReviewedFile, github, gitlab, sarif
from accord.contracts.export.positions import Position, nearest, positions
from accord.testing import HarnessError, nodejs

Contract = Callable[..., dict[str, Any]]
# The schema of OASIS, as this package of npm has it.
SCHEMAS = b'{"private": true, "dependencies": {"schemastore": "0.2.2"}}'


@pytest.fixture
def changed(contract: Contract) -> ReviewedFile:
    """A removed RPC, a narrower payload, a removed queue, and an exception for the last."""
    old, new = contract(), contract({"events.event": {"type": "object", "required": ["a:b,c\n%"]}})
    del new["rpc"]["Find"], new["resources"]["kv"]
    excepted = PolicyException(
        "resource.removed", "graph@v1", "graph team", "it is empty", date(2026, 1, 1)
    )
    version = KnownVersion("version 1", digest(old), old)
    found = review(new, digest(new), [(version, compare(old, new))], Policy("full", (excepted,)))
    return ReviewedFile(found, "contracts/my graph.json", json.dumps(new, indent=2))


@pytest.mark.parametrize("indent", [None, 2])
def test_every_member_of_a_document_has_its_place(contract: Contract, indent: int | None) -> None:
    value = {"a/~": [1, {"": "x]}"}, [], {}], 'q"': None, **contract()}
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    lines = text.split("\n")
    found = positions(text)
    for place, (line, column) in found.items():
        name = place.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
        at = lines[line - 1][column - 1 :]
        if not name.isdigit() and place:
            assert at.startswith(json.dumps(name)), place
    assert {"", "/a~1~0/1/", '/q"', "/rpc/Find/input/schema"} <= found.keys()


def test_what_is_gone_is_shown_at_the_closest_part_that_is_there() -> None:
    found = positions('{\n  "rpc": {\n    "Find": 1}}')
    assert nearest(found, "/rpc/Find") == Position(3, 5)
    assert nearest(found, "/rpc/Gone/input") == Position(2, 3)
    assert nearest(found, "/feeds/Watch") == Position(1, 1)
    assert nearest(positions(""), "/x") == Position(1, 1)


def test_sarif_names_rules_places_and_suppressions(changed: ReviewedFile) -> None:
    (run,) = sarif([changed], "1.0")["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [each["id"] for each in rules] == [rule.id for rule in RULES]
    by_rule = {each["ruleId"]: each for each in run["results"]}
    for each in run["results"]:
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
    removed = by_rule["surface.removed"]
    assert removed["level"] == "error"
    place = removed["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "contracts/my%20graph.json"
    line = changed.text.split("\n")[place["region"]["startLine"] - 1]
    assert line.startswith('  "rpc":')
    assert "suppressions" not in removed
    (suppression,) = by_rule["resource.removed"]["suppressions"]
    assert suppression["justification"].startswith("excepted until 2026-01-01 by graph team")


def test_github_gets_one_escaped_line_for_each_finding(changed: ReviewedFile) -> None:
    lines = list(github([changed]))
    assert all(line.count("\n") == 0 for line in lines)
    removed = next(line for line in lines if "title=surface.removed" in line)
    assert removed.startswith("::error file=contracts/my graph.json,line=")
    assert removed.endswith("::/rpc/Find: the RPC Find is gone (with version 1)")
    excepted = next(line for line in lines if "title=resource.removed" in line)
    assert excepted.startswith("::notice ")
    hostile = next(line for line in lines if "title=payload.refused" in line)
    assert "%25" in hostile.partition("::/")[2]


def test_gitlab_gets_a_code_quality_report(changed: ReviewedFile) -> None:
    report = gitlab([changed])
    removed = next(each for each in report if each["check_name"] == "surface.removed")
    assert removed["severity"] == "critical"
    assert removed["location"]["path"] == "contracts/my graph.json"
    assert removed["location"]["lines"]["begin"] > 1
    assert len({each["fingerprint"] for each in report}) == len(report)
    moved = ReviewedFile(changed.review, changed.path, "\n" * 9 + changed.text)
    assert [each["fingerprint"] for each in gitlab([moved])] == [
        each["fingerprint"] for each in report
    ]


@pytest.fixture(scope="module")
def sarif_schema(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> jsonschema_rs.Draft7Validator:
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    home = cache.mkdir("accord-schemas") if cache else tmp_path_factory.mktemp("schemas")
    try:
        with FileLock(home.with_suffix(".lock")):
            modules = nodejs.install_packages(SCHEMAS, home)
    except HarnessError as error:
        pytest.skip(f"no schemas: {error}")
    text = (modules / "schemastore" / "schemas" / "json" / "sarif-2.1.0.json").read_text()
    # One pattern of the schema, for a language that we do not name, has a bracket too many.
    return jsonschema_rs.Draft7Validator(json.loads(text.replace("{2}]?$", "{2}$")))


@pytest.mark.slow
def test_sarif_is_valid_by_the_schema_of_its_standard(
    changed: ReviewedFile, sarif_schema: jsonschema_rs.Draft7Validator
) -> None:
    for document in (sarif([changed], "1.0"), sarif([], "1.0"), sarif([changed, changed], "1.0")):
        assert [error.message for error in sarif_schema.iter_errors(document)] == []
    broken = sarif([changed], "1.0")
    broken["runs"][0]["results"][0]["level"] = "fatal"
    assert not sarif_schema.is_valid(broken)
    del broken["runs"][0]["tool"]
    assert not sarif_schema.is_valid(broken)
