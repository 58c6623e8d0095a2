"""The concierge: an agent that answers in chats from what a community knows.

It stands on `RelayGateway` like anybody's agent and calls the community's bus like anybody's
client: there is nothing here that a reader could not write. Pure parts say what a message asks for
(`intent`), what bears on it (`passages`), what the model is told (`prompting`), what becomes of its
words (`answering`) and what is said otherwise (`saying`).
"""

from accord.concierge.commons import Bus, FindModel, Reach
from accord.concierge.concierge import Concierge
from accord.concierge.hearing import Manners
from accord.concierge.intent import COMMANDS
from accord.concierge.models import offered_model

__all__ = ["COMMANDS", "Bus", "Concierge", "FindModel", "Manners", "Reach", "offered_model"]
