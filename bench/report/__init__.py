"""The benchmarks page: what was measured, kept as JSON, drawn and told.

`python -m bench.report` runs each part in a process of its own (`measuring`), on a machine that it
describes (`machine`), and makes `docs/benchmarks.md` of everything that was ever kept (`page`,
`plots`). Nothing in here measures, and no figure has a sentence here: what a part says of itself is
its docstring, and why a goal was missed is its `EXPLAINED`.
"""
