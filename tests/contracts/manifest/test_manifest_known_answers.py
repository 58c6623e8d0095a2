import json
from collections.abc import Callable
from typing import Any

import pytest

from accord.contracts import ContractError, digest, normalize, project, validate
from accord.kernel import canonical
from accord.kernel.canonical import sha256

Vectors = Callable[[str], Any]

# What existing implementations accept and the specification does not.
STRICTER = {
    "op signal missing schema": (
        "reference.unknown-schema",
        "/operations/O/signals/s/input/schema",
    ),
    "id no version": ("manifest.shape", "/id"),
    "two rpc same subject": ("subject.duplicate", "/rpc/Y/subject"),
}


def test_every_known_digest_is_ours(vectors: Vectors) -> None:
    for case in vectors("contracts/digests.json")["cases"]:
        assert validate(case["manifest"]) == []
        assert digest(case["manifest"]) == case["digest"]


def test_every_known_verdict_is_ours_but_where_we_are_stricter(vectors: Vectors) -> None:
    cases = vectors("contracts/manifest-validate.json")
    assert {case["name"] for case in cases} >= STRICTER.keys()
    for case in cases:
        findings = validate(case["input"])
        if case["name"] in STRICTER:
            assert [(finding.rule, finding.pointer) for finding in findings] == [
                STRICTER[case["name"]]
            ]
        else:
            assert (findings == []) == case["ok"], (case["name"], findings)


def test_normal_form_and_projection_are_as_known(vectors: Vectors) -> None:
    for case in vectors("contracts/manifest-validate.json"):
        if not case["ok"] or case["name"] == "id no version":
            continue
        assert normalize(case["input"]) == case["normalized"], case["name"]
        projection = canonical.encode(project(case["input"])).decode()
        assert projection == case["canonicalProjection"], case["name"]
        assert str(sha256(projection.encode())) == case["digest"]
        if case["name"] not in STRICTER:
            assert digest(case["input"]) == digest(case["normalized"]) == case["digest"]


def test_canonical_texts_and_their_digests_are_as_known(vectors: Vectors) -> None:
    for case in vectors("contracts/canonical-json.json"):
        if case["input"] == "\ud800":  # half a character has no UTF-8, so it is refused
            with pytest.raises(canonical.CanonicalError):
                canonical.encode(case["input"])
            continue
        # This file writes 2^53 as an integer; our reader makes it the double that it is.
        value = canonical.decode(json.dumps(case["input"]))
        assert canonical.encode(value).decode() == case["canonical"]
        assert str(sha256(canonical.encode(value))) == case["digest"]


def test_a_normal_form_shares_nothing_that_could_change_its_source(vectors: Vectors) -> None:
    for case in vectors("contracts/digests.json")["cases"]:
        before = json.dumps(case["manifest"])
        normalize(case["manifest"])
        project(case["manifest"])
        assert json.dumps(case["manifest"]) == before


def test_the_digest_of_an_invalid_manifest_is_refused_with_the_findings() -> None:
    with pytest.raises(ContractError) as caught:
        digest({"format": "trellis.contract.v1"})
    assert [finding.rule for finding in caught.value.findings] == ["manifest.shape"] * 4
    assert "and 3 more" in str(caught.value)


@pytest.mark.parametrize("form", [normalize, project])
@pytest.mark.parametrize("value", [None, [], {}, {"rpc": 1}, {"x": float("nan")}, {1, 2}])
def test_forms_of_what_has_not_the_right_shape_are_refused(
    form: Callable[[Any], Any], value: Any
) -> None:
    with pytest.raises(ContractError) as caught:
        form(value)
    assert caught.value.findings
