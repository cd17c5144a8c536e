"""One of several processes that run a step: `run_part.py ADDRESS PROCESS FOLDER`.

The folder has what to run, and takes the results.
"""

import os
import pickle
import sys
import time
from pathlib import Path

import jax
import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.progress import StageProgress
from rhino.runtime.distributed.tcp_transport import StreamTransport
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.transport import SocketTransport

TRANSPORTS = {"transfer": SocketTransport, "stream": StreamTransport}


def main(address: str, process: int, folder: Path) -> int:
    given = pickle.loads((folder / "run.pickle").read_bytes())
    step, team = given["step"], given["team"]
    request_host_devices(sum(step.meshes[rank].num_devices for rank in team.ranks[process]), os.environ)
    job = ProcessJob(address, process, team, Limits(60, *given["limits_s"]), is_launched=True)
    transport = TRANSPORTS[given["transport"]](job)
    arguments = list(given["arguments"])
    devices = devices_of_ranks(step, jax.local_devices(), team.ranks[process])
    with Executor(step, given["modules"], devices, transport, team.of_devices(step.meshes)) as executor:
        job.watch(StageProgress(executor))
        losses = []
        number = 0
        while number != given["num_steps"]:
            if process == given.get("stuck") and number == 2:
                time.sleep(1000)
            results = executor.run(arguments)
            arguments[: step.num_ranks] = results[1:]
            executor.wait()
            losses.append(float(results[0]) if results[0] is not None else float("nan"))
            number += 1
            if number == 2:
                (folder / f"going-{process}").write_text(str(os.getpid()))
        here = {f"w{rank}": np.asarray(arguments[rank]) for rank in team.ranks[process]}
        np.savez(folder / f"out-{process}.npz", losses=np.array(losses), **here)
        job.finish()
    transport.close()
    job.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
    except RhinoError as error:
        print(error.render(), file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
