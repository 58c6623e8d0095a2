"""Rules about the form of the document, before anything is asked of what it means."""

from collections.abc import Iterator
from typing import Final

from accord.contracts.manifest.embedded import is_embedded
from accord.contracts.manifest.pointers import Path
from accord.contracts.manifest.view import View

_SENTENCES: Final = {
    ("pattern", "id"): "a contract id is a name and a major version, such as graph@v1",
    ("pattern", "contract"): "a contract id is a name and a major version, such as graph@v1",
    ("pattern", "version"): "a version is `v` and a number, such as v1",
    ("pattern", "key"): "not a JSON Pointer such as /file/name",
    ("pattern", "contentType"): "not a JSON Pointer such as /file/type",
    ("pattern", "metadata"): "not a JSON Pointer such as /file/labels",
    ("additionalProperties", "uses"): "aliases are declared under `required` or `optional`",
    ("enum", "kind"): "unknown; a contract is of kind service, app, agent or device, a state store"
    " of kind value or map",
}


def plain_json(view: View) -> Iterator[tuple[Path, str]]:
    """The manifest is a value that every reader reads alike (section 12)."""
    if view.refusal is not None:
        yield view.refusal


def unsupported(view: View) -> Iterator[tuple[Path, str]]:
    """Members of other versions that would be dangerous to ignore are refused (section 9)."""
    if "subjects" in view.submitted:
        yield ("subjects",), "raw subjects are not supported; declare RPCs, operations or events"
    for kind in ("jobs", "stream"):
        if kind in view.declared("resources"):
            yield ("resources", kind), f"`resources.{kind}` is not supported"
    for group in ("required", "optional"):
        for alias in view.declared("uses", group):
            if "subjects" in view.declared("uses", group, alias):
                yield ("uses", group, alias, "subjects"), "raw subjects cannot be used"


def shape(view: View) -> Iterator[tuple[Path, str]]:
    """The manifest has the shape of `trellis.contract.v1`."""
    for fault in view.faults:
        if not is_embedded(view, fault):
            sentence = _SENTENCES.get((fault.kind, fault.path[-1] if fault.path else ""))
            yield fault.path, sentence or fault.message
