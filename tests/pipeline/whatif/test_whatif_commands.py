"""`accord pipeline whatif` and `report`: what is refused before Spark starts, and what is said."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app, pipeline_report
from accord.kernel.errors import AccordError
from accord.pipeline.text import SampleRecord
from accord.pipeline.whatif import CallFailure, ContractWhatIf, SurfaceReplay
from accord.pipeline.whatif import contract as replaying

pytestmark = pytest.mark.slow

MANIFEST = {
    "format": "trellis.contract.v1",
    "id": "billing@v1",
    "displayName": "Billing",
    "description": "Invoices.",
    "kind": "service",
}
FOUND = ContractWhatIf(
    "billing@v1",
    "d" * 43,
    None,
    None,
    (SurfaceReplay("rpc", "Billing.Pay", "input", kept=1, failed=2),),
    (
        CallFailure(
            *("rpc", "Billing.Pay", "input", "billing-eu", "shop", None, "schema.type", "/a"),
            "not of type string",
            2,
            (SampleRecord(0, "c1", '{"a":1}'), SampleRecord(1, "c2")),
        ),
    ),
    1,
)


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert isinstance(result.exception, AccordError), result.output
    return str(result.exception)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    file = tmp_path / "billing.json"
    file.write_text(json.dumps(MANIFEST))
    return str(file)


def test_what_cannot_be_asked_is_refused_before_spark_starts(tmp_path: Path, manifest: str) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    other = tmp_path / "other.json"
    other.write_text('{"/relay/policy": 1}')
    nowhere = str(tmp_path / "nowhere.json")
    assert "cannot be read" in refused("whatif", "contract", nowhere)
    assert str(broken) in refused("whatif", "policy", str(broken))
    assert "not valid" in refused("whatif", "contract", str(other))
    assert "expected a list" in refused("whatif", "policy", str(other))
    empty = str(tmp_path / "empty")
    for words in (
        ("whatif", "contract", manifest),
        ("whatif", "revoke", "kitchen"),
        ("report", "--out", str(tmp_path / "r.html")),
    ):
        assert "published" in refused(*words, "--folder", empty)
    assert not (tmp_path / "r.html").exists()


def test_both_a_master_and_a_remote_are_one_too_many(manifest: str) -> None:
    words = ["whatif", "contract", manifest, "--master", "local", "--remote", "sc://x"]
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert result.exit_code == 2


def test_a_contract_that_would_have_failed_somebody_ends_with_one(
    monkeypatch: pytest.MonkeyPatch, manifest: str
) -> None:
    @contextmanager
    def published(*_given: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(pipeline_report, "published", published)
    monkeypatch.setattr(replaying, "whatif_contract", lambda *_given: FOUND)
    words = ["whatif", "contract", manifest, "--folder", "."]
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert result.exit_code == 1
    assert "2 calls of 3 that it touches would have failed (66.7 %), of 1 caller." in result.output
    assert '{"a":1}' in result.output
    told = CliRunner().invoke(app, ["pipeline", *words, "--json"])
    assert told.exit_code == 1
    [failure] = json.loads(told.output)["failures"]
    assert failure["caller"] == "shop"
    assert failure["samples"][0]["payload"] == {"a": 1}
    assert "payload" not in failure["samples"][1]


@pytest.mark.parametrize(
    "verb", [["whatif", "contract"], ["whatif", "policy"], ["whatif", "revoke"]]
)
def test_every_verb_has_an_example(verb: list[str]) -> None:
    assert (
        "Example: accord pipeline" in CliRunner().invoke(app, ["pipeline", *verb, "--help"]).output
    )
