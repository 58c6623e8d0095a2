"""The verbs of an operator about people, overrides and custom pages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from accord.authority.bodies import Body, flag, number, text, texts
from accord.authority.errors import AuthorityError, Code
from accord.authority.identities import Identities, PortalKind
from accord.authority.identities.entering import LINK_SECONDS
from accord.authority.showing import shown

_YEAR: Final = 365 * 86_400


def verbs(
    identities: Identities, base_url: str
) -> Mapping[str, Callable[[Body], Awaitable[Mapping[str, Any]]]]:
    """The verbs, by name."""
    asked = _Asked(identities, base_url)
    return {
        "people/list": asked.people,
        "people/add": asked.add,
        "people/set": asked.set,
        "people/link": asked.link,
        "people/consents": asked.consents,
        "overrides/list": asked.overrides,
        "overrides/set": asked.set_override,
        "overrides/drop": asked.drop_override,
        "portals/list": asked.portals,
        "portals/set": asked.set_portal,
        "portals/drop": asked.drop_portal,
    }


class _Asked:
    def __init__(self, identities: Identities, base_url: str) -> None:
        self._identities = identities
        self._base_url = base_url.rstrip("/")

    async def people(self, _body: Body) -> Mapping[str, Any]:
        return {"people": shown(await self._identities.people.all())}

    async def add(self, body: Body) -> Mapping[str, Any]:
        person = await self._identities.people.add(text(body, "name"), texts(body, "capabilities"))
        return {"person": shown(person)}

    async def set(self, body: Body) -> Mapping[str, Any]:
        """Change what is named: capabilities granted or revoked, or whether a person is let in."""
        person = await self._identities.people.find(text(body, "name"))
        keys = (person.capabilities | set(texts(body, "grant"))) - set(texts(body, "revoke"))
        if keys != person.capabilities:
            person = await self._identities.people.set_capabilities(person.id, keys)
        if "disabled" in body:
            person = await self._identities.people.set_disabled(person.id, flag(body, "disabled"))
        return {"person": shown(person)}

    async def link(self, body: Body) -> Mapping[str, Any]:
        person = await self._identities.people.find(text(body, "name"))
        seconds = number(body, "seconds", LINK_SECONDS, most=_YEAR)
        secret, until = await self._identities.entering.link(person.id, seconds)
        return {"url": f"{self._base_url}/login/link/{secret}", "expires_at": until}

    async def consents(self, body: Body) -> Mapping[str, Any]:
        person = await self._identities.people.find(text(body, "name"))
        return {"consents": shown(await self._identities.allowing.consents(person.id))}

    async def overrides(self, _body: Body) -> Mapping[str, Any]:
        return {"overrides": shown(await self._identities.allowing.overrides())}

    async def set_override(self, body: Body) -> Mapping[str, Any]:
        made = await self._identities.set_override(
            text(body, "contract"), text(body, "anchor"), texts(body, "capabilities")
        )
        return {"override": shown(made)}

    async def drop_override(self, body: Body) -> Mapping[str, Any]:
        contract, anchor = text(body, "contract"), text(body, "anchor")
        await self._identities.drop_override(contract, anchor)
        return {"dropped": {"contract": contract, "anchor": anchor}}

    async def portals(self, _body: Body) -> Mapping[str, Any]:
        return {"portals": shown(await self._identities.portals.all())}

    async def set_portal(self, body: Body) -> Mapping[str, Any]:
        made = await self._identities.portals.set(
            _kind(body), text(body, "selector"), text(body, "url", most=2000)
        )
        return {"portal": shown(made)}

    async def drop_portal(self, body: Body) -> Mapping[str, Any]:
        kind, selector = _kind(body), text(body, "selector")
        if not await self._identities.portals.drop(kind, selector):
            raise AuthorityError(Code.NOT_FOUND, "there is no such page", where=selector)
        return {"dropped": {"kind": kind.value, "selector": selector}}


def _kind(body: Body) -> PortalKind:
    try:
        return PortalKind(text(body, "kind"))
    except ValueError:
        raise AuthorityError(
            Code.BAD_REQUEST, f"expected one of {', '.join(PortalKind)}", where="/kind"
        ) from None
