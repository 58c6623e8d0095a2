"""An agent in twenty lines: it knows what time it is elsewhere.

    accord relay gateway run --agent examples.agent:agent --here clock

Open the link that this prints, and write `15:30 Tokyo in Lima`, or only the name of a city.
"""

import re
from datetime import datetime, time
from zoneinfo import ZoneInfo, available_timezones

from accord.relay.gateway import Turn

ZONES = {name.rpartition("/")[2].replace("_", " ").lower(): name for name in available_timezones()}
ASKED = re.compile(r"(?:((?:[01]\d|2[0-3]):[0-5]\d) (.+) in )?(.*)", re.DOTALL)


async def agent(turn: Turn) -> str:
    """Answer one message."""
    clock, here, there = ASKED.findall(turn.event.text.strip())[0]
    for city in (here or there, there):
        if city.lower() not in ZONES:
            return f"I know no city called {city[:40]!r}. Try: 15:30 Tokyo in Lima"
    zone = ZoneInfo(ZONES[there.lower()])
    if not clock:
        return f"It is {datetime.now(zone):%H:%M} in {there}."
    today = datetime.now(ZoneInfo(ZONES[here.lower()]))
    then = datetime.combine(today, time.fromisoformat(clock), today.tzinfo)
    return f"{clock} in {here} is {then.astimezone(zone):%H:%M on %A} in {there}."
