"""Operators' commands, which take and return JSON objects.

One table serves the routes under `/admin/v1` of a running authority and the command line on a store
that nobody serves. Shows no secret but one that it has just created.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from accord.authority.deployments import OPERATOR
from accord.authority.identities import Identities, PortalKind
from accord.authority.identities.login import LINK_SECONDS
from accord.authority.manifests import digest_of
from accord.authority.registry import check_contract_id
from accord.authority.revisions import AuditAction, AuditEvent
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import (
    Body,
    bad_request,
    read_flag,
    read_manifest,
    read_number,
    read_optional_text,
    read_session_key,
    read_text,
    read_texts,
    storable,
)
from accord.authority.rules.records import Compatibility, DeploymentKind, PlanState
from accord.authority.service import Authority
from accord.contracts.compatibility import Versions
from accord.kernel import canonical


def to_json(value: Any) -> Any:
    """A record, or anything made of records, as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_member_name(key): to_json(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(to_json, value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [to_json(each) for each in value]
    return value


def _member_name(key: Any) -> str:
    return " ".join(key) if isinstance(key, tuple) else str(key)


_YEAR: Final = 365 * 86_400


JsonObject: TypeAlias = Mapping[str, Any]
AdminCommand: TypeAlias = Callable[[Body], Awaitable[JsonObject]]
ReconcileCommand: TypeAlias = Callable[[str | None], Awaitable[JsonObject]]

_PAGE: Final = 1000
_TOKEN_SECONDS: Final = 90 * 86_400
_SELECTIONS: Final = ("latest", "live", "catalog", "all")

TOKEN_MEMBER: Final = "registryToken"  # noqa: S105 - a name
"""The member in which the border names the registry token of a request, and nobody else."""

# Commands that change no deployment: their action in the history, and the members to show there.
_AUDITED: Final[Mapping[str, tuple[AuditAction, tuple[str, ...]]]] = {
    "reconcile": ("reconciled", ("deployment",)),
    "people/add": ("person_added", ("name", "capabilities")),
    "people/set": ("person_changed", ("name", "grant", "revoke", "disabled")),
    "people/link": ("link_issued", ("name", "seconds")),
    "overrides/set": ("override_set", ("contract", "anchor", "capabilities")),
    "overrides/drop": ("override_dropped", ("contract", "anchor")),
    "portals/set": ("portal_set", ("kind", "selector", "url")),
    "portals/drop": ("portal_dropped", ("kind", "selector")),
}


class AdminCommands:
    """Everything that an operator can do; `reconcile` is None where no NATS system is available."""

    def __init__(
        self,
        authority: Authority,
        identities: Identities,
        reconcile: ReconcileCommand | None = None,
        base_url: str = "",
    ) -> None:
        self._authority = authority
        self._identities = identities
        self._reconcile = reconcile
        self._base_url = base_url.rstrip("/")
        self.verbs: Final[Mapping[str, AdminCommand]] = {
            "status": self._status,
            "deploy": self._deploy,
            "deployments/list": self._deployments,
            "deployments/show": self._deployment,
            "deployments/set": self._set_deployment,
            "deployments/narrow": self._narrow,
            "instances/list": self._instances,
            "instances/add": self._add_instance,
            "instances/set": self._set_instance,
            "instances/remove": self._remove_instance,
            "plans/list": self._plans,
            "plans/show": self._plan,
            "plans/accept": self._accept,
            "plans/reject": self._reject,
            "offers/list": self._offers,
            "catalog": self._catalog,
            "history": self._history,
            "registry/push": self._push,
            "registry/pull": self._pull,
            "registry/list": self._registered,
            "registry/log": self._registry_log,
            "registry/versions": self._versions,
            "registry/users": self._users,
            "registry/tokens/add": self._add_token,
            "registry/tokens/list": self._list_tokens,
            "registry/tokens/revoke": self._revoke_token,
            "reconcile": self._make_real,
            "sessions/list": self._sessions,
            "sessions/revoke": self._revoke_session,
            "people/list": self._people,
            "people/add": self._add_person,
            "people/set": self._set_person,
            "people/link": self._link,
            "people/consents": self._consents,
            "overrides/list": self._overrides,
            "overrides/set": self._set_override,
            "overrides/drop": self._drop_override,
            "portals/list": self._portals,
            "portals/set": self._set_portal,
            "portals/drop": self._drop_portal,
        }

    async def do(self, verb: str, body: Body) -> JsonObject:
        """Run a command; `AuthorityError` if there is none of that name, or it is refused."""
        if verb not in self.verbs:
            raise AuthorityError(Code.NOT_FOUND, "there is no such command", where=verb[:80])
        answer = await self.verbs[verb](body)
        if verb in _AUDITED:
            word, members = _AUDITED[verb]
            await self._authority.revisions.note(
                [AuditEvent(word, _by(body), why=_about(body, members))]
            )
        return answer

    async def _status(self, _body: Body) -> JsonObject:
        pending = await self._authority.plans.all(state=PlanState.PENDING)
        return {
            "deployments": len(await self._authority.deployments.all()),
            "contracts": len(self._authority.catalog.projection.catalog["contracts"]),
            "pending_plans": len(pending),
            "to_reconcile": list(await self._authority.deployments.unreconciled()),
            "issues": to_json(self._authority.catalog.projection.issues),
        }

    async def _deploy(self, body: Body) -> JsonObject:
        """Create the deployment if it is missing, and propose a contract for it."""
        deployment, by = read_text(body, "deployment"), _by(body)
        presented, plan = read_manifest(body), None
        shapes = _shapes(body)
        for each in (presented, *shapes):
            if each is not None:
                digest_of(each)  # what is not a contract is refused before anything is made
        known = {each.id for each in await self._authority.deployments.all()}
        if deployment not in known:
            await self._authority.deployments.create(
                deployment,
                _one_of(DeploymentKind, body, "kind", DeploymentKind.SERVICE),
                _one_of(Compatibility, body, "compatibility", Compatibility.STRICT),
                by,
            )
        if presented is not None:
            plan = await self._authority.plans.propose(deployment, presented, by, shapes)
            if plan is not None and plan.state is PlanState.PENDING and body.get("accept") is True:
                plan = await self._authority.plans.accept(plan.id, by)
        return {"deployment": deployment, "plan": to_json(plan)}

    async def _deployments(self, _body: Body) -> JsonObject:
        return {"deployments": to_json(await self._authority.deployments.all())}

    async def _deployment(self, body: Body) -> JsonObject:
        found = await self._authority.deployments.get(read_text(body, "deployment"))
        return {"deployment": to_json(found)}

    async def _set_deployment(self, body: Body) -> JsonObject:
        deployment = read_text(body, "deployment")
        if "compatibility" in body:
            chosen = _one_of(Compatibility, body, "compatibility", Compatibility.STRICT)
            await self._authority.deployments.set_compatibility(deployment, chosen, _by(body))
        if "calls" in body:
            await self._authority.deployments.grant_calls(
                deployment, read_texts(body, "calls"), _by(body)
            )
        if "disabled" in body:
            await self._authority.deployments.set_disabled(
                deployment, read_flag(body, "disabled"), _by(body)
            )
        return {"deployment": to_json(await self._authority.deployments.get(deployment))}

    async def _narrow(self, body: Body) -> JsonObject:
        """Revoke what was accepted: some of it by name, or `everything`."""
        deployment = read_text(body, "deployment")
        surfaces, capabilities = read_texts(body, "surfaces"), read_texts(body, "capabilities")
        accepted = (await self._authority.deployments.get(deployment)).desired
        if body.get("everything") is True:
            surfaces, capabilities = tuple(accepted.surfaces), tuple(accepted.capabilities)
        elif not surfaces and not capabilities:
            raise bad_request("expected surfaces or capabilities to take back", "/surfaces")
        for member, given, known in (
            ("surfaces", surfaces, accepted.surfaces),
            ("capabilities", capabilities, accepted.capabilities),
        ):
            if unknown := sorted(set(given) - known):
                raise AuthorityError(
                    Code.NOT_FOUND,
                    f"{storable(unknown[0])!r} was not accepted for {deployment}",
                    where=f"/{member}",
                    mend="name them as `accord authority show` lists them",
                )
        changed = await self._authority.deployments.narrow(
            deployment, surfaces=surfaces, capabilities=capabilities, by=_by(body)
        )
        return {"deployment": to_json(changed)}

    async def _instances(self, body: Body) -> JsonObject:
        wanted = read_optional_text(body, "deployment")
        named = [each.id for each in await self._authority.deployments.all()]
        return {
            "instances": [
                to_json(instance)
                for each in (named if wanted is None else [wanted])
                for instance in await self._authority.deployments.instances(each)
            ]
        }

    async def _add_instance(self, body: Body) -> JsonObject:
        key = read_session_key(body, "key")
        # Names begin with a letter or a digit, keys may not.
        name = read_optional_text(body, "name") or key.lstrip("-_")[:8] or "instance"
        made = await self._authority.deployments.add_instance(
            read_text(body, "deployment"), key, name, _by(body)
        )
        return {"instance": to_json(made)}

    async def _set_instance(self, body: Body) -> JsonObject:
        key = read_session_key(body, "key")
        await self._authority.deployments.set_instance_disabled(
            key, read_flag(body, "disabled"), _by(body)
        )
        return {"key": key, "disabled": read_flag(body, "disabled")}

    async def _remove_instance(self, body: Body) -> JsonObject:
        key = read_session_key(body, "key")
        await self._authority.deployments.remove_instance(key, _by(body))
        return {"removed": key}

    async def _plans(self, body: Body) -> JsonObject:
        state = _one_of(PlanState, body, "state", None)
        found = await self._authority.plans.all(read_optional_text(body, "deployment"), state)
        return {"plans": to_json(found)}

    async def _plan(self, body: Body) -> JsonObject:
        return {"plan": to_json(await self._authority.plans.get(read_text(body, "plan")))}

    async def _accept(self, body: Body) -> JsonObject:
        return {
            "plan": to_json(await self._authority.plans.accept(read_text(body, "plan"), _by(body)))
        }

    async def _reject(self, body: Body) -> JsonObject:
        why = read_optional_text(body, "why") or ""
        return {
            "plan": to_json(
                await self._authority.plans.reject(read_text(body, "plan"), _by(body), why)
            )
        }

    async def _offers(self, body: Body) -> JsonObject:
        return {
            "offers": to_json(
                await self._authority.offers.all(read_optional_text(body, "deployment"))
            )
        }

    async def _catalog(self, _body: Body) -> JsonObject:
        projection = await self._authority.catalog.refresh()
        return {"catalog": to_json(projection.catalog), "issues": to_json(projection.issues)}

    async def _history(self, body: Body) -> JsonObject:
        found = await self._authority.revisions.history(
            read_optional_text(body, "deployment"),
            read_number(body, "since", 0),
            read_number(body, "limit", _PAGE, most=_PAGE),
        )
        return {"history": [each.to_dict() for each in found]}

    async def _push(self, body: Body) -> JsonObject:
        """Store a version, which accepts nothing; only operators change texts of known ones."""
        manifest = read_manifest(body)
        if manifest is None:
            raise bad_request("expected a manifest", "/manifest")
        note = read_optional_text(body, "note") or ""
        is_operator = body.get(TOKEN_MEMBER) is None
        pushed, is_new = await self._authority.registry.push(
            manifest, _by(body), note, describes=is_operator
        )
        return {"version": to_json(pushed), "is_new": is_new}

    async def _pull(self, body: Body) -> JsonObject:
        """A manifest: of the last version, of a number, or of a digest that is known."""
        registry, identity = self._authority.registry, _contract_id(body)
        wanted = read_optional_text(body, "digest")
        if wanted is None:
            found = await registry.find(identity, read_number(body, "number", 0) or None)
            manifest = await registry.manifest(found.digest)
            return {"version": to_json(found), "manifest": manifest}
        manifest = await registry.manifest(wanted)
        if manifest["id"] != identity:
            raise AuthorityError(
                Code.NOT_FOUND, f"this is no version of {identity}", where=storable(wanted[:80])
            )
        return {"version": None, "manifest": manifest}

    async def _registered(self, body: Body) -> JsonObject:
        registry = self._authority.registry
        if body.get("contract") is None:
            return {"contracts": to_json(await registry.contracts())}
        identity = _contract_id(body)
        states = {each.digest: each for each in await registry.select(identity, "all")}
        pushed = await registry.history(identity)
        return {
            "versions": [
                {**to_json(each), "states": list(states[each.digest].states)} for each in pushed
            ],
            "unregistered": [
                {"digest": each.digest, "states": list(each.states)}
                for each in states.values()
                if each.number is None
            ],
        }

    async def _registry_log(self, body: Body) -> JsonObject:
        found = await self._authority.registry.log(
            _contract_id(body), read_number(body, "since", 0)
        )
        return {"log": [each.to_dict() for each in found]}

    async def _versions(self, body: Body) -> JsonObject:
        """Versions to compare with; `registry/pull` has their manifests."""
        which = read_optional_text(body, "which") or "latest"
        if which not in _SELECTIONS:
            raise bad_request(f"expected one of {', '.join(_SELECTIONS)}", "/which")
        found = await self._authority.registry.select(_contract_id(body), cast("Versions", which))
        return {
            "versions": [
                {"digest": each.digest, "number": each.number, "name": each.name} for each in found
            ]
        }

    async def _users(self, body: Body) -> JsonObject:
        found = await self._authority.registry.users(_contract_id(body))
        return {"users": [{**to_json(each), "surfaces": sorted(each.surfaces)} for each in found]}

    async def _add_token(self, body: Body) -> JsonObject:
        token, secret = await self._authority.registry.tokens.mint(
            read_text(body, "name"),
            _by(body),
            seconds=read_number(body, "seconds", _TOKEN_SECONDS),
            may_push=body.get("may_push") is True,
        )
        return {"registry_token": to_json(token), "token": secret}

    async def _list_tokens(self, _body: Body) -> JsonObject:
        return {"tokens": to_json(await self._authority.registry.tokens.all())}

    async def _revoke_token(self, body: Body) -> JsonObject:
        name = read_text(body, "name")
        await self._authority.registry.tokens.revoke(name, _by(body))
        return {"revoked": name}

    async def _make_real(self, body: Body) -> JsonObject:
        if self._reconcile is None:
            raise AuthorityError(
                Code.UNAVAILABLE,
                "no authority is running here to reconcile",
                mend="start it with `accord authority serve`",
            )
        return await self._reconcile(read_optional_text(body, "deployment"))

    async def _sessions(self, body: Body) -> JsonObject:
        of = read_optional_text(body, "of")
        if of is not None and of not in {
            each.id for each in await self._authority.deployments.all()
        }:
            of = (await self._identities.people.find(of)).id
        return {"sessions": to_json(await self._authority.sessions.all(subject=of))}

    async def _revoke_session(self, body: Body) -> JsonObject:
        key = read_session_key(body, "key")
        await self._authority.sessions.revoke(key, _by(body))
        return {"revoked": key}

    async def _people(self, _body: Body) -> JsonObject:
        return {"people": to_json(await self._identities.people.all())}

    async def _add_person(self, body: Body) -> JsonObject:
        person = await self._identities.people.add(
            read_text(body, "name"), read_texts(body, "capabilities")
        )
        return {"person": to_json(person)}

    async def _set_person(self, body: Body) -> JsonObject:
        """Change the members that are named: capabilities, or whether the person is disabled."""
        person = await self._identities.people.find(read_text(body, "name"))
        keys = (person.capabilities | set(read_texts(body, "grant"))) - set(
            read_texts(body, "revoke")
        )
        if keys != person.capabilities:
            person = await self._identities.set_capabilities(person.id, keys)
        if "disabled" in body:
            person = await self._identities.set_disabled(person.id, read_flag(body, "disabled"))
        return {"person": to_json(person)}

    async def _link(self, body: Body) -> JsonObject:
        person = await self._identities.people.find(read_text(body, "name"))
        seconds = read_number(body, "seconds", LINK_SECONDS, most=_YEAR)
        secret, until = await self._identities.login.link(person.id, seconds)
        return {"url": f"{self._base_url}/login/link/{secret}", "expires_at": until}

    async def _consents(self, body: Body) -> JsonObject:
        person = await self._identities.people.find(read_text(body, "name"))
        return {"consents": to_json(await self._identities.consents.answers(person.id))}

    async def _overrides(self, _body: Body) -> JsonObject:
        return {"overrides": to_json(await self._identities.consents.overrides())}

    async def _set_override(self, body: Body) -> JsonObject:
        made = await self._identities.set_override(
            read_text(body, "contract"), read_text(body, "anchor"), read_texts(body, "capabilities")
        )
        return {"override": to_json(made)}

    async def _drop_override(self, body: Body) -> JsonObject:
        contract, anchor = read_text(body, "contract"), read_text(body, "anchor")
        await self._identities.drop_override(contract, anchor)
        return {"dropped": {"contract": contract, "anchor": anchor}}

    async def _portals(self, _body: Body) -> JsonObject:
        return {"portals": to_json(await self._identities.portals.all())}

    async def _set_portal(self, body: Body) -> JsonObject:
        made = await self._identities.portals.set(
            _portal_kind(body), read_text(body, "selector"), read_text(body, "url", most=2000)
        )
        return {"portal": to_json(made)}

    async def _drop_portal(self, body: Body) -> JsonObject:
        kind, selector = _portal_kind(body), read_text(body, "selector")
        if not await self._identities.portals.drop(kind, selector):
            raise AuthorityError(Code.NOT_FOUND, "there is no such page", where=selector)
        return {"dropped": {"kind": kind.value, "selector": selector}}


def _by(body: Body) -> str:
    return read_optional_text(body, TOKEN_MEMBER) or read_optional_text(body, "by") or OPERATOR


def _contract_id(body: Body) -> str:
    return check_contract_id(read_text(body, "contract"))


def _about(body: Body, members: Sequence[str]) -> str:
    """The members of a request in one line; never its answer, which may hold a secret."""
    shown = {name: body[name] for name in members if body.get(name) not in (None, [])}
    return ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in shown.items()
    )


def _shapes(body: Body) -> list[bytes]:
    given = body.get("shapes", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise bad_request("expected a list of manifests", "/shapes")
    return [canonical.encode(each) for each in given]


def _one_of(kind: Any, body: Body, member: str, default: Any) -> Any:
    value = body.get(member)
    if value is None:
        return default
    try:
        return kind(value)
    except ValueError:
        raise bad_request(f"expected one of {', '.join(kind)}", f"/{member}") from None


def _portal_kind(body: Body) -> Any:
    return _one_of(PortalKind, {"kind": read_text(body, "kind")}, "kind", None)
