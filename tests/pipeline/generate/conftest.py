"""Judges a generated history by the plain functions that Spark's workers call too."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from accord.community.rules import Event, fold_events, parse_event
from accord.kernel import canonical
from accord.pipeline.rules import COMMUNITY_EVENTS, CONTRACTS_HISTORY, Manifests, check, redaction
from accord.storage import JournalEntry


@dataclass
class Judged:
    """What the checks and the fold say of records.

    Attributes:
        refused: The rule of every record that the checks refuse, by stream, source and number.
        digests: The digest of every record that the checks accept, by the same.
        terms: Landed, accepted, quarantined and duplicates of each stream.
        fallen: The rule of every accepted event that the fold does not let stand, by digest.
    """

    refused: dict[tuple[str, str, int], str] = field(default_factory=dict)
    digests: dict[tuple[str, str, int], str] = field(default_factory=dict)
    terms: Counter[tuple[str, str]] = field(default_factory=Counter)
    fallen: dict[str, str] = field(default_factory=dict)


def _manifests(records: Iterable[JournalEntry]) -> Manifests:
    found = {}
    for record in records:
        if record.stream == CONTRACTS_HISTORY and check(*_named(record)).rule is None:
            told = canonical.decode(record.body)
            if told["manifest"] is not None:
                found[told["digest"]] = canonical.encode(told["manifest"])
    return Manifests(found)


def _named(record: JournalEntry) -> tuple[str, str, str]:
    return record.stream, record.id, record.body


@pytest.fixture
def judge() -> Callable[[list[JournalEntry]], Judged]:
    def judged(records: list[JournalEntry]) -> Judged:
        result = Judged()
        manifests = _manifests(records)
        seen: set[tuple[str, str]] = set()
        events: dict[str, list[Event]] = {}
        for record in records:
            checked = check(*_named(record), manifests)
            result.terms[record.stream, "landed"] += 1
            if checked.rule is not None:
                result.terms[record.stream, "quarantined"] += 1
                result.refused[record.stream, record.source, record.seq] = checked.rule
                continue
            result.digests[record.stream, record.source, record.seq] = checked.digest
            is_new = (record.stream, checked.digest) not in seen
            seen.add((record.stream, checked.digest))
            result.terms[record.stream, "accepted" if is_new else "duplicates"] += 1
            if record.stream == COMMUNITY_EVENTS:
                event = redaction.restore_event(record.body) or parse_event(record.body.encode())
                events.setdefault(event.community_id, []).append(event)
        for community, of_community in events.items():
            for digest, verdict in fold_events(of_community, community).verdicts.items():
                if verdict.rule != "accepted":
                    result.fallen[digest.hex()] = verdict.rule
        return result

    return judged
