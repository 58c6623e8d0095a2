"""Updates as the Bot API documents them, one of every kind that reaches the connector."""

from typing import Any

ANN: dict[str, Any] = {
    "id": 41,
    "is_bot": False,
    "first_name": "Ann",
    "last_name": "Lee",
    "username": "ann",
    "language_code": "en",
}
BOT_USER: dict[str, Any] = {
    "id": 700,
    "is_bot": True,
    "first_name": "Accord",
    "username": "accord_bot",
}
OTHER_BOT: dict[str, Any] = {"id": 800, "is_bot": True, "first_name": "Other", "username": "o_bot"}
PRIVATE: dict[str, Any] = {
    "id": 41,
    "first_name": "Ann",
    "last_name": "Lee",
    "username": "ann",
    "type": "private",
}
GROUP: dict[str, Any] = {
    "id": -41,
    "title": "Old friends",
    "type": "group",
    "all_members_are_administrators": False,
}
SUPERGROUP: dict[str, Any] = {
    "id": -1001,
    "title": "Friends",
    "username": "friends",
    "type": "supergroup",
}
FORUM: dict[str, Any] = {"id": -1002, "title": "Forum", "type": "supergroup", "is_forum": True}
CHANNEL: dict[str, Any] = {
    "id": -1003,
    "title": "News",
    "username": "the_news",
    "type": "channel",
}
TOPIC_START: dict[str, Any] = {
    "message_id": 17,
    "from": BOT_USER,
    "chat": FORUM,
    "date": 1767225600,
    "message_thread_id": 17,
    "forum_topic_created": {"name": "Plans", "icon_color": 7322096},
    "is_topic_message": True,
}
FILE: dict[str, Any] = {"file_id": "AgACAgIAAx", "file_unique_id": "AQADx", "file_size": 4096}
SIZES: list[dict[str, Any]] = [
    {"file_id": "small-1", "file_unique_id": "s1", "file_size": 900, "width": 90, "height": 60},
    {"file_id": "large-1", "file_unique_id": "l1", "file_size": 90000, "width": 900, "height": 600},
]


def message(chat: dict[str, Any] = PRIVATE, **more: Any) -> dict[str, Any]:
    """A message in a chat, by Ann unless it says otherwise."""
    return {"message_id": 5, "from": ANN, "chat": chat, "date": 1767225600} | more


def update(kind: str = "message", **members: Any) -> dict[str, Any]:
    """An update with a message of these members."""
    return {"update_id": 9001, kind: message(**members)}


def entity(kind: str, offset: int, length: int, **more: Any) -> dict[str, Any]:
    """A marked part of a text, in UTF-16 code units."""
    return {"type": kind, "offset": offset, "length": length} | more


MEDIA: dict[str, dict[str, Any]] = {
    "photo": {"photo": SIZES},
    "document": {"document": FILE | {"file_name": "a.pdf", "mime_type": "application/pdf"}},
    "video": {"video": FILE | {"width": 320, "height": 240, "duration": 5}},
    "animation": {
        "animation": FILE | {"width": 320, "height": 240, "duration": 2},
        "document": FILE | {"mime_type": "video/mp4"},
    },
    "video_note": {"video_note": FILE | {"length": 240, "duration": 5}},
    "audio": {"audio": FILE | {"duration": 180, "performer": "Somebody", "title": "Something"}},
    "voice": {"voice": FILE | {"duration": 3, "mime_type": "audio/ogg"}},
    "sticker": {
        "sticker": FILE
        | {
            "type": "regular",
            "width": 512,
            "height": 512,
            "is_animated": False,
            "is_video": False,
            "emoji": "🙂",
        }
    },
    "location": {"location": {"latitude": 52.52, "longitude": 13.405}},
    "venue": {
        "location": {"latitude": 52.52, "longitude": 13.405},
        "venue": {
            "location": {"latitude": 52.52, "longitude": 13.405},
            "title": "Tower",
            "address": "Square 1",
        },
    },
}

MEMBER: dict[str, Any] = {"status": "member", "user": ANN}
LEFT: dict[str, Any] = {"status": "left", "user": ANN}


def membership(kind: str, chat: dict[str, Any]) -> dict[str, Any]:
    """Somebody left a chat."""
    return {
        "update_id": 9002,
        kind: {
            "chat": chat,
            "from": ANN,
            "date": 1767225600,
            "old_chat_member": MEMBER,
            "new_chat_member": LEFT,
        },
    }


SERVICE: dict[str, dict[str, Any]] = {
    "somebody joined": {"new_chat_members": [ANN]},
    "somebody left": {"left_chat_member": ANN},
    "a new title": {"new_chat_title": "Better friends"},
    "a pinned message": {"pinned_message": message(SUPERGROUP, text="important")},
    "a new id": {"migrate_to_chat_id": -1009},
    "a new topic": {"forum_topic_created": {"name": "Plans", "icon_color": 7322096}},
}

UNHEARD: dict[str, dict[str, Any]] = {
    "edited_message": {
        "update_id": 9003,
        "edited_message": message(text="other words", edit_date=1767225700),
    },
    "callback_query": {
        "update_id": 9004,
        "callback_query": {"id": "1", "from": ANN, "chat_instance": "x", "data": "pressed"},
    },
    "poll": {
        "update_id": 9005,
        "message": message(
            poll={
                "id": "1",
                "question": "Tea?",
                "options": [{"text": "yes", "voter_count": 0, "persistent_id": "1"}],
                "total_voter_count": 0,
                "is_closed": False,
                "is_anonymous": True,
                "type": "regular",
                "allows_multiple_answers": False,
                "allows_revoting": False,
                "members_only": False,
            }
        ),
    },
    "contact": {
        "update_id": 9006,
        "message": message(contact={"phone_number": "+1", "first_name": "Bob"}),
    },
}
