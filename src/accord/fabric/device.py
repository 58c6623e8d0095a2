"""A device: a service whose key a person vouches for before the authority knows it."""

from dataclasses import dataclass
from typing import Any

from accord.contracts.session_proof import connect_message, prove, session_key
from accord.fabric.exchange import ask_once
from accord.fabric.service import Service


@dataclass(frozen=True, slots=True)
class Activation:
    """What a person needs to activate a device.

    Attributes:
        code: What the person types in, once.
        url: Where.
        expires_at: Until when, as the authority writes it.
    """

    code: str
    url: str
    expires_at: str


class Device(Service):
    """Implements a contract on a machine that somebody activates."""

    async def activate(self, deployment: str, name: str) -> Activation:
        """Ask for a code; once a person has confirmed it, the device may connect.

        Args:
            deployment: The deployment that the device belongs to.
            name: What the person is shown.

        Raises:
            BootstrapError: The authority refuses, or cannot be asked.
        """
        iat = int(self._clock.now())
        request: dict[str, Any] = {
            "sessionKey": session_key(self._key),
            "contractDigest": self.terms.digest,
            "manifest": self.terms.manifest,
            "deployment": deployment,
            "name": name,
            "iat": iat,
            "sig": prove(self._key, connect_message(self.terms.digest, iat)),
        }
        answer = await ask_once(
            self._authority.tls,
            self._authority.url,
            "/auth/v1/activations",
            request,
            *("code", "activateUrl", "expiresAt"),
        )
        return Activation(answer["code"], answer["activateUrl"], answer["expiresAt"])
