"""`up`, `down` and `status`: start what is not healthy, stop what was started and nothing else, tell what is."""

import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from afm_core.config import ConfigError
from afm_core.config.environment import boot_id, read_services_environment
from afm_core.services import processes, scratch
from afm_core.services.catalogue import CATALOGUE, Options, Setup
from afm_core.services.client import Variables, credentials_of, variables_of, write_environment
from afm_core.services.planning import plan_ports, refuse_other_ports, with_needs
from afm_core.services.ports import with_partner
from afm_core.services.postgres import VARIABLE, Postgres, postgres_of
from afm_core.services.starting import Starter
from afm_core.services.state import (
    Places,
    ServiceName,
    ServiceState,
    StackRecord,
    load_record,
    locked,
    save_record,
)

Progress = Callable[[str], None]
_ON_POSTGRES = {ServiceName.PREFECT, ServiceName.MLFLOW}


@dataclass(frozen=True)
class ServiceStatus:
    """One recorded server. `problem`: why it is not healthy, else empty. `since`: when it was started (ISO, UTC)."""

    name: ServiceName
    title: str
    url: str
    healthy: bool
    pid: int
    state: ServiceState
    problem: str
    since: str
    log: str


def up(home: Path, options: Options, only: Collection[ServiceName], progress: Progress) -> list[ServiceStatus]:
    """Start what does not run healthily; what does stays untouched. Of several at once, one works and the others wait.

    Args:
        only: the services to start (with what they need); empty: all.
        progress: is told, in one line each, what happens.

    Returns:
        All servers of this home.

    Raises:
        ConfigError: a port is in use, an option contradicts what runs, Postgres cannot be used, a program is missing.
        StartFailed: a server did not become healthy; what this call started is stopped again.
    """
    places = Places(home)
    with locked(places, lambda: progress("another `afm up` or `afm down` works; waiting for it")):
        places.make()
        _Up(places, options, progress).run(with_needs(only or set(ServiceName)))
        return status(home)


def down(home: Path, progress: Progress) -> list[ServiceName]:
    """Stop all servers of this home; their data and logs stay.

    Returns:
        The services that were recorded.

    Raises:
        ConfigError: the record is damaged.
        RuntimeError: a process could not be ended.
    """
    places = Places(home)
    if not places.root.exists():
        return []
    with locked(places, lambda: progress("another `afm up` or `afm down` works; waiting for it")):
        record = load_record(places)
        places.environment.unlink(missing_ok=True)  # first: from now on nobody joins
        if record is None:
            return []
        _stop(record, set(ServiceName))
        scratch.remove(record.scratch)
        places.record.unlink()
        return list(record.services)


def status(home: Path) -> list[ServiceStatus]:
    """All recorded servers, each asked whether it is healthy.

    Raises:
        ConfigError: the record is damaged.
    """
    places = Places(home)
    record = load_record(places)
    if record is None:
        return []
    try:
        variables = read_services_environment(places.environment)
    except ConfigError:
        variables = {}  # the checks that need the credentials say so
    setup = _setup(places, record, variables, Options())
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: _status(name, record, setup), record.services))


def is_alive(record: StackRecord, name: ServiceName) -> bool:
    """Whether the recorded process exists and is that very process."""
    service = record.services[name]
    return record.boot_id == boot_id() and processes.start_of(service.pid) == service.start


def _status(name: ServiceName, record: StackRecord, setup: Setup) -> ServiceStatus:
    service, known = CATALOGUE[name], record.services[name]
    problem = service.check(setup) if is_alive(record, name) else None
    if is_alive(record, name):  # asked again: a server that dies while it is asked is dead, not unhealthy
        state = ServiceState.UNHEALTHY if problem else ServiceState.RUNNING
    else:
        rebooted = record.boot_id != boot_id()
        problem = "the machine was restarted since" if rebooted else f"process {known.pid} is gone; see its log"
        state = ServiceState.DEAD
    return ServiceStatus(
        name=name,
        title=service.title,
        url=service.url(setup),
        healthy=state is ServiceState.RUNNING,
        pid=known.pid,
        state=state,
        problem=problem or "",
        since=known.since,
        log=str(setup.places.log(name)),
    )


def _setup(places: Places, record: StackRecord, variables: Mapping[str, Mapping[str, str]], options: Options) -> Setup:
    """What is needed to check the recorded servers."""
    ports = {port: number for one in record.services.values() for port, number in one.ports.items()}
    credentials, _ = credentials_of(variables)
    return Setup(places, options, ports, credentials, joined={}, ray_directory=places.data(ServiceName.RAY))


def _stop(record: StackRecord, names: Collection[ServiceName]) -> None:
    """End these servers and all that descends from them; the worker before what its runs use.

    The worker would kill its runs at once: they are asked first, so that they can record that they were stopped.
    """
    if record.boot_id != boot_id():
        return
    if ServiceName.WORKER in names and (worker := record.services.get(ServiceName.WORKER)):
        mark = f"{record.stack}/{ServiceName.WORKER}"
        processes.stop_children(worker.pid, mark, CATALOGUE[ServiceName.WORKER].grace)
    for wave in ({ServiceName.WORKER} & set(names), set(names) - {ServiceName.WORKER}):
        leaders = {record.services[name].pid: CATALOGUE[name].grace for name in wave if name in record.services}
        left = processes.stop([f"{record.stack}/{name}" for name in wave], leaders)
        if left:
            raise RuntimeError(f"processes {', '.join(map(str, left))} of {', '.join(wave)} could not be ended")


class _Up:
    """One `afm up`, under the lock."""

    def __init__(self, places: Places, options: Options, progress: Progress) -> None:
        self._places = places
        self._options = options
        self._progress = progress
        self._before = load_record(places)
        self._record = self._base()
        try:
            variables = read_services_environment(places.environment)
        except ConfigError:
            variables = {}
        self._credentials, lost = credentials_of(variables)
        self._lost = lost & self._record.services.keys()
        self._setup = _setup(places, self._record, variables, options)

    def run(self, wanted: Collection[ServiceName]) -> None:
        """Start those of `wanted` that are not healthy."""
        healthy = self._healthy()
        refuse_other_ports(self._record, healthy, self._options.ports)
        names = (set(wanted) | self._lost) - healthy
        postgres = self._postgres(names)
        ports = self._ports(names, healthy)
        joined = {
            name: variables_of(name, ports, self._credentials)
            for name in ServiceName
            if name in names or name in self._record.services
        }
        digest = hashlib.sha256(json.dumps(joined, sort_keys=True).encode()).hexdigest()
        outdated = {name for name in healthy if CATALOGUE[name].joins and self._record.services[name].joined != digest}
        for name in sorted(outdated):
            self._progress(f"{name}: starts anew, because addresses or credentials of the stack have changed")
        names |= outdated
        if outdated:
            _stop(self._record, outdated)
        if names:
            self._start(names, self._final_setup(ports, joined, postgres), digest)
        write_environment(self._places, joined)

    def _base(self) -> StackRecord:
        """The record to go on from: of this boot, else a new one."""
        if self._before is not None and self._before.boot_id == boot_id():
            return self._before
        if self._before is not None:
            scratch.remove(self._before.scratch)
        return StackRecord(home=str(self._places.home), boot_id=boot_id(), stack=secrets.token_hex(16))

    def _healthy(self) -> set[ServiceName]:
        """Recorded servers that need no start. A busy machine may be slow to answer: ask again."""
        found = set()
        for name in self._record.services.keys() - self._lost:
            for _ in range(3):
                if not is_alive(self._record, name):
                    break
                if CATALOGUE[name].check(self._setup) is None:
                    found.add(name)
                    break
        return found

    def _postgres(self, names: Collection[ServiceName]) -> Postgres | None:
        """Where Prefect and MLflow keep their data. Both, always, in the same place as before."""
        given = postgres_of(self._options.postgres)
        known = self._record.services.keys() & _ON_POSTGRES
        place, before = given.place if given else None, self._record.postgres
        if known and place and place != before:
            raise ConfigError(f"this stack keeps its data in {before or 'SQLite'}, not {place}: `afm down` first")
        if known and before and not place and _ON_POSTGRES & set(names):
            raise ConfigError(f"this stack keeps its data in {before}: give {VARIABLE} again, no password is stored")
        if given and _ON_POSTGRES & set(names):
            given.make_databases()
        return given

    def _ports(self, names: Collection[ServiceName], healthy: Collection[ServiceName]) -> dict[str, int]:
        """Ports of all services. What is left of the servers to be started is stopped, for it holds their ports."""
        _stop(self._record, names)
        kept = {port: number for name in healthy for port, number in self._record.services[name].ports.items()}
        paired = {port: need.paired for service in CATALOGUE.values() for port, need in service.ports.items()}
        taken = [one for port, number in kept.items() for one in with_partner(number, paired[port])]
        known = dict(self._setup.ports)
        return known | plan_ports(names, self._options.ports, known, taken)

    def _final_setup(
        self, ports: Mapping[str, int], joined: Mapping[ServiceName, Variables], postgres: Postgres | None
    ) -> Setup:
        ray_directory, made = scratch.ray_directory(self._places, self._record.scratch)
        place = postgres.place if postgres else self._record.postgres
        self._record = self._record.model_copy(update={"scratch": made, "postgres": place})
        return replace(
            self._setup,
            ports=ports,
            credentials=self._credentials,
            joined=joined,
            ray_directory=ray_directory,
            postgres=postgres,
        )

    def _start(self, names: Collection[ServiceName], setup: Setup, digest: str) -> None:
        """Start them; if one fails, stop all that was started and leave the record as it was."""
        starter = Starter(setup, self._record.stack, digest, self._progress)
        others = {name: one for name, one in self._record.services.items() if name not in names}

        def note() -> None:
            self._record = self._record.model_copy(update={"services": others | starter.started})
            save_record(self._places, self._record)

        note()  # what is started next is found by its mark, even if this command is killed before it can note it
        try:
            starter.run(names, note)
        except BaseException:
            self._progress(f"stopping what was started: {', '.join(starter.started) or 'nothing'}")
            _stop(self._record, starter.started)
            self._forget()
            raise

    def _forget(self) -> None:
        """The record as it was before this call."""
        before = self._before if self._before is not None and self._before.stack == self._record.stack else None
        if before is None or before.scratch != self._record.scratch:
            scratch.remove(self._record.scratch)
        if before is None:
            self._places.record.unlink()
        else:
            save_record(self._places, before)
