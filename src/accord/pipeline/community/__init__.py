"""The fold of a community on Spark, stage by stage, by the very functions that a node runs.

`chains` sums up the authors' chains in parallel, `membership` settles who belongs on the driver,
`content` judges everything else in parallel parts, `state` writes the bytes that a node would
write, and `snapshots` has an anchor vouch for them. docs/concepts/gold-community.md walks through
it. No rule stands here: all of them are `accord.community.fold`'s.
"""
