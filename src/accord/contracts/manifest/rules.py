"""The rules of manifest validation, as data, in the order in which their findings are listed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from accord.contracts.manifest import background, embedded, forms, surfaces
from accord.contracts.manifest.pointers import Path
from accord.contracts.manifest.view import View

Check = Callable[[View], Iterator[tuple[Path, str]]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is asked of every manifest.

    Attributes:
        id: Stable, and what a finding names.
        category: What the rule is about.
        purpose: One sentence for a person.
        check: Yields the place and the sentence of each finding.
        section: The section without which there is nothing to ask, if there is such a one.
    """

    id: str
    category: str
    purpose: str
    check: Check
    section: str | None


def _rule(identity: str, check: Check, section: str | None = None) -> Rule:
    purpose = (check.__doc__ or "").strip()
    return Rule(identity, identity.partition(".")[0], purpose, check, section)


RULES: Final = (
    _rule("manifest.plain-json", forms.plain_json),
    _rule("manifest.unsupported-member", forms.unsupported),
    _rule("manifest.shape", forms.shape),
    _rule("consumer.empty", background.empty_groups, "eventConsumers"),
    _rule("consumer.unknown-use", background.unknown_aliases, "eventConsumers"),
    _rule("consumer.not-subscribed", background.unsubscribed_events, "eventConsumers"),
    _rule("consumer.not-owned", background.unowned_events, "eventConsumers"),
    _rule("consumer.strict-concurrency", background.strict_concurrency, "eventConsumers"),
    _rule("schema.reference", embedded.references),
    _rule("schema.dialect", embedded.dialect),
    _rule("schema.pattern", embedded.patterns),
    _rule("reference.unknown-schema", surfaces.schema_references),
    _rule("event.params-order", surfaces.params_order, "events"),
    _rule("event.template-pointer", surfaces.template_pointers, "events"),
    _rule("subject.syntax", surfaces.subject_syntax),
    _rule("subject.reserved", surfaces.subject_reserved),
    _rule("subject.duplicate", surfaces.duplicate_subjects),
    _rule("capability.namespace", surfaces.capability_namespaces, "capabilities"),
    _rule("transfer.unknown-store", surfaces.transfer_stores, "operations"),
    _rule("transfer.pointer", surfaces.transfer_pointers, "operations"),
    _rule("job.heartbeat", background.job_heartbeats, "jobs"),
    _rule("job.key-pointer", background.job_key_pointers, "jobs"),
)
"""Every rule."""
