"""Typed services: a contract and its handlers from annotated functions.

    service = TypedService("shop@v1", "Sells things.")

    @service.rpc("Shop.Order", errors=[SoldOut])
    async def order(asked: Order, caller: Caller, stock: KeyValue[Stock]) -> Receipt:
        ...

The contract is `service.contract`; what has no handler (capabilities, uses, buckets, state) is
declared there. Calling the service with a key and an authority gives the `Service` of an instance.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, Unpack

from accord.contracts.authoring import (
    ConsumerSettings,
    Contract,
    Docs,
    JobSettings,
    NameList,
    SurfaceSettings,
    Transfer,
)
from accord.fabric.connection import Authority
from accord.fabric.events import Received
from accord.fabric.jobs import JobContext, JobQueue
from accord.fabric.journal import PayloadPolicy, keep_unless_secret
from accord.fabric.kv import KeyValue
from accord.fabric.objects import ObjectStore
from accord.fabric.operations import OperationContext, Progress, Signals
from accord.fabric.requests import Caller, Request
from accord.fabric.rules.errors import DeclaredError, FabricError
from accord.fabric.rules.handlers import (
    Dependency,
    Handler,
    MigrationFunction,
    read_handler,
    read_migration,
)
from accord.fabric.rules.models import RAW, Model, model_of
from accord.fabric.rules.terms import Manifest, Migration
from accord.fabric.server import ANSWER_SECONDS
from accord.fabric.service import HealthCheck, Service
from accord.fabric.session import Publisher, Session
from accord.fabric.state import StateMap, StateValue
from accord.fabric.transfer import Downloads
from accord.kernel.clock import Clock
from accord.kernel.signing import SigningKey

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

# What any handler may ask for; the surface adds what belongs to one request.
_RESOURCES: Final = (
    *(Session, KeyValue, StateMap, StateValue, ObjectStore, JobQueue, Publisher, Downloads),
)
_EMPTY: Final = "Empty"


@dataclass(frozen=True, slots=True)
class _Surface:
    """A handler with the models of its payload and its result."""

    handler: Handler
    payload: Model[Any]
    result: Model[Any]

    @classmethod
    def of(cls, handler: Handler) -> "_Surface":
        payload = RAW if handler.parameter is None else model_of(handler.payload)
        return cls(handler, payload, RAW if handler.result is None else model_of(handler.result))


class TypedService:
    """A service whose contract is made from its handlers.

    `description` is for whoever accepts the contract; `uses` are the contracts whose events its
    consumers take. A handler's docstring documents its surface. Names default to the contract's and
    the function's: `find_item` of `shop@v1` serves `Shop.FindItem`.
    """

    def __init__(
        self,
        identity: str,
        description: str,
        *,
        display_name: str | None = None,
        kind: Literal["service", "device"] = "service",
        uses: Iterable[Manifest | Contract] = (),
        deadline: float = ANSWER_SECONDS,
        policy: PayloadPolicy = keep_unless_secret,
    ) -> None:
        stem = identity.partition("@")[0]
        self.contract = Contract(
            identity,
            display_name=display_name or stem.replace(".", " ").title(),
            description=description,
            kind=kind,
        )
        self._stem = ".".join(map(_camel, stem.split(".")))
        self._uses = tuple(uses)
        self._deadline = deadline
        self._policy = policy
        self._surfaces: dict[tuple[str, str], _Surface] = {}
        self._events: dict[Any, str] = {}
        self._signals: dict[str, dict[str, Model[Any]]] = {}
        self._migrations: list[MigrationFunction] = []
        self._once: set[str] = set()
        self._has_callers = False
        self._health: HealthCheck | None = None

    def rpc(
        self,
        name: str | None = None,
        *,
        call: NameList = None,
        errors: Sequence[type[DeclaredError]] = (),
        receives: bool = False,
        once: bool = False,
        **settings: Unpack[SurfaceSettings],
    ) -> Callable[[Function], Function]:
        """Serve an RPC by a function; `call` are the capabilities that callers need.

        With `once` its answers are kept by idempotency key, for callers that repeat a request.
        """
        _check_called(name, "rpc")

        def declare(function: Function) -> Function:
            handler, surface = self._read("rpc", function, name, Request, Caller)
            self.contract.rpc(
                surface,
                self._payload(surface, "Request", handler.payload),
                self._payload(surface, "Reply", handler.result),
                call=call,
                errors=self._errors(errors),
                receives=receives,
                **_documented(settings, handler),
            )
            if once:
                self.contract.keeps_answers()
                self._once.add(surface)
            self._serve_callers()
            return function

        return declare

    def feed(
        self,
        name: str | None = None,
        *,
        subscribe: NameList = None,
        **settings: Unpack[SurfaceSettings],
    ) -> Callable[[Function], Function]:
        """Serve a feed by an async generator."""
        _check_called(name, "feed")

        def declare(function: Function) -> Function:
            handler, surface = self._read("feeds", function, name, Request, Caller)
            self.contract.feed(
                surface,
                self._payload(surface, "Request", handler.payload),
                self._payload(surface, "Item", handler.result),
                subscribe=subscribe,
                **_documented(settings, handler),
            )
            self._serve_callers()
            return function

        return declare

    def operation(
        self,
        name: str | None = None,
        *,
        call: NameList = None,
        observe: NameList = None,
        cancel: NameList = None,
        control: NameList = None,
        errors: Sequence[type[DeclaredError]] = (),
        upload: Transfer | None = None,
        **settings: Unpack[SurfaceSettings],
    ) -> Callable[[Function], Function]:
        """Run an operation by a function.

        A parameter of type `Progress[Model]` declares its progress, one of `Signals[Model]` a
        signal, by the parameter's name in camel case. `upload` is the file that callers send
        first. A cancelled handler gets a CancelledError.
        """
        _check_called(name, "operation")

        def declare(function: Function) -> Function:
            handler, surface = self._read(
                *("operations", function, name, OperationContext, Progress, Signals)
            )
            progress = [each.of for each in handler.of_kind(Progress)]
            signals = {_lower_camel(each.parameter): each.of for each in handler.of_kind(Signals)}
            self._signals[surface] = {signal: model_of(of) for signal, of in signals.items()}
            self.contract.operation(
                surface,
                self._payload(surface, "Request", handler.payload),
                self._payload(surface, "Result", handler.result),
                progress=self._payload(surface, "Progress", progress[0]) if progress else None,
                signals={
                    signal: self._payload(surface, _camel(signal), of)
                    for signal, of in signals.items()
                },
                call=call,
                observe=observe,
                cancel=cancel,
                control=control,
                errors=self._errors(errors),
                transfer=upload,
                **_documented(settings, handler),
            )
            self._serve_callers()
            return function

        return declare

    def job(
        self, name: str | None = None, **settings: Unpack[JobSettings]
    ) -> Callable[[Function], Function]:
        """Run the jobs of a queue by a function; submit them with a `JobQueue[Model]`."""
        _check_called(name, "job")

        def declare(function: Function) -> Function:
            handler, queue = self._read("jobs", function, name or function.__name__, JobContext)
            result = handler.result
            self.contract.job(
                queue,
                self._payload(queue, "Payload", handler.payload),
                None if result is None else self._payload(queue, "Result", result),
                docs=_docs(handler),
                **settings,
            )
            return function

        return declare

    def event(
        self,
        name: str | None = None,
        *,
        params: Iterable[str] = (),
        publish: NameList = None,
        subscribe: NameList = None,
        **settings: Unpack[SurfaceSettings],
    ) -> Callable[[Class], Class]:
        """Declare an event by the class of its payload; publish it with a `Publisher[Class]`."""
        _check_called(name, "event")

        def declare(payload: Class) -> Class:
            chosen = name or f"{self._stem}.{payload.__name__}"
            self.contract.event(
                chosen, payload, params=params, publish=publish, subscribe=subscribe, **settings
            )
            self._events[payload] = chosen
            return payload

        return declare

    def consumer(
        self,
        name: str | None = None,
        *,
        uses: Mapping[str, Iterable[str]] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> Callable[[Function], Function]:
        """Take events by a function, each at least once, shared by all instances.

        Without `uses` (names of events by alias) these are the service's own events of the
        parameter's type. A parameter of type `Received` has id, time and name of the event.
        """
        _check_called(name, "consumer")

        def declare(function: Function) -> Function:
            handler, group = self._read(
                "eventConsumers", function, name or function.__name__, Received
            )
            own = None if uses else [self._event_name(handler.payload)]
            self.contract.consumer(group, uses=uses, own=own, docs=_docs(handler), **settings)
            return function

        return declare

    def migration(
        self, state: str | None = None, version: str | None = None
    ) -> Callable[[Function], Function]:
        """Convert stored state of an older version by a plain function, `(older: Old) -> New`.

        Its types say which state and which version `accepts` it means; where several have them,
        name both. What the function returns is validated, and stored when it is put again.
        """
        _check_called(state, "migration")

        def declare(function: Function) -> Function:
            self._migrations.append(read_migration(function, state, version))
            return function

        return declare

    def health(self, check: HealthCheck) -> HealthCheck:
        """Register what heartbeats say of an instance; a check that fails means `unhealthy`."""
        self._health = check
        return check

    def __call__(
        self,
        *,
        key: SigningKey,
        authority: str | Authority,
        store: Any = None,
        clock: Clock | None = None,
        partial: bool = False,
    ) -> Service:
        """The service of one instance; parameters as of `Service`.

        Raises FabricError if the contract is invalid, or a handler asks for a resource that it
        does not declare.
        """
        service = Service(
            self.contract,
            key=key,
            authority=authority,
            uses=self._uses,
            store=store,
            policy=self._policy,
            deadline=self._deadline,
            partial=partial,
            clock=clock,
        )
        if self._health is not None:
            service.health(self._health)
        instance = _Instance(service, self._aliases(), self._migrations_by_state())
        for (section, name), surface in self._surfaces.items():
            if section == "rpc":
                service.rpc(name, once=name in self._once)(_answering(instance, surface))
            elif section == "feeds":
                service.feed(name)(_streaming(instance, surface))
            elif section == "operations":
                service.operation(name)(_operating(instance, surface, self._signals[name]))
            elif section == "jobs":
                service.job(name)(_working(instance, surface))
            else:
                service.events(name)(_taking(instance, surface))
        return service

    def _read(
        self, section: str, function: Callable[..., Any], name: str | None, *provided: type
    ) -> tuple[Handler, str]:
        handler = read_handler(function, (*_RESOURCES, *provided), is_stream=section == "feeds")
        surface = name or f"{self._stem}.{_camel(function.__name__)}"
        self._surfaces[section, surface] = _Surface.of(handler)
        return handler, surface

    def _payload(self, surface: str, part: str, annotation: Any) -> Any:
        """The name of a payload's schema; types without a name are named after the surface."""
        if annotation is None:
            self.contract.schema(_EMPTY, _EMPTY_SCHEMA)
            return _EMPTY
        if isinstance(annotation, type) and annotation.__module__ != "builtins":
            return annotation
        name = "".join(map(_camel, surface.split("."))) + part
        self.contract.schema(name, annotation)
        return name

    def _errors(self, errors: Sequence[type[DeclaredError]]) -> list[str] | None:
        for each in errors:
            if not self.contract.has("errors", each.type):
                self.contract.error(each.type, each.payload())
        return [each.type for each in errors] or None

    def _serve_callers(self) -> None:
        if not self._has_callers:
            self._has_callers = True
            self.contract.serves_callers()

    def _event_name(self, payload: Any) -> str:
        found = self._events.get(payload)
        if found is None:
            raise FabricError(
                f"{getattr(payload, '__name__', payload)} is no event of this service",
                where=self.contract.id,
                mend="decorate the class with `@service.event()`, or name `uses`",
            )
        return found

    def _aliases(self) -> dict[Dependency, tuple[str, Model[Any], Model[Any]]]:
        """What each dependency of a handler stands for, by name and models."""
        found = {}
        for surface in self._surfaces.values():
            for each in surface.handler.dependencies:
                if each.kind is Publisher:
                    found[each] = (self._event_name(each.of), model_of(each.of), RAW)
                elif each.kind is JobQueue:
                    queue, worked = self._queue(each)
                    found[each] = (queue, worked.payload, worked.result)
                elif each.kind in _DECLARED:
                    found[each] = (self._resource(each), _model(each.of), RAW)
        return found

    def _migrations_by_state(self) -> dict[str, dict[str, Migration]]:
        """The migrations of each state store, by older version."""
        types = self.contract.resources("state", "value") | self.contract.resources("state", "map")
        older = {
            (state, version): of
            for state in types
            for version, of in self.contract.accepted(state).items()
        }
        found: dict[str, dict[str, Migration]] = {state: {} for state in types}
        for each in self._migrations:
            meant = [
                (state, version)
                for (state, version), of in older.items()
                if each.is_for(state, types[state], version, of)
            ]
            if len(meant) != 1 or meant[0][1] in found[meant[0][0]]:
                raise _unclear_migration(self.contract.id, each, meant)
            state, version = meant[0]
            found[state][version] = _migrating(each, version)
        for surface in self._surfaces.values():
            for asked in surface.handler.dependencies:
                if asked.kind in (StateMap, StateValue):
                    state = self._resource(asked)
                    _check_migrated(self.contract, state, found[state])
        return found

    def _queue(self, asked: Dependency) -> tuple[str, _Surface]:
        queues = {name: it for (section, name), it in self._surfaces.items() if section == "jobs"}
        name = self._only(asked, {name: it.handler.payload for name, it in queues.items()})
        return name, queues[name]

    def _resource(self, asked: Dependency) -> str:
        return self._only(asked, self.contract.resources(*_DECLARED[asked.kind]))

    def _only(self, asked: Dependency, known: Mapping[str, Any]) -> str:
        """The one name, among those with their types, that a dependency means."""
        if asked.alias is not None:
            found = [asked.alias] if asked.alias in known else []
        else:
            found = [name for name, of in known.items() if asked.of in (None, of)]
        if len(found) == 1:
            return found[0]
        of = f"[{getattr(asked.of, '__name__', asked.of)}]" if asked.of is not None else ""
        raise FabricError(
            f"{'several resources are' if found else 'no resource is'} declared for the parameter "
            f"{asked.parameter!r} of type {asked.kind.__name__}{of}",
            where=self.contract.id,
            mend=f'name one of them: `Annotated[…, "{found[0]}"]`'
            if found
            else "declare it on `service.contract`, with that type",
        )


_DECLARED: Final[Mapping[type, tuple[str, str]]] = {
    KeyValue: ("resources", "kv"),
    ObjectStore: ("resources", "store"),
    StateMap: ("state", "map"),
    StateValue: ("state", "value"),
}
_EMPTY_SCHEMA: Final = {"type": "object"}


@dataclass(slots=True, eq=False)
class _Instance:
    """The resources of one running service, opened once for each session."""

    service: Service
    aliases: Mapping[Dependency, tuple[str, Model[Any], Model[Any]]]
    migrations: Mapping[str, Mapping[str, Migration]]
    _session: Session | None = None
    _opened: dict[Dependency, Any] = field(default_factory=dict)

    def arguments(self, handler: Handler, given: Mapping[type, Any]) -> dict[str, Any]:
        """The arguments of a call, except its payload."""
        session = self.service.session
        if session is not self._session:
            self._session, self._opened = session, {}
        found = {}
        for each in handler.dependencies:
            if each.kind in given:
                found[each.parameter] = given[each.kind]
            elif each.kind not in (Progress, Signals):
                if each not in self._opened:
                    self._opened[each] = self._open(session, each)
                found[each.parameter] = self._opened[each]
        return found

    def _open(self, session: Session, asked: Dependency) -> Any:
        if asked.kind is Session:
            return session
        if asked.kind is Downloads:
            return self.service.downloads
        alias, model, result = self.aliases[asked]
        if asked.kind is KeyValue:
            return session.kv(alias, model)
        if asked.kind is ObjectStore:
            return session.store(alias)
        if asked.kind is JobQueue:
            return session.jobs(alias, model, result)
        if asked.kind is Publisher:
            return session.publisher(alias, model)
        state = session.state_map if asked.kind is StateMap else session.state_value
        return state(alias, self.migrations[alias], model)


def _answering(instance: _Instance, surface: _Surface) -> Callable[[Request, Any], Any]:
    handler = surface.handler

    async def answer(request: Request, payload: Any) -> Any:
        given = {Request: request, Caller: request.who}
        arguments = instance.arguments(handler, given)
        if handler.parameter is not None:
            arguments[handler.parameter] = surface.payload.read(payload, "the request")
        answered = await handler.function(**arguments)
        return {} if handler.result is None else surface.result.write(answered, "the answer")

    return answer


def _streaming(instance: _Instance, surface: _Surface) -> Callable[[Request, Any], Any]:
    handler = surface.handler

    async def stream(request: Request, payload: Any) -> AsyncIterator[Any]:
        given = {Request: request, Caller: request.who}
        arguments = instance.arguments(handler, given)
        if handler.parameter is not None:
            arguments[handler.parameter] = surface.payload.read(payload, "the request")
        async for value in handler.function(**arguments):
            yield surface.result.write(value, "what the feed yields")

    return stream


def _operating(
    instance: _Instance, surface: _Surface, signals: Mapping[str, Model[Any]]
) -> Callable[[OperationContext, Any], Any]:
    handler = surface.handler
    progress = {each.parameter: model_of(each.of) for each in handler.of_kind(Progress)}
    named = {each.parameter: _lower_camel(each.parameter) for each in handler.of_kind(Signals)}

    async def run(context: OperationContext, payload: Any) -> Any:
        arguments = instance.arguments(handler, {OperationContext: context})
        for parameter, model in progress.items():
            arguments[parameter] = Progress(context, model)
        for parameter, name in named.items():
            arguments[parameter] = Signals(context, name, signals[name])
        if handler.parameter is not None:
            arguments[handler.parameter] = surface.payload.read(payload, "the request")
        result = await handler.function(**arguments)
        return {} if handler.result is None else surface.result.write(result, "the result")

    return run


def _working(instance: _Instance, surface: _Surface) -> Callable[[JobContext, Any], Any]:
    handler = surface.handler

    async def work(context: JobContext, payload: Any) -> Any:
        arguments = instance.arguments(handler, {JobContext: context})
        if handler.parameter is not None:
            arguments[handler.parameter] = surface.payload.read(payload, "the payload")
        result = await handler.function(**arguments)
        return None if handler.result is None else surface.result.write(result, "the result")

    return work


def _taking(instance: _Instance, surface: _Surface) -> Callable[[Received], Any]:
    handler = surface.handler

    async def take(event: Received) -> None:
        arguments = instance.arguments(handler, {Received: event})
        if handler.parameter is not None:
            arguments[handler.parameter] = surface.payload.read(event.payload, "the event")
        await handler.function(**arguments)

    return take


def _migrating(found: MigrationFunction, version: str) -> Migration:
    """A migration of JSON values, by a function of models."""
    older, newer = model_of(found.older), model_of(found.newer)

    def migrate(value: Any) -> Any:
        read = older.read(value, f"the entry of version {version}")
        return newer.write(found.function(read), f"what {found.function.__qualname__} returns")

    return migrate


def _check_migrated(contract: Contract, state: str, given: Mapping[str, Migration]) -> None:
    for version, older in contract.accepted(state).items():
        if version not in given:
            of = getattr(older, "__name__", "the older model")
            raise FabricError(
                f"nothing converts the state {state!r} from version {version}",
                where=contract.id,
                mend=f"write a function that takes {of} under `@service.migration()`",
            )


def _unclear_migration(
    contract_id: str, found: MigrationFunction, meant: list[tuple[str, str]]
) -> FabricError:
    types = " to ".join(getattr(of, "__name__", str(of)) for of in (found.older, found.newer))
    name = found.function.__qualname__
    if len(meant) == 1:
        state, version = meant[0]
        what = f"{name} is the second migration of the state {state!r} from version {version}"
        return FabricError(what, where=contract_id)
    if meant:
        choice = " or ".join(f'("{state}", "{version}")' for state, version in meant)
        return FabricError(
            f"{name} may convert several states from {types}",
            where=contract_id,
            mend=f"name one: `@service.migration{choice}`",
        )
    return FabricError(
        f"{name} converts from {types}, and no state accepts that",
        where=contract_id,
        mend="declare it: `service.contract.state(name, Model, version=…, accepts={…: OldModel})`",
    )


def _model(of: Any) -> Model[Any]:
    return RAW if of is None else model_of(of)


def _check_called(name: Any, decorator: str) -> None:
    if name is not None and not isinstance(name, str):
        raise FabricError(
            "the decorator is written with parentheses",
            mend=f"write `@service.{decorator}()`, or give a name",
        )


def _documented(settings: SurfaceSettings, handler: Handler) -> SurfaceSettings:
    docs = _docs(handler)
    return settings if docs is None or "docs" in settings else {**settings, "docs": docs}


def _docs(handler: Handler) -> Docs | None:
    return None if handler.docs is None else Docs(handler.docs)


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.replace("-", "_").split("_"))


def _lower_camel(name: str) -> str:
    camel = _camel(name)
    return camel[:1].lower() + camel[1:]
