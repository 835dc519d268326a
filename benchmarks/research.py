"""One run by pfl-research, in processes of its own: seconds per round, without the first one.

`Research` starts them. They compute the same task, model and local work as our runs, and pfl's
classes do all else. The examples are tensors on the device, as in pfl's own benchmark; nothing is
evaluated after the first round.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import Value
from fairbloom.rounds.sampling import share
from fairbloom.server.settings import Settings
from fairbloom.tasks import load_task

ROOT = Path(__file__).parents[1]
FOLDER = Path("runs/pfl")
INSTALL = f"{sys.executable} -m pip install --no-deps --target {FOLDER} -r benchmarks/pfl.txt"
NEVER = 1_000_000
"""pfl evaluates in every such round, and in the first."""


class Research:
    """pfl-research in a number of processes, which share a round's clients.

    Parameters
    ----------
    processes
        Number of processes.
    folder
        The folder that pfl-research was installed into. What is not there is imported from this
        interpreter's packages: PyTorch, so that both sides have the same one.
    """

    def __init__(self, processes: int, folder: Path = FOLDER) -> None:
        self.processes = processes
        self.folder = folder

    def __call__(self, settings: Settings) -> float:
        """Return the seconds per round; raise FairbloomError if pfl-research cannot be run."""
        command = [sys.executable, "-m", "benchmarks.research", json.dumps(settings.run_config())]
        common = self._environment(settings.device)
        started = [
            subprocess.Popen(  # noqa: S603 (our own command)
                command,
                cwd=ROOT,
                env={**common, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(self.processes)
        ]
        ended = [(process, *process.communicate()) for process in started]
        for process, _, errors in ended:
            if process.returncode:
                reason = errors.strip().rpartition("\n")[2]
                raise FairbloomError(f"pfl-research cannot be run ({reason}): {INSTALL}")
        return float(ended[0][1])

    def _environment(self, device: str) -> Mapping[str, str]:
        paths = [str(self.folder.resolve()), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PFL_PYTORCH_DEVICE": device,
        }
        if self.processes == 1:
            return environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return environment | {
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.processes)),
            # As torchrun sets them; but all processes share one card.
            "TORCHELASTIC_RUN_ID": "benchmark",
            "WORLD_SIZE": str(self.processes),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }


def run_rounds(config: Mapping[str, Value]) -> float:
    """Return the seconds per round of a run in this process, without the first one."""
    # NCCL, which pfl chooses on a card, refuses several processes on one card. pfl opens the
    # connection as it is imported.
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = partial(begin_with_gloo, begin)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import to_tensor
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    settings = Settings.of(config)
    task = load_task(settings)
    model = task.model()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        return task.loss(model(inputs), targets).mean()

    model.loss = loss  # type: ignore[assignment]
    model.metrics = lambda inputs, targets: {}  # type: ignore[assignment]
    examples = [task.splits(name).train[:] for name in task.clients]
    users = FederatedDataset.from_slices(
        [[to_tensor(part) for part in parts] for parts in examples],
        get_user_sampler("random", range(len(examples))),
    )
    times = list[float]()

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            if settings.device.startswith("cuda"):
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            return False, Metrics()

    FederatedAveraging().run(
        backend=SimulatedBackend(
            training_data=users, val_data=users, postprocessors=[WeightByUser()]
        ),
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=settings.num_rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=share(settings.fraction, len(examples), 1),
            val_cohort_size=None,
        ),
        model=PyTorchModel(
            model=model,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(model.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=settings.learning_rate,
            local_num_epochs=settings.local_epochs,
            local_batch_size=settings.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=settings.batch_size),
        callbacks=[Clock()],
        send_metrics_to_platform=False,  # it prints them
    )
    return (times[-1] - times[0]) / (len(times) - 1)


def begin_with_gloo(begin: Any, **_: Any) -> None:
    """Connect the processes by gloo."""
    begin(backend="gloo")


if __name__ == "__main__":
    print(run_rounds(json.loads(sys.argv[1])))
