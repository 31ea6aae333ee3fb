"""The staffing of shards: how many workers host them, and which hosts which, as policies wish and users say.

Runs in the main process, under the supervisor's lock, between two pulls. A wish that cannot be met is taken back:
all is as it was, and the policy is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from reading_services.engine.crew import Crew
from reading_services.engine.policy import Change, Hosting, Policy
from reading_services.engine.workers import DISPATCHER, Worker

__all__ = ["Staffing"]

_log = logging.getLogger("torchpipe")


class Staffing:
    """``fewest``: so many workers the user has asked for; more are a policy's wish."""

    def __init__(self, policies: Sequence[Policy], fewest: int, crew: Crew) -> None:
        self._policies, self._fewest = tuple(policies), fewest
        self._crew, self._lanes = crew, crew.lanes

    def begin_epoch(self, hosting: Hosting) -> None:
        """Ask the policies, before any lane of the epoch has begun. Raises: OSError."""
        self._crew.open_missing()
        for policy in self._policies:
            if change := policy.begin_epoch(hosting, self._crew.clock()):
                self._grant(change, begun=False)

    def consult(self, hosting: Hosting) -> None:
        """Do what the policies say. A worker that is late and hosts what goes on all the same is an error; but one that
        a policy alone has wished for is let go of.
        """
        crew, lanes = self._crew, self._lanes
        late = {number for number in crew.late if number in crew and not crew[number].ready}
        crew.late.clear()
        last = lanes.num_workers
        while last > self._fewest and last - 1 in late:
            last -= 1
        if last < lanes.num_workers:
            self._withdraw(last, crew[last])
        for policy in self._policies:
            if change := policy.before_pull(hosting, crew.clock(), late):
                self._grant(change)
        late = {number for number in late if number in crew and lanes.needs(number)}
        surplus = min(len(late - {DISPATCHER}), lanes.num_workers - self._fewest)
        if surplus > 0 and DISPATCHER not in late:  # the last ones leave their room to those that have none
            first = crew[min(late)]
            for number in late:
                crew.dismiss(number)
            self._withdraw(lanes.num_workers - surplus, first)
            return
        for number in late:
            if lanes.failure is None:
                lanes.failure = crew.late_error(crew[number])
                crew.dismiss(number)

    def pulled(self, items: int, waited_s: float) -> None:
        """So many items have been pulled, in so many seconds. Any thread."""
        for policy in self._policies:
            policy.pulled(items, waited_s)

    def resize(self, workers: int, window: int | None) -> None:
        """So many workers, as the user says. Raises: OSError, and then all is as it was."""
        self._crew.open_more(workers)
        self._carry_out(Change(workers=workers, window=window, why="as the user says"))
        self._fewest = workers

    def assign(self, hosts: Mapping[int, int]) -> None:
        """These hosts of shards, as the user says."""
        self._carry_out(Change(hosts=hosts, why="as the user says"))

    def _grant(self, change: Change, *, begun: bool = True) -> None:
        """Do what a policy says, or leave all as it is."""
        try:
            self._crew.open_more(change.workers or 0)
        except OSError as error:
            self._refuse(
                f"going on with {self._lanes.num_workers} workers: no {change.workers} of them can be started ({error})"
            )
            return
        _log.info("%s", change.why)
        self._crew.stats.events.tell("tuned", "main", change.why)
        self._carry_out(change, begun=begun)

    def _withdraw(self, workers: int, late: Worker) -> None:
        """Go on with so many: no more than that have found room."""
        why = f"going on with {workers} workers: {self._crew.late_error(late)}"
        self._carry_out(Change(workers=workers, why=why))
        self._refuse(why)

    def _refuse(self, why: str) -> None:
        _log.warning("%s", why)
        self._crew.stats.events.tell("tuned", "main", why)
        for policy in self._policies:
            policy.refused(self._lanes.num_workers, self._crew.clock())

    def _carry_out(self, change: Change, *, begun: bool = True) -> None:
        """``begun``: the lanes of the epoch have begun, so that those that move begin anew."""
        before = self._crew.at_work()
        if change.window is not None:
            self._lanes.set_window(change.window)
        if change.workers is not None:
            self._crew.dismiss_from(change.workers)
            self._lanes.set_workers(change.workers)
        if change.hosts is not None:
            self._lanes.assign(change.hosts)
        if begun and self._lanes.epoch is not None:
            self._crew.open_missing()
            self._crew.begin_moved(before)
