"""A plan in stages over the processes of a job of `jax.distributed`.

It covers what each process feeds in, and which results all of them get.

Every process calls the function with the same arguments and gets the same results. An array on a rank of another
process is a `jax.Array` with the sharding that it has there and no shard here, as JAX has it; so a state is whole in
every process, and is passed on. Results that are read, not passed on, are those that have no dims and are no argument
of the next step: losses, norms. They come to every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from rhino.distributed import meeting
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Slot
from rhino.plan import Plan
from rhino.runtime.distributed.jax_job import scatter_lines, values_of_job
from rhino.runtime.distributed.processes import Team
from rhino.runtime.executor.executable import Handler, array_handler, same_placement
from rhino.runtime.executor.executor import Executor
from rhino.runtime.executor.rank_program import dtype_of
from rhino.runtime.executor.trace import Recorder
from rhino.share import Share, Shares, told_share


class Spread:
    """A plan in stages as one of several processes runs it: its own share of it."""

    def __init__(self, plan: Plan, team: Team) -> None:
        """`team` holds the plan's ranks. Process 0 makes the shares of all, and each other one is told its own."""
        self.team = team
        self._processes = tuple([tuple([device.process_index for device in rank.devices]) for rank in plan.ranks])
        self.share = self._share(plan)
        self._plan = plan
        self._wanted = plan.argument_shardings
        self._ranks = [one.rank for one in plan.facts.arguments]
        self._absent: dict[int, Handler] = {}
        self._shared: dict[int, tuple[int, Handler]] = {}
        for number in range(len(plan.facts.results)):
            self._spread_result(number, self.share.part.results[number], plan, jax.process_index())

    def _share(self, plan: Plan) -> Share:
        process, service = jax.process_index(), values_of_job()
        whole = plan.facts.execution
        if process:
            return told_share(scatter_lines(""), service)
        assert whole is not None, "process 0 has the whole plan"
        shares = Shares(whole, plan.shared, self.team.ranks, self._processes)
        scatter_lines("\n".join(shares.told(service)))
        return shares.share(0)

    def _spread_result(self, number: int, slot: Slot, plan: Plan, process: int) -> None:
        layout = slot.layout
        if number in plan.shared:
            handler = array_handler(layout.shape, dtype_of(layout), plan.shared_sharding)
            self._shared[number] = self.share.copies[number], handler
        elif process not in self._processes[slot.rank]:
            one = plan.facts.results[number]
            shape, sharding = layout.shape, plan.ranks[slot.rank].placement(layout)
            if one.viewed:
                shape, sharding = one.shape, plan.result_shardings[number]
            self._absent[number] = array_handler(shape, dtype_of(layout), sharding)

    def taken(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the leaves of a call, those that lie whole in several processes as this one has them.

        Raises:
            RhinoError: RHI-JAX-009 where one lies in other processes than that which is to have it.
        """
        return [
            self._taken(number, leaf) if number in self.share.fed and isinstance(leaf, jax.Array) else leaf
            for number, leaf in enumerate(leaves)
        ]

    def completed(self, results: Sequence[Any]) -> list[Any]:
        """Returns the results of a step as every process has them."""
        found = list(results[: len(self._plan.facts.results)])
        for number, handler in self._absent.items():
            found[number] = handler([])
        for number, (copy, handler) in self._shared.items():
            found[number] = handler([shard.data for shard in results[copy].addressable_shards])
        return found

    def executor(self, recorder: Recorder | None = None) -> Executor:
        """Returns what runs the ranks of this process; each of the others has to ask too.

        Raises RHI-RUN-007 where one does not.
        """
        job, plan, own = meeting(), self._plan, self.team.ranks[jax.process_index()]
        devices = {rank: plan.ranks[rank].devices for rank in own}
        made = Executor(
            self.share.part,
            self.share.modules,
            devices,
            job.transport,
            self._processes,
            options=plan.own_options,
            recorder=recorder,
        )
        job.watch(made)
        return made

    def _taken(self, number: int, leaf: jax.Array) -> Any:  # noqa: ANN401 - a leaf
        wanted = self._wanted[number]
        if leaf.sharding is wanted or leaf.is_fully_addressable or same_placement(leaf.sharding, wanted, leaf.ndim):
            return leaf
        rank, devices = self._ranks[number], set[Any](leaf.sharding.device_set)
        holders = {device.process_index for device in devices}
        takers = set(self._processes[rank])
        if leaf.is_fully_replicated and takers <= holders:
            return leaf.addressable_data(0) if jax.process_index() in takers else leaf
        if devices == wanted.device_set:
            return leaf  # the executor lays it out anew
        name = self._plan.facts.arguments[number].path
        where, to = (" and ".join(map(str, sorted(one))) for one in (holders, takers))
        raise RhinoError(
            "RHI-JAX-009",
            f"{name} is in process {where}, and the plan has it on rank {rank}, in process {to}: "
            "a step in stages moves no arguments between processes",
            fix="make it there with init, or pass it from the host, whole in every process",
        )
