"""Known answers that others computed: we must give the same."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from accord.kernel import canonical, signing, tokens

Vectors = Callable[[str], Any]

# A strict parser refuses what readers resolve differently, though the grammar allows it.
STRICTER_THAN_THE_GRAMMAR = {
    "y_object_duplicated_key.json": "duplicate member",
    "y_object_duplicated_key_and_value.json": "duplicate member",
}


def test_jcs(vectors: Vectors) -> None:
    cases = vectors("canonical/jcs.json")["cases"]
    assert cases
    for case in cases:
        assert canonical.encode(canonical.decode(case["input"])).decode() == case["output"], case[
            "name"
        ]


def test_parsing(vectors: Vectors) -> None:
    cases = vectors("canonical/parsing.json")["cases"]
    wrong = []
    for case in cases:
        try:
            canonical.decode(base64.b64decode(case["base64"]))
            verdict = "accept"
        except canonical.CanonicalError as error:
            assert error.position is not None, case["name"]
            verdict = "reject"
        if case["expect"] not in ("either", verdict):
            wrong.append(case["name"])
    assert sorted(wrong) == sorted(STRICTER_THAN_THE_GRAMMAR)


def test_wycheproof(vectors: Vectors) -> None:
    count = 0
    for group in vectors("ed25519/wycheproof.json")["testGroups"]:
        public = bytes.fromhex(group["publicKey"]["pk"])
        for case in group["tests"]:
            valid = signing.verify_bytes(
                public, bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
            )
            assert valid == (case["result"] == "valid"), case
            count += 1
    assert count == vectors("ed25519/wycheproof.json")["numberOfTests"]


def test_blake3(vectors: Vectors) -> None:
    for case in vectors("blake3/vectors.json")["cases"]:
        data = bytes(index % 251 for index in range(case["input_len"]))
        assert str(canonical.blake3(data)) == f"blake3:{case['hash']}"


def test_community_signing(vectors: Vectors) -> None:
    answers = vectors("community/sign_verify.json")
    key = signing.SigningKey.from_seed(bytes.fromhex(answers["seed_hex"]))
    other = signing.SigningKey.from_seed(bytes.fromhex(answers["seed2_hex"]))
    assert key.public.hex() == answers["public_key_hex"]
    assert key.id == answers["node_id_full"]
    assert other.id == answers["node_id2_full"]
    for case in answers["cases"]:
        assert signing.signed_bytes(case["payload"]).decode() == case["canonical_without_signature"]
        assert signing.sign(case["payload"], key) == case["signed"]
        assert signing.verify(case["signed"], key.id)
        assert not signing.verify(case["signed"], other.id)


def test_upgrade_tokens(vectors: Vectors) -> None:
    for case in vectors("relay/upgrade_tokens.json")["cases"]:
        if case["op"] == "make":
            made = tokens.make(case["payload"], case["secret"], case["now"], case["ttl_seconds"])
            assert made == case["token"]
        else:
            assert tokens.verify(case["token"], case["secrets"], case["now"]) == case["payload"], (
                case
            )


def test_contract_canonical_json(vectors: Vectors) -> None:
    cases = vectors("contracts/canonical-json.json")
    refused = []
    for case in cases:
        try:
            text = canonical.encode(case["input"])
        except canonical.CanonicalError:
            refused.append(case["input"])
            continue
        assert text.decode() == case["canonical"]
        assert str(canonical.sha256(text)) == case["digest"]
        assert canonical.decode(text) == case["input"]
    assert refused == ["\ud800"], "half a surrogate pair is the one value that we refuse"


@pytest.mark.parametrize("name", ["canonical/jcs.json", "contracts/canonical-json.json"])
def test_the_standard_library_reads_what_we_write(vectors: Vectors, name: str) -> None:
    answers = vectors(name)
    cases = answers["cases"] if isinstance(answers, dict) else answers
    for text in (str(case.get("output", case.get("canonical"))) for case in cases):
        if "\\ud800" not in text:
            assert canonical.encode(json.loads(text)).decode() == text
