"""What the rules look at: a manifest reduced to the parts that have the right shape.

A rule may therefore find a member missing, but never of the wrong type, and one mistake does not
hide another.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from accord.contracts.manifest import plain, shape
from accord.contracts.manifest.pointers import Path
from accord.contracts.manifest.shape import Fault

_NOTHING: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class View:
    """A manifest as the rules see it.

    Attributes:
        manifest: The parts that have the right shape.
        text: The manifest as compact JSON, for a quick look whether something occurs in it.
        faults: The places that do not have the right shape.
        refusal: Why nothing at all can be said about the value, if so.
        submitted: The manifest as it came.
        usual: Whether its patterns are all of a kind that is known to be fine.
    """

    manifest: dict[str, Any] = field(default_factory=dict)
    text: bytes = b""
    faults: tuple[Fault, ...] = ()
    refusal: tuple[Path, str] | None = None
    submitted: dict[str, Any] = field(default_factory=dict)
    usual: bool = False

    def section(self, name: str, kind: str | None = None) -> dict[str, Any]:
        """A map of the manifest, or one kind of `uses` or `resources`; empty if there is none."""
        found: dict[str, Any] = self.manifest.get(name, _NOTHING)
        return found if kind is None else found.get(kind, _NOTHING)

    def declared(self, *path: str) -> dict[str, Any]:
        """The same map as it came, entries without the right shape included."""
        return shape.entries(self.submitted, path)


def view(manifest: Any) -> View:
    """Look at any value as a manifest."""
    text = plain.written(manifest)
    if text is None:
        return View(refusal=plain.refusal(manifest))
    if not isinstance(manifest, dict):
        return View(faults=(Fault((), "type", "a manifest is a JSON object"),))
    try:
        usual = shape.usual().is_valid(manifest)
        if usual or shape.definition(None).is_valid(manifest):
            return View(manifest, text, submitted=manifest, usual=usual)
    except ValueError:  # the validator met something of Python's that is no JSON
        return View(refusal=plain.refusal(manifest))
    sound, faults = shape.dissect(plain.copied(manifest))
    return View(sound, text, tuple(faults), submitted=manifest)
