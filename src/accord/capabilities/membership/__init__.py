"""Inviting members to a community and removing them: `community.invite`, `community.revoke`."""

from accord.capabilities.membership.service import register

__all__ = ["register"]
