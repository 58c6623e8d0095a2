"""What an operator chooses about an application in WeCom."""

from typing import Annotated

from pydantic import Field, SecretStr

from accord.kernel.section import Section

_EMPTY = SecretStr("")


class WecomSettings(Section):
    """`[[relay.wecom]]`: an application of a corporation in WeCom that agents answer by."""

    corp_id: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="the corporation's id, ww...")
    ]
    agent_id: Annotated[int, Field(ge=1, lt=2**31, description="the application's AgentId")]
    secret: Annotated[SecretStr, Field(description="the application's Secret")] = _EMPTY
    secret_file: Annotated[str, Field(description="a file with the Secret instead")] = ""
    token: Annotated[SecretStr, Field(description="the Token of its API reception")] = _EMPTY
    token_file: Annotated[str, Field(description="a file with the Token instead")] = ""
    encoding_aes_key: Annotated[
        SecretStr, Field(description="the EncodingAESKey of its API reception")
    ] = _EMPTY
    encoding_aes_key_file: Annotated[
        str, Field(description="a file with the EncodingAESKey instead")
    ] = ""
    api_url: Annotated[
        str, Field(pattern=r"^https?://[^\s/]", description="where WeCom's API is")
    ] = "https://qyapi.weixin.qq.com"
