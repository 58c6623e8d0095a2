"""Inviting into a community and removing from it: `community.invite` and `community.revoke`."""
