"""Resource requests that no server can keep (section 15): refused before anything changes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from accord.kernel.finding import Finding, pointer

MAX_HISTORY: Final = 64
"""How many values of a key a bucket keeps at most."""


def unsafe(contract: Mapping[str, Any]) -> Iterator[Finding]:
    """Every request of a normalised contract that contradicts itself or the servers."""
    resources = contract.get("resources", {})
    for alias, bucket in resources.get("kv", {}).items():
        if bucket.get("history", 1) > MAX_HISTORY:
            yield Finding(
                "resource.history",
                pointer("resources", "kv", alias, "history"),
                f"a bucket keeps at most {MAX_HISTORY} values of a key",
            )
    stores = resources.get("store", {})
    for alias, store in stores.items():
        if _exceeds(store.get("maxObjectBytes"), store.get("maxTotalBytes")):
            yield Finding(
                "resource.object-size",
                pointer("resources", "store", alias, "maxObjectBytes"),
                "one object may be larger than the whole store",
            )
    for name, operation in contract.get("operations", {}).items():
        transfer = operation.get("transfer", {})
        store = stores.get(transfer.get("store"), {})
        if _exceeds(transfer.get("maxBytes"), store.get("maxObjectBytes")):
            yield Finding(
                "resource.transfer-size",
                pointer("operations", name, "transfer", "maxBytes"),
                "more may be sent than one object of the store holds",
            )


def _exceeds(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > whole
