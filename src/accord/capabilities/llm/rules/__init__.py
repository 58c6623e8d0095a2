"""The rules of a generation, and the format of OpenAI-compatible servers. Pure."""
