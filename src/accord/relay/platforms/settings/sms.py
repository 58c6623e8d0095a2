"""What an operator chooses about a phone number at Twilio."""

from typing import Annotated

from pydantic import Field, SecretStr

from accord.kernel.section import Section


class SmsSettings(Section):
    """`[[relay.sms]]`: a phone number at Twilio that agents answer text messages by."""

    account_sid: Annotated[
        str, Field(pattern=r"^AC[0-9a-fA-F]{32}$", description="the account's SID, AC...")
    ]
    phone_number: Annotated[
        str, Field(pattern=r"^\+?[1-9][0-9]{2,14}$", description="the number, such as +15005550006")
    ]
    auth_token: Annotated[SecretStr, Field(description="the account's auth token")] = SecretStr("")
    auth_token_file: Annotated[str, Field(description="a file with the auth token instead")] = ""
    api_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/]", description="where Twilio's API is")
    ] = "https://api.twilio.com"
