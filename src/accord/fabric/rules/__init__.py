"""The pure parts of the fabric: terms, payloads, proofs, errors, and records of durable work."""
