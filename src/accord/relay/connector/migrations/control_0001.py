"""Who is who: tenants, gateways, links, bindings, grants, policies and the vault."""

import sqlalchemy as sa
from alembic import op

revision = "control_0001"
down_revision = None
branch_labels = ("relay",)
depends_on = None


def upgrade() -> None:
    """Create the tables of the control half."""
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("suspended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant"),
    )
    op.create_table(
        "instances",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("gateway_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("wake_url", sa.Text(), nullable=True),
        sa.Column("woken_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("barred", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("instance"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
        sa.UniqueConstraint("gateway_id"),
    )
    op.create_index("instances_tenant", "instances", ["tenant"])
    op.create_table(
        "gateway_secrets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_index("gateway_secrets_instance", "gateway_secrets", ["instance"])
    op.create_table(
        "identities",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("bot_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "platform", "bot_id"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_index("identities_bot", "identities", ["platform", "bot_id"])
    op.create_table(
        "enrolments",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "routes",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("route_key", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("pinned", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "route_key"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
    )
    op.create_table(
        "route_claims",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("route_key", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "route_key", "instance"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
        sa.ForeignKeyConstraint(["platform", "route_key"], ["routes.platform", "routes.route_key"]),
    )
    op.create_index("route_claims_instance", "route_claims", ["instance"])
    op.create_table(
        "bindings",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "platform", "user_id", "instance"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
    )
    op.create_index("bindings_instance", "bindings", ["instance"])
    op.create_index("bindings_user", "bindings", ["platform", "user_id"])
    op.create_table(
        "dm_defaults",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "user_id"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
    )
    op.create_index("dm_defaults_instance", "dm_defaults", ["instance"])
    op.create_table(
        "grants",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("channel_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "scope_id", "channel_id"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"]),
    )
    op.create_index("grants_instance", "grants", ["instance"])
    op.create_table(
        "principals",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("allow", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "platform"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_table(
        "relevance",
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("require_address", sa.Integer(), nullable=False),
        sa.Column("free_response_scopes", sa.Text(), nullable=False),
        sa.Column("allow_other_bots", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "platform"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_table(
        "link_codes",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_index("link_codes_instance", "link_codes", ["instance"])
    op.create_table(
        "link_pending",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "user_id"),
        sa.ForeignKeyConstraint(["instance"], ["instances.instance"]),
    )
    op.create_index("link_pending_instance", "link_pending", ["instance"])
    op.create_table(
        "link_talks",
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("platform", "user_id"),
    )
    op.create_table(
        "vault",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.Column("platform", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("session_key", sa.Text(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=True),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("vault_alias", "vault", ["instance", "alias"])
    op.create_index("vault_expires_at", "vault", ["expires_at"])
    op.create_index("vault_session_key", "vault", ["instance", "session_key"])
    op.create_table(
        "changes",
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )
    op.create_table(
        "change_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.execute("INSERT INTO change_head (id, version) VALUES (1, 0)")
