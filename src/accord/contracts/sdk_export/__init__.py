"""SDKs: a typed Python package for callers and for the service, written from a contract.

`render_sdk` is pure; `sdk` writes what it renders. The package needs nothing but Python: how
messages travel is a protocol that whoever connects implements (`transport.py`, copied into each
package).
"""

from accord.contracts.sdk_export.merging import runtime_api
from accord.contracts.sdk_export.rendering import package_name, render_sdk
from accord.contracts.sdk_export.writing import sdk

__all__ = ["package_name", "render_sdk", "runtime_api", "sdk"]
