"""The pure ground that everything stands on.

Canonical JSON, digests, Ed25519, upgrade tokens, ULIDs, schema validation, time as an argument,
findings and errors. It imports nothing else of Accord. Only `signing` touches files, and only a
key's own, by `files`.

The modules are the public names: `from accord.kernel import canonical`.
"""
