"""The kernel beside the libraries that it stands on."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jsonschema_rs
import nacl.signing
import orjson

from accord.kernel import canonical, schema, signing
from bench.documents import document
from bench.figure import Figure
from bench.measure import rates

SIZES = {"0.4 KB": 400, "4 KB": 4_000, "100 KB": 100_000, "1 MB": 1_000_000}
MESSAGE = canonical.encode(document(400, doubles=False))


def run() -> Iterator[Figure]:
    """Measure every part."""
    yield from encoding()
    yield from decoding()
    yield from signatures()
    yield from validation()


def encoding() -> Iterator[Figure]:
    """Canonical encoding beside orjson with sorted keys; the rate in bytes shows the growth."""
    sorted_dumps = partial(orjson.dumps, option=orjson.OPT_SORT_KEYS)
    for doubles, goal in ((False, 0.3), (True, 0.15)):
        for label, size in SIZES.items():
            # Many small documents, so that no one document's luck decides.
            count = max(1, 20_000 // size)
            values = [document(size, doubles=doubles, seed=seed) for seed in range(count)]
            kind = "with doubles" if doubles else "no doubles"
            yield _throughput(
                f"encode {label}, {kind}",
                sum(map(len, map(canonical.encode, values))),
                partial(_each, canonical.encode, values),
                partial(_each, sorted_dumps, values),
                "orjson, sorted keys",
                (size, f"encode, {kind}"),
                goal,
            )


def decoding() -> Iterator[Figure]:
    """Strict decoding beside readers that are not strict."""
    for label, size in SIZES.items():
        value = document(size, doubles=True)
        compact, spaced = (
            canonical.encode(value),
            json.dumps(value, indent=1, ensure_ascii=False).encode(),
        )
        yield _throughput(
            f"decode {label}, compact",
            len(compact),
            partial(canonical.decode, compact),
            partial(orjson.loads, compact),
            "orjson.loads",
            (size, "decode, compact"),
        )
        yield _throughput(
            f"decode {label}, indented",
            len(spaced),
            partial(canonical.decode, spaced),
            partial(json.loads, spaced),
            "json.loads",
            (size, "decode, indented"),
        )


def signatures() -> Iterator[Figure]:
    """Signing and verifying bytes beside PyNaCl's own objects."""
    key = signing.SigningKey.from_seed(bytes(range(32)))
    theirs = nacl.signing.SigningKey(bytes(range(32)))
    signature = key.sign_bytes(MESSAGE)
    yield _calls(
        "verify_bytes",
        partial(signing.verify_bytes, key.public, MESSAGE, signature),
        partial(theirs.verify_key.verify, MESSAGE, signature),
        "PyNaCl VerifyKey.verify",
        0.9,
    )
    yield _calls(
        "sign_bytes",
        partial(key.sign_bytes, MESSAGE),
        partial(theirs.sign, MESSAGE),
        "PyNaCl SigningKey.sign",
        0.9,
    )


def validation() -> Iterator[Figure]:
    """Validation beside the library's own validator."""
    entry = {
        "type": "object",
        "required": ["event_id", "lamport", "title"],
        "properties": {
            "event_id": {"type": "string", "pattern": "^[0-9A-Z]{26}$"},
            "lamport": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
        },
    }
    rules = {"type": "object", "additionalProperties": entry}
    theirs = jsonschema_rs.Draft201909Validator(rules)
    for label in ("0.4 KB", "4 KB"):
        value = document(SIZES[label], doubles=False)
        yield _calls(
            f"is_valid {label}, schema looked up",
            partial(_look_up_and_validate, rules, value),
            partial(theirs.is_valid, value),
            "jsonschema-rs",
            None,
        )
        yield _calls(
            f"is_valid {label}",
            partial(schema.compile_schema(rules).is_valid, value),
            partial(theirs.is_valid, value),
            "jsonschema-rs",
            0.8,
        )


def _each(function: Callable[[Any], bytes], values: list[dict[str, Any]]) -> None:
    for value in values:
        function(value)


def _look_up_and_validate(rules: dict[str, Any], value: object) -> bool:
    return schema.compile_schema(rules).is_valid(value)


def _throughput(
    name: str,
    size: int,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    baseline_name: str,
    growth: tuple[float, str],
    goal: float | None = None,
) -> Figure:
    rate, base = rates(ours, baseline)
    scale = size / 1e6
    return Figure(name, "MB/s", rate * scale, base * scale, baseline_name, goal, *growth)


def _calls(
    name: str,
    ours: Callable[[], object],
    baseline: Callable[[], object],
    baseline_name: str,
    goal: float | None,
) -> Figure:
    rate, base = rates(ours, baseline)
    return Figure(name, "calls/s", rate, base, baseline_name, goal)
