"""Buckets: bytes with compare-and-set, leases on them, and the typed buckets of a contract.

`Bucket` and `Lease` are what operations and jobs stand on; `KeyValue` is what a service uses.
"""

from accord.fabric.kv.bucket import Bucket, Entry
from accord.fabric.kv.handle import KeyValue, Value, open_kv
from accord.fabric.kv.lease import Lease, is_held, take, take_over

__all__ = [
    "Bucket",
    "Entry",
    "KeyValue",
    "Lease",
    "Value",
    "is_held",
    "open_kv",
    "take",
    "take_over",
]
