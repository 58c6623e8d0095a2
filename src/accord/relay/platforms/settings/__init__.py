"""What an operator says about the bots on each platform: one table of the settings for each bot.

Apart from the platforms themselves, so that reading the settings loads none of them.
"""
