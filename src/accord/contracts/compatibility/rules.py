"""The rules of comparison, as data, in the order in which their changes are listed."""

from typing import Final

from accord.contracts.compatibility import background, surfaces, wire
from accord.contracts.compatibility.report import Category
from accord.contracts.compatibility.rule import Handler, Rule

_RESOURCES: Final = (("resources", "kv"), ("resources", "store"))


def _rule(identity: str, category: Category, handler: Handler, purpose: str = "") -> Rule:
    return Rule(identity, category, purpose or (handler.__doc__ or "").strip(), handler)


RULES: Final = (
    _rule("contract.lineage", "breaking", surfaces.lineage),
    _rule("contract.kind", "breaking", surfaces.kind),
    _rule("surface.removed", "breaking", surfaces.removed),
    _rule("surface.moved", "breaking", surfaces.moved),
    _rule("surface.transfer", "breaking", surfaces.transfer),
    _rule("surface.transfer-tightened", "breaking", surfaces.transfer_tightened),
    _rule("capability.added", "breaking", surfaces.capability_added),
    _rule("capability.differs", "breaking", surfaces.capability_differs),
    _rule("payload.refused", "breaking", wire.refused),
    _rule("payload.member-required", "breaking", wire.member_required),
    _rule("payload.values-narrowed", "breaking", wire.values_narrowed),
    _rule("payload.format-narrowed", "breaking", wire.format_narrowed),
    _rule("payload.format-widened", "breaking", wire.format_widened),
    _rule("payload.object-closed", "breaking", wire.object_closed),
    _rule("payload.closed-object-grown", "breaking", wire.closed_object_grown),
    _rule("state.kind", "breaking", background.state_kind),
    _rule("state.version-dropped", "breaking", background.state_version_dropped),
    _rule("state.version-ahead", "breaking", background.state_version_ahead),
    _rule("payload.unproven", "unproven", wire.unproven),
    _rule("capability.removed", "migration", surfaces.capability_removed),
    _rule(
        "state.removed",
        "migration",
        background.gone("state store", ("state",)),
        "A state store stays, and with it what is stored there.",
    ),
    _rule("job.keyed", "migration", background.keyed),
    _rule(
        "job.tightened",
        "migration",
        background.settings("jobs", risky=True),
        "A queue does not lose, reject, skip or double jobs that it ran before.",
    ),
    _rule(
        "consumer.removed",
        "migration",
        background.gone("consumer group", ("eventConsumers",)),
        "A consumer group keeps its name, and with it its place in the stream.",
    ),
    _rule("consumer.narrowed", "migration", background.consumer_narrowed),
    _rule(
        "consumer.delivery",
        "migration",
        background.settings("eventConsumers", risky=True),
        "A consumer group is delivered events in a way that skips and doubles none.",
    ),
    _rule(
        "resource.removed",
        "migration",
        background.gone("resource", *_RESOURCES),
        "A resource keeps its alias, and with it what is stored there.",
    ),
    _rule(
        "resource.shrunk",
        "migration",
        background.settings("resources", risky=True),
        "A resource keeps as much, for as long, as before.",
    ),
    _rule("resource.narrowed", "migration", wire.resource_narrowed),
    _rule("payload.member-removed", "note", wire.member_removed),
    _rule("surface.version", "note", surfaces.version),
    _rule("error.added", "note", surfaces.error_added),
    _rule("error.removed", "note", surfaces.error_removed),
    _rule("capability.described", "note", surfaces.capability_described),
    _rule("uses.removed", "note", background.uses_removed),
    _rule("surface.added", "update", surfaces.added),
    _rule("surface.transfer-loosened", "update", surfaces.transfer_loosened),
    _rule("payload.changed", "update", wire.changed),
    _rule(
        "state.added",
        "update",
        background.come("state store", ("state",)),
        "A contract may have more state stores than before.",
    ),
    _rule("state.version-new", "update", background.state_version_new),
    _rule(
        "job.loosened",
        "update",
        background.settings("jobs", risky=False),
        "A queue may try longer, wait longer and admit more.",
    ),
    _rule(
        "consumer.added",
        "update",
        background.come("consumer group", ("eventConsumers",)),
        "A contract may have more consumer groups than before.",
    ),
    _rule("consumer.widened", "update", background.consumer_widened),
    _rule(
        "consumer.loosened",
        "update",
        background.settings("eventConsumers", risky=False),
        "A consumer group may be delivered events for longer, and wait longer.",
    ),
    _rule(
        "resource.added",
        "update",
        background.come("resource", *_RESOURCES),
        "A contract may ask for more resources than before.",
    ),
    _rule(
        "resource.grown",
        "update",
        background.settings("resources", risky=False),
        "A resource may keep more, and for longer, than before.",
    ),
    _rule("uses.added", "update", background.uses_added),
)
"""Every rule: what is breaking, unproven, a migration, worth a note, or an update."""
