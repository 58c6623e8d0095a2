"""The concierge: an agent that answers in chats from what a community knows.

It uses only public interfaces, `RelayGateway` and the community's bus, so that it can serve as an
example. `rules` decides what a message asks for, which passages are relevant and what is replied.
"""

from accord.concierge.community import FindModel, OpenBus, offered_model
from accord.concierge.concierge import Concierge
from accord.concierge.rules.answers import LanguageModel
from accord.concierge.rules.conversation import COMMANDS, AnswerPolicy

__all__ = [
    "COMMANDS",
    "AnswerPolicy",
    "Concierge",
    "FindModel",
    "LanguageModel",
    "OpenBus",
    "offered_model",
]
