"""Proofs, subjects and canonical JSON: the vectors that all client libraries share."""

import json

from tests.conformance.client_vectors import FILE, answers


def test_this_implementation_gives_the_answers_of_the_vectors() -> None:
    vectors = json.loads(FILE.read_bytes())
    assert answers(vectors["given"]) == vectors["answers"]
