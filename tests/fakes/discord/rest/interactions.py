"""Commands and answers to interactions over REST."""

from typing import Any

from tests.fakes.discord.interactions import EPHEMERAL, LOADING, CallbackType, Interaction, State
from tests.fakes.discord.messages import Message
from tests.fakes.discord.rest.calls import (
    Call,
    Refused,
    Route,
    bad_form,
    missing_access,
    typed,
    unknown,
)
from tests.fakes.discord.rest.messages import change, read_content, read_draft
from tests.fakes.discord.world import Json

_MAX_COMMANDS = 100
_MAX_NAME = 32


def _commands(call: Call) -> tuple[int, Any]:
    return 200, call.service.application.commands.get(_scope(call), [])


def _replace_commands(call: Call) -> tuple[int, Any]:
    scope = _scope(call)
    if not isinstance(call.body, list):
        raise bad_form("_", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType")
    if len(call.body) > _MAX_COMMANDS:
        raise Refused(400, 30032, "Maximum number of application commands reached (100).")
    kept = {each["name"]: each["id"] for each in call.service.application.commands.get(scope, [])}
    made = [_command(call, each, at, kept) for at, each in enumerate(call.body)]
    if len({(each["name"], each["type"]) for each in made}) < len(made):
        raise bad_form(
            "_",
            "APPLICATION_COMMANDS_DUPLICATE_NAME",
            "Application command names must be unique",
        )
    call.service.application.commands[scope] = made
    return 200, made


def _command(call: Call, form: Any, at: int, kept: dict[str, str]) -> Json:
    asked: Json = typed(form, str(at), dict, {})
    name: str = typed(asked.get("name"), f"{at}.name", str, "")
    kind: int = typed(asked.get("type"), f"{at}.type", int, 1)
    words: str = typed(asked.get("description"), f"{at}.description", str, "")
    if not 1 <= len(name) <= _MAX_NAME:
        raise bad_form(f"{at}.name", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 32 in length.")
    usual = name == name.lower() and all(each.isalnum() or each in "-_'" for each in name)
    if kind == 1 and not usual:
        raise bad_form(f"{at}.name", "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid")
    if kind == 1 and not 1 <= len(words) <= 100:
        raise bad_form(
            f"{at}.description", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length."
        )
    return {
        "options": [],
        "default_member_permissions": None,
        "nsfw": False,
        **asked,
        "id": kept.get(name) or call.world.new_id(),
        "application_id": call.service.application.id,
        "version": call.world.new_id(),
        "name": name,
        "description": words,
        "type": kind,
    }


def _scope(call: Call) -> str:
    if call.id("application_id") != call.service.application.id:
        raise missing_access()
    return call.guild().id if "guild_id" in call.params else ""


def _callback(call: Call) -> tuple[int, Any]:
    interactions = call.service.interactions
    found = interactions.by_token(call.params["interaction_token"])
    if found is None or found.id != call.id("interaction_id"):
        raise unknown("interaction")
    if found.state in (State.DEFERRED, State.ANSWERED):
        raise Refused(400, 40060, "Interaction has already been acknowledged.")
    if not interactions.in_time(found):
        found.state = State.FAILED
        raise unknown("interaction")
    kind, data = read_callback(call.form())
    interactions.acknowledge(found, kind, data)
    if call.query.get("with_response", "").lower() not in ("true", "1"):
        return 204, None
    told: Json = {"id": found.id, "type": found.payload["type"]}
    resource: Json = {"type": int(kind)}
    if found.original is not None:
        told["response_message_id"] = found.original.id
        told["response_message_loading"] = bool(found.original.flags & LOADING)
        told["response_message_ephemeral"] = bool(found.original.flags & EPHEMERAL)
        resource["message"] = found.original.json()
    return 200, {"interaction": told, "resource": resource}


def read_callback(form: Json) -> tuple[CallbackType, Json]:
    """The first answer to an interaction, over REST or in the answer to its request."""
    number = form.get("type")
    if number not in list(CallbackType) or isinstance(number, bool):
        choices = ", ".join(str(int(each)) for each in CallbackType)
        raise bad_form("type", "BASE_TYPE_CHOICES", f"Value must be one of ({choices}).")
    data: Json = typed(form.get("data"), "data", dict, {})
    content: str = typed(data.get("content"), "data.content", str, "")
    typed(data.get("flags"), "data.flags", int)
    if len(content) > 2000:
        raise bad_form("data.content", "BASE_TYPE_MAX_LENGTH", "Must be 2000 or fewer in length.")
    kind = CallbackType(number)
    is_empty = not content.strip() and not data.get("embeds") and not data.get("components")
    if kind is CallbackType.CHANNEL_MESSAGE_WITH_SOURCE and is_empty:
        raise Refused(400, 50006, "Cannot send an empty message")
    return kind, data


def _follow_up(call: Call) -> tuple[int, Any]:
    found = _interaction(call)
    original = found.original
    if found.state is State.DEFERRED and original is not None:
        # For backwards compatibility, the first follow-up of a deferred answer is that answer.
        read_content(call)
        return 200, _changed(call, found, original)
    plain = read_draft(call, found.channel, call.world.bot)
    draft = call.service.interactions.draft(
        found,
        plain.content,
        reply_to=found.original,
        allowed=plain.allowed,
        embeds=plain.embeds,
        components=plain.components,
        flags=plain.flags,
    )
    made = found.channel.post(draft)
    found.answers.append(made)
    return 200, made.json()


def _get_answer(call: Call) -> tuple[int, Any]:
    return 200, _answer(call, _interaction(call)).json()


def _edit_answer(call: Call) -> tuple[int, Any]:
    found = _interaction(call)
    return 200, _changed(call, found, _answer(call, found))


def _delete_answer(call: Call) -> tuple[int, Any]:
    found = _interaction(call)
    message = _answer(call, found)
    found.answers.remove(message)
    message.delete()
    return 204, None


def _changed(call: Call, found: Interaction, message: Message) -> Json:
    change(call, message)
    if message is found.original and found.state is State.DEFERRED:
        found.state = State.ANSWERED
        message.flags &= ~LOADING
    return message.json()


def _interaction(call: Call) -> Interaction:
    if call.params["webhook_id"] != call.service.application.id:
        raise unknown("webhook")
    token = call.params["webhook_token"]
    found = call.service.interactions.by_token(token)
    if found is None:
        raise Refused(401, 50027, "Invalid Webhook Token")
    if found.state not in (State.DEFERRED, State.ANSWERED):
        raise unknown("webhook")
    return found


def _answer(call: Call, found: Interaction) -> Message:
    wanted = call.params.get("message_id", "@original")
    for each in found.answers:
        if each.id == wanted or (wanted == "@original" and each is found.original):
            return each
    raise unknown("message")


_GLOBAL = "/applications/{application_id}/commands"
_LOCAL = "/applications/{application_id}/guilds/{guild_id}/commands"
_HOOK = "/webhooks/{webhook_id}/{webhook_token}"
_ANSWER = f"{_HOOK}/messages/{{message_id}}"

ROUTES = (
    Route("GET", _GLOBAL, _commands),
    Route("PUT", _GLOBAL, _replace_commands),
    Route("GET", _LOCAL, _commands),
    Route("PUT", _LOCAL, _replace_commands),
    Route("POST", "/interactions/{interaction_id}/{interaction_token}/callback", _callback, True),
    Route("POST", _HOOK, _follow_up, is_open=True),
    Route("GET", _ANSWER, _get_answer, is_open=True),
    Route("PATCH", _ANSWER, _edit_answer, is_open=True),
    Route("DELETE", _ANSWER, _delete_answer, is_open=True),
)
