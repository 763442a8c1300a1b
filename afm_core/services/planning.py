"""Which port each server gets, and what stands in the way."""

from collections.abc import Collection, Mapping

from afm_core.config import ConfigError
from afm_core.services import ports
from afm_core.services.catalogue import CATALOGUE, SETTABLE_PORTS, Service
from afm_core.services.state import ServiceName, StackRecord


def with_needs(names: Collection[ServiceName]) -> set[ServiceName]:
    """These services and all that they need."""
    wanted = set(names)
    while more := {need for name in wanted for need in CATALOGUE[name].needs} - wanted:
        wanted |= more
    return wanted


def refuse_other_ports(record: StackRecord, running: Collection[ServiceName], asked: Mapping[str, int]) -> None:
    """A running server cannot move.

    Raises:
        ConfigError: the user asks for another port than it has.
    """
    for name in running:
        for port, number in record.services[name].ports.items():
            if asked.get(port, number) != number:
                raise ConfigError(f"{name} already runs with --{port}-port {number}; `afm down` first to move it")


def plan_ports(
    names: Collection[ServiceName], asked: Mapping[str, int], known: Mapping[str, int], taken: Collection[int]
) -> dict[str, int]:
    """A port for each need of these services: the one asked for, else the one it had, else its default, else any.

    Args:
        known: ports that these services had before.
        taken: ports of services that stay.

    Raises:
        ConfigError: a port that cannot be exchanged for another is in use.
    """
    plan: dict[str, int] = {}
    used = set(taken)
    needs = [(CATALOGUE[name], port, need) for name in sorted(names) for port, need in CATALOGUE[name].ports.items()]
    # Fixed ports come first, so that none is chosen which a later service insists on.
    for fixed in (True, False):
        for service, port, need in needs:
            number = asked.get(port) or need.default
            if (number is not None) is not fixed:
                continue
            if number is None:
                number = _any_port(known.get(port), need.paired, used)
            elif asked.get(port) is None:
                number = known.get(port, number)
            _refuse_conflict(service, port, ports.with_partner(number, need.paired), used)
            plan[port] = number
            used.update(ports.with_partner(number, need.paired))
    return plan


def _any_port(known: int | None, paired: bool, used: Collection[int]) -> int:
    """The port that it had, which clients may know, if that is still free."""
    if known is not None:
        wanted = ports.with_partner(known, paired)
        if all(ports.is_free(one) for one in wanted) and not set(wanted) & set(used):
            return known
    return ports.choose(paired, used)


def _refuse_conflict(service: Service, port: str, wanted: tuple[int, ...], used: Collection[int]) -> None:
    option = f"--{port}-port" if port in SETTABLE_PORTS else ""
    if wanted[-1] > 65_535:
        limit = 65_535 - ports.PARTNER
        raise ConfigError(f"{option} {wanted[0]}: {service.name} needs port + {ports.PARTNER} too; at most {limit}")
    for number in wanted:
        beside = "" if number == wanted[0] else f" (which it needs beside {wanted[0]})"
        if number in used:
            raise ConfigError(f"port {number} of {service.name}{beside} is asked for twice; choose another {option}")
        if not ports.is_free(number):
            who = ports.holder(number)
            raise ConfigError(f"port {number} of {service.name}{beside} is in use by {who}; choose another {option}")
