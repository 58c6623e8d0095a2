"""Inviting into a community and removing from it: `community.invite` and `community.revoke`."""

from accord.capabilities.membership.handlers import register

__all__ = ["register"]
