"""Whether a landed record may stand, and by which rule it may not. Pure.

`check` is the only door: it reads a body strictly, asks the law of its stream (the envelope of the
community, the schema of the stream, the manifest of the contract) and names the record by its
digest. The same function runs on Spark's workers (`arrow`) and in plain Python.
"""

from accord.pipeline.checks.checking import check
from accord.pipeline.checks.contracts import Manifests, place_of
from accord.pipeline.checks.verdict import RULES, Checked, Head

__all__ = ["RULES", "Checked", "Head", "Manifests", "check", "place_of"]
