"""Pure building blocks: canonical JSON, digests, signatures, ids, schemas, time, errors.

Imports nothing else of Accord; only `signing` touches files, through `files`. Import modules: `from
accord.kernel import canonical`.
"""
