"""`accord community`: found and join communities, look after their members, call their nodes.

Puts the verbs together; each group of them has a file of its own.
"""

import typer

from accord.cli import community_bus, community_life, community_log, community_people

app = typer.Typer(
    no_args_is_help=True, epilog='Example: accord community create "Our street" --home ./alice'
)
for verbs in (community_life, community_people, community_bus, community_log):
    app.registered_commands += verbs.app.registered_commands
