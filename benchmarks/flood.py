"""What one enrolled client's flood costs the others: seconds a round with and without it, in one run on loopback.

The flood is eight threads that call as fast as they are answered: heads of replies, asks for work, and parts of 8 MB
that belong to nothing. The load of the machine at the start is printed: other work on the same cores counts.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
from flwr.supercore.task_identity import TaskIdentity

from .federation import Deployment, federation, names, rounds, wait_for_rounds
from .peer import enrolled, flooded


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20, help="with and without the flood, each")
    chosen = parser.parse_args()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower writes messages only as if in a run
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as scratch, federation(Path(scratch, "home"), chosen.clients) as there:
        there.enroll("mallory")
        there.start_clients(*names(chosen.clients))
        out = Path(scratch, "run")
        settings = {"clients": chosen.clients, "fraction": 1.0, "num-rounds": 100_000, "evaluate-every": 0}
        there.submitting({**settings, "device": "cpu", "out": str(out)})
        wait_for_rounds(out, 3)
        quiet = measured(out, chosen.rounds)
        with flood(there) as calls:
            loud = measured(out, chosen.rounds)
        print(f"a round of {chosen.clients} clients: {quiet:.2f} s; during the flood: {loud:.2f} s")
        print(f"the flood makes it {loud / quiet:.1f} times as long")
        print(f"calls of the flood that were answered: {calls[0]}, {calls[0] / calls[1]:.0f} a second")


def measured(out: Path, number: int) -> float:
    """Return the median seconds of the next rounds, the one under way left out."""
    begun = len(rounds(out)) + 1
    wait_for_rounds(out, begun + number, seconds=1800.0)
    return statistics.median(float(row["seconds"]) for row in rounds(out)[begun : begun + number])


@contextlib.contextmanager
def flood(there: Deployment) -> Iterator[list[float]]:
    """Flood the server while the block runs; give how many calls were made, and in how many seconds, after it."""
    mallory, over, calls = enrolled(there, "mallory"), threading.Event(), [0.0, 0.0]
    run_id, started = int(there.submitted_run()), time.monotonic()

    def call() -> None:
        while not over.is_set():
            for method, request in flooded(mallory, run_id):
                with contextlib.suppress(grpc.RpcError):
                    method(request, timeout=60)
                calls[0] += 1

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield calls
    finally:
        over.set()
        for thread in threads:
            thread.join()
        calls[1] = time.monotonic() - started


if __name__ == "__main__":
    main()
