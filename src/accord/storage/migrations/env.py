"""Runs revisions on the connection and in the transaction of `accord.storage.revisions`."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table_schema=context.config.attributes["version_schema"],
    transactional_ddl=True,
)
context.run_migrations()
