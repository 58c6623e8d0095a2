"""Pure parts of Discord: permissions, the gateway session, rate limits, commands."""
