"""``offsetmgr cluster``: the brokers of a cluster, their releases and capabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.options import FormatOption, command_group
from offsetmgr.cli.render import Column, OutputFormat, note, separate_tables, write_rows

if TYPE_CHECKING:
    from offsetmgr.app.cluster import ClusterBroker

app = command_group("A Kafka cluster's brokers.")

BROKERS: Final = (Column("broker", right=True), Column("address"), Column("release"))
CAPABILITIES: Final = (Column("capability"), Column("since"), Column("on"), Column("without", optional=True))
BROKER_CAPABILITIES: Final = (*BROKERS, *CAPABILITIES)


@command(app, "describe", many=True)
def describe(connect: ConnectFlags, output: FormatOption = OutputFormat.TABLE) -> None:
    """Print the release and the capabilities of each broker.

    Brokers do not report their release. offsetmgr infers it from the request versions that a broker supports: it shows
    the oldest release that supports all these versions, and the broker may be of a later one. Formats for
    programs have a row for each broker and capability, with the oldest release.
    """
    from offsetmgr.app import cluster as app

    brokers = app.describe(connect)
    if not output.for_people:
        write_rows(BROKER_CAPABILITIES, _broker_capability_rows(brokers), output)
        return
    write_rows(BROKERS, ((one.id, one.address, one.release and f"{one.release} or later") for one in brokers), output)
    separate_tables()
    write_rows(CAPABILITIES, _capability_rows(brokers), output)
    for broker in brokers:
        if broker.versions is None:
            note(f"broker {broker.id} at {broker.address} does not respond, so its release is unknown")
    if len({broker.release for broker in brokers if broker.release}) > 1:
        note("the brokers run different releases: operations that only some support are omitted or replaced")


def _broker_capability_rows(brokers: Iterable[ClusterBroker]) -> Iterator[tuple[Any, ...]]:
    for broker in brokers:
        for capability in broker.capabilities:
            has = None if broker.versions is None else capability.supported_by(broker.versions)
            row = (broker.id, broker.address, broker.release)
            without = capability.without or "refused" if has is False else None
            yield (*row, capability.name, capability.since, has, without)


def _capability_rows(brokers: list[ClusterBroker]) -> Iterator[tuple[Any, ...]]:
    known = [(broker.id, broker.versions) for broker in brokers if broker.versions is not None]
    for capability in brokers[0].capabilities if brokers else ():
        having = [str(number) for number, versions in known if capability.supported_by(versions)]
        everywhere, nowhere = len(having) == len(known), not having
        on = "yes" if everywhere else "no" if nowhere else f"on {', '.join(having)}"
        without = None if everywhere else capability.without or "operations that need this capability are refused"
        yield capability.name, capability.since, on, without
