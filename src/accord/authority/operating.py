"""What an operator asks of an authority, as verbs that take and give JSON objects.

One table serves the routes under `/admin/v1` of a running authority and the command line on a store
that nobody serves, so that both always do the same. Reads, decides nothing, and shows no secret but
one that it has just made.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from accord.authority import people_operating
from accord.authority.bodies import Body, bad, flag, manifest, maybe, number, session_key, text
from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.history import Act, Word
from accord.authority.identities import Identities
from accord.authority.manifests import digest_of
from accord.authority.records import Compatibility, Kind, PlanState
from accord.authority.showing import shown
from accord.kernel import canonical

Answer: TypeAlias = Mapping[str, Any]
Verb: TypeAlias = Callable[[Body], Awaitable[Answer]]
Reconcile: TypeAlias = Callable[[str | None], Awaitable[Answer]]

OPERATOR: Final = "operator"
_PAGE: Final = 1000

# The verbs whose effect is no change of a deployment, with the word under which the history keeps
# them and the members that say what it was about.
_NOTED: Final[Mapping[str, tuple[Word, tuple[str, ...]]]] = {
    "reconcile": ("reconciled", ("deployment",)),
    "people/add": ("person_added", ("name", "capabilities")),
    "people/set": ("person_changed", ("name", "grant", "revoke", "disabled")),
    "people/link": ("link_issued", ("name", "seconds")),
    "overrides/set": ("override_set", ("contract", "anchor", "capabilities")),
    "overrides/drop": ("override_dropped", ("contract", "anchor")),
    "portals/set": ("portal_set", ("kind", "selector", "url")),
    "portals/drop": ("portal_dropped", ("kind", "selector")),
}


class Operating:
    """Everything that an operator can do.

    Args:
        authority: Contracts, deployments, plans, offers and sessions.
        identities: People, and what they agreed to.
        reconcile: Makes what is desired real; None where nothing runs that could.
        base_url: Where people reach the pages, for links to them.

    Attributes:
        verbs: What can be asked, by name.
    """

    def __init__(
        self,
        authority: Authority,
        identities: Identities,
        reconcile: Reconcile | None = None,
        base_url: str = "",
    ) -> None:
        self._authority = authority
        self._identities = identities
        self._reconcile = reconcile
        self.verbs: Final[Mapping[str, Verb]] = {
            "status": self._status,
            "deploy": self._deploy,
            "deployments/list": self._deployments,
            "deployments/set": self._set_deployment,
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
            "reconcile": self._make_real,
            "sessions/list": self._sessions,
            "sessions/revoke": self._revoke_session,
            **people_operating.verbs(identities, base_url),
        }

    async def do(self, verb: str, body: Body) -> Answer:
        """Do what is asked.

        Raises:
            AuthorityError: There is no such verb, or it is refused.
        """
        if verb not in self.verbs:
            raise AuthorityError(Code.NOT_FOUND, "there is no such verb", where=verb[:80])
        answer = await self.verbs[verb](body)
        if verb in _NOTED:
            word, members = _NOTED[verb]
            await self._authority.note([Act(word, _by(body), why=_about(body, members))])
        return answer

    async def _status(self, _body: Body) -> Answer:
        pending = await self._authority.plans(state=PlanState.PENDING)
        return {
            "deployments": len(await self._authority.deployments()),
            "contracts": len(self._authority.catalog()["contracts"]),
            "pending_plans": len(pending),
            "to_reconcile": list(await self._authority.reconciliations()),
            "issues": shown(self._authority.issues()),
        }

    async def _deploy(self, body: Body) -> Answer:
        """Make a deployment where there is none, and propose a contract for it."""
        deployment, by = text(body, "deployment"), _by(body)
        presented, plan = manifest(body), None
        shapes = _shapes(body)
        for each in (presented, *shapes):
            if each is not None:
                digest_of(each)  # what is not a contract is refused before anything is made
        known = {each.id for each in await self._authority.deployments()}
        if deployment not in known:
            await self._authority.create_deployment(
                deployment,
                _one_of(Kind, body, "kind", Kind.SERVICE),
                _one_of(Compatibility, body, "compatibility", Compatibility.STRICT),
                by,
            )
        if presented is not None:
            plan = await self._authority.propose(deployment, presented, by, shapes)
            if plan is not None and plan.state is PlanState.PENDING and body.get("accept") is True:
                plan = await self._authority.accept(plan.id, by)
        return {"deployment": deployment, "plan": shown(plan)}

    async def _deployments(self, _body: Body) -> Answer:
        return {"deployments": shown(await self._authority.deployments())}

    async def _set_deployment(self, body: Body) -> Answer:
        deployment = text(body, "deployment")
        if "compatibility" in body:
            chosen = _one_of(Compatibility, body, "compatibility", Compatibility.STRICT)
            await self._authority.set_compatibility(deployment, chosen, _by(body))
        if "disabled" in body:
            await self._authority.set_disabled(deployment, flag(body, "disabled"), _by(body))
        return {"deployment": shown(await self._authority.deployment(deployment))}

    async def _instances(self, body: Body) -> Answer:
        wanted = maybe(body, "deployment")
        named = [each.id for each in await self._authority.deployments()]
        return {
            "instances": [
                shown(instance)
                for each in (named if wanted is None else [wanted])
                for instance in await self._authority.instances(each)
            ]
        }

    async def _add_instance(self, body: Body) -> Answer:
        key = session_key(body, "key")
        name = maybe(body, "name") or key[:8]
        made = await self._authority.add_instance(text(body, "deployment"), key, name, _by(body))
        return {"instance": shown(made)}

    async def _set_instance(self, body: Body) -> Answer:
        key = session_key(body, "key")
        await self._authority.set_instance_disabled(key, flag(body, "disabled"), _by(body))
        return {"key": key, "disabled": flag(body, "disabled")}

    async def _remove_instance(self, body: Body) -> Answer:
        key = session_key(body, "key")
        await self._authority.remove_instance(key, _by(body))
        return {"removed": key}

    async def _plans(self, body: Body) -> Answer:
        state = _one_of(PlanState, body, "state", None)
        found = await self._authority.plans(maybe(body, "deployment"), state)
        return {"plans": shown(found)}

    async def _plan(self, body: Body) -> Answer:
        return {"plan": shown(await self._authority.plan(text(body, "plan")))}

    async def _accept(self, body: Body) -> Answer:
        return {"plan": shown(await self._authority.accept(text(body, "plan"), _by(body)))}

    async def _reject(self, body: Body) -> Answer:
        why = maybe(body, "why") or ""
        return {"plan": shown(await self._authority.reject(text(body, "plan"), _by(body), why))}

    async def _offers(self, body: Body) -> Answer:
        return {"offers": shown(await self._authority.offers(maybe(body, "deployment")))}

    async def _catalog(self, _body: Body) -> Answer:
        catalog = await self._authority.refresh()
        return {"catalog": shown(catalog), "issues": shown(self._authority.issues())}

    async def _history(self, body: Body) -> Answer:
        found = await self._authority.history(
            maybe(body, "deployment"),
            number(body, "since", 0),
            number(body, "limit", _PAGE, most=_PAGE),
        )
        return {"history": [each.to_dict() for each in found]}

    async def _make_real(self, body: Body) -> Answer:
        if self._reconcile is None:
            raise AuthorityError(
                Code.UNAVAILABLE,
                "no authority runs here that could reconcile",
                mend="start it with `accord authority serve`",
            )
        return await self._reconcile(maybe(body, "deployment"))

    async def _sessions(self, body: Body) -> Answer:
        of = maybe(body, "of")
        if of is not None and of not in {each.id for each in await self._authority.deployments()}:
            of = (await self._identities.people.find(of)).id
        return {"sessions": shown(await self._authority.sessions(subject=of))}

    async def _revoke_session(self, body: Body) -> Answer:
        key = session_key(body, "key")
        await self._authority.revoke_session(key, _by(body))
        return {"revoked": key}


def _by(body: Body) -> str:
    return maybe(body, "by") or OPERATOR


def _about(body: Body, members: Sequence[str]) -> str:
    """What a verb was asked for, in a line; never what it answered, which may be a secret."""
    told = {name: body[name] for name in members if body.get(name) not in (None, [])}
    return ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in told.items()
    )


def _shapes(body: Body) -> list[bytes]:
    given = body.get("shapes", [])
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise bad("expected a list of manifests", "/shapes")
    return [canonical.encode(each) for each in given]


def _one_of(kind: Any, body: Body, member: str, default: Any) -> Any:
    value = body.get(member)
    if value is None:
        return default
    try:
        return kind(value)
    except ValueError:
        raise bad(f"expected one of {', '.join(kind)}", f"/{member}") from None
