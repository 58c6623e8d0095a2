"""Benchmarks: each figure beside its baseline, measured in the same run.

`python -m bench` runs them all, `python -m bench kernel` one part. A module here is a part: it has
`run() -> Iterator[Figure]`.
"""
