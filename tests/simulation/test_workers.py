"""The engine `workers`: the bits, words and refusals of the loop, whatever becomes of a process."""

import errno
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fairbloom.client.local import LocalClient, Metrics, Update
from fairbloom.client.personal import StateDict
from fairbloom.errors import FairbloomError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.clients import Replies, Trained
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.method import Kept, Method
from fairbloom.rounds.updates import Model, Vectors
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.dispatch import processes
from fairbloom.simulation.dispatch.processes import shared_array
from fairbloom.simulation.dispatch.balance import balance
from fairbloom.simulation.dispatch.workers import WorkerClients
from fairbloom.simulation.loop import LoopClients
from fairbloom.strategies import FedAvg
from fairbloom.tasks import Examples, Setup, Splits, Task, load_task
from tests.rounds.implementations import Watched, bits, rows_of

from .helpers import Outcome, run, small

Train = Callable[[LocalClient, StateDict, Terms], Update]

FIVE = [f"client-{k}" for k in range(5)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], set[str]]]:
    """Return what the log warns of."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.WARNING, logger="flwr")
    yield lambda: {entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING}
    logger.removeHandler(caplog.handler)


def config_of(**changes: Any) -> dict[str, Any]:
    return dict(small("", **changes).run_config())


def model_of(config: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in load_task(config).model().state_dict().items()}


def workers_of(method: Method | None = None, workers: int = 2, **changes: Any) -> WorkerClients:
    return WorkerClients(method or FedAvg(), config_of(**changes), workers)


def told(replies: Replies) -> dict[str, Any]:
    """Return all that replies tell, the words of refusals too."""
    updates = {}
    if isinstance(replies, Trained):
        updates = {"updates": rows_of(replies.updates), "snapshots": rows_of(replies.snapshots)}
    metrics = [(name, list(report.items())) for name, report in replies.metrics.items()]
    return {"metrics": metrics, "refused": replies.refused.reasons, **updates}


def both_of(clients: LocalClients, names: list[str], model: Model, terms: Terms) -> list[dict[str, Any]]:
    """Return what clients tell of a round's training, and of its evaluation."""
    measured = replace(terms, measure=("train-loss",))
    trained = told(clients.train(names, model, terms))  # type: ignore[attr-defined]
    return [trained, told(clients.evaluate(names, model, measured, names[:2]))]  # type: ignore[attr-defined]


def processes_of(clients: WorkerClients) -> set[int]:
    return {worker.pid for worker in clients._pipes.processes.values()} if clients._pipes else set()


def is_there(process: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has waited for does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def patched(monkeypatch: pytest.MonkeyPatch, before: Callable[[LocalClient, Terms], None]) -> None:
    """Let something happen in a client before it trains."""
    train: Train = LocalClient.train

    def other(self: LocalClient, received: StateDict, terms: Terms) -> Update:
        before(self, terms)
        return train(self, received, terms)

    monkeypatch.setattr(LocalClient, "train", other)


# Who computes what ----------------------------------------------------------------------------------------------------


@given(costs=st.lists(st.integers(0, 30), max_size=7), workers=st.integers(1, 3))
def test_every_client_is_placed_once_and_no_worker_has_much_more_than_it_must(costs: list[int], workers: int) -> None:
    lists = balance(costs, workers)
    assert len(lists) == workers
    assert sorted(itertools.chain(*lists)) == list(range(len(costs)))

    def longest(of: list[list[int]]) -> int:
        return max(sum(costs[place] for place in places) for places in of)

    best = sum(costs)
    for chosen in itertools.product(range(workers), repeat=len(costs)):
        best = min(best, longest([[k for k, who in enumerate(chosen) if who == worker] for worker in range(workers)]))
    assert longest(lists) <= best * (4 / 3 - 1 / (3 * workers)) + 1e-9


def test_a_worker_begins_with_its_largest_client() -> None:
    assert balance([1, 5, 3, 5], 2) == [[1, 2], [3, 0]]


# As in the loop -------------------------------------------------------------------------------------------------------


def test_a_run_is_to_the_bit_that_of_the_loop_and_leaves_no_process(tmp_path: Path) -> None:
    """FedFV keeps old updates, whose memory is written to again."""
    seen: set[int] = set()
    forked = processes._fork
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "_fork", lambda: (pid := forked(), seen.add(pid))[0])
        folder = run(tmp_path / "workers", engine="workers", fraction=0.6)
    assert not Outcome.of(folder).differences(Outcome.of(run(tmp_path / "loop", engine="loop", fraction=0.6)))
    assert len(seen) >= 2
    assert not any(map(is_there, seen))


class Tied(nn.Module):
    """A model with buffers, and a weight of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(self.norm(inputs))))  # type: ignore[no-any-return]


def notebook(setup: Setup) -> Task:
    """Return a task with a loss of its own, and clients of very different sizes."""

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return Tied()

    def splits(client: str) -> Splits:
        random = torch.Generator().manual_seed(FIVE.index(client) + 10 * len(setup.agreed))
        count = 8 * (1 + 4 * FIVE.index(client))
        inputs, targets = torch.randn(count, 4, generator=random), torch.randint(0, 4, (count,), generator=random)
        return Splits(Examples(inputs, targets, torch.arange(4, count)), Examples(inputs[:4], targets[:4]))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - nn.functional.one_hot(targets, 4)).square().sum(1)

    return Task(tuple(FIVE), model, loss, splits)


@pytest.fixture
def in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings of a task that __main__ alone has."""
    main = ModuleType("__main__")
    main.notebook = notebook  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    return {"task": "__main__:notebook", "batch_size": 8, "momentum": 0.9}


BUFFERS = {"buffers": ("norm.running_mean", "norm.running_var"), "shared": {"second.weight": "first.weight"}}


@pytest.mark.parametrize("personal", [0.0, 0.5])
def test_a_task_of_a_notebook_with_buffers_and_shared_weights_is_as_in_the_loop(
    in_a_notebook: dict[str, Any], personal: float
) -> None:
    outcomes = []
    for engine in (LoopClients, WorkerClients):
        method = FedAvg(**BUFFERS, personal_lambda=personal, fraction_train=0.6)  # type: ignore[arg-type]
        config = config_of(**in_a_notebook)
        clients = engine(method, config, *([2] if engine is WorkerClients else []))  # type: ignore[call-arg]
        with closing(clients):
            watched = Watched(clients)  # type: ignore[arg-type]
            rounds = Rounds(method, watched, 3).run(model_of(config), measure=lambda _: [], measure_after=[])
            outcomes.append((watched.seen, [bits(each.arrays) for each in rounds]))
    assert outcomes[0] == outcomes[1]
    assert any("loss-personal" in dict(answer["metrics"][0]) for _, answer in outcomes[1][0]) == (personal > 0.0)


def test_workers_know_what_has_been_agreed_since_they_were_started(in_a_notebook: dict[str, Any]) -> None:
    config = config_of(**in_a_notebook)
    loop, model = LoopClients(FedAvg(), config), model_of(config)
    with closing(workers_of(**in_a_notebook)) as clients:
        for agreed in ("", "scales", ""):
            terms = Terms(server_round=1, agreed=agreed)
            assert both_of(clients, FIVE, model, terms) == both_of(loop, FIVE, model, terms)


def test_personal_models_are_stored_and_found_again_by_the_next_process(tmp_path: Path) -> None:
    method, changes = FedAvg(personal_lambda=0.5), {"personal_lambda": 0.5, "state_dir": str(tmp_path)}
    model = model_of(config_of(**changes))
    with closing(workers_of(method, **changes)) as clients:
        clients.train(FIVE[:3], model, method.terms(1))
        clients.keep(0)
    with closing(workers_of(method, **changes)) as clients:
        found = both_of(clients, FIVE, model, method.terms(2))
    loop = LoopClients(method, config_of(personal_lambda=0.5))
    loop.train(FIVE[:3], model, method.terms(1))
    assert found == both_of(loop, FIVE, model, method.terms(2))


def test_cohorts_may_grow_and_shrink_and_be_one_client_or_none() -> None:
    model, loop = model_of(config_of()), LoopClients(FedAvg(), config_of())
    with closing(workers_of(workers=3)) as clients:
        for number, names in enumerate(([FIVE[3]], FIVE[:2], FIVE, [], FIVE[1:4]), start=1):
            terms = Terms(server_round=number)
            assert both_of(clients, names, model, terms) == both_of(loop, names, model, terms)


def test_one_that_fails_is_refused_in_the_words_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = LocalClient.evaluate

    def fails(self: LocalClient, received: StateDict, terms: Terms) -> Metrics:
        if self.name == "client-3":
            raise RuntimeError("the disk is gone")
        return evaluate(self, received, terms)

    def fails_to_train(local: LocalClient, terms: Terms) -> None:
        if local.name == "client-1":
            raise FairbloomError("no data today")
        if local.name == "client-4":
            raise KeyError(local.name)

    monkeypatch.setattr(LocalClient, "evaluate", fails)
    patched(monkeypatch, fails_to_train)
    model, terms = model_of(config_of()), Terms(server_round=1)
    with closing(workers_of()) as clients:
        found = both_of(clients, FIVE, model, terms)
    assert found == both_of(LoopClients(FedAvg(), config_of()), FIVE, model, terms)
    assert list(found[0]["refused"]) == ["client-1", "client-4"]
    assert found[1]["refused"].keys() == {"client-3"}


def test_one_whose_model_is_not_finite_is_refused_in_the_words_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    train: Train = LocalClient.train

    def breaks(self: LocalClient, received: StateDict, terms: Terms) -> Update:
        update = train(self, received, terms)
        if self.name in FIVE[1:3]:
            update.arrays["1.weight"][0, 0] = float("nan")
        return update

    monkeypatch.setattr(LocalClient, "train", breaks)
    model, terms = model_of(config_of()), Terms(server_round=1)
    with closing(workers_of()) as clients:
        found = both_of(clients, FIVE, model, terms)
    assert found == both_of(LoopClients(FedAvg(), config_of()), FIVE, model, terms)
    assert found[0]["refused"] == dict.fromkeys(FIVE[1:3], "array '1.weight' is not finite")


def test_one_whose_data_cannot_be_had_is_refused_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: LocalClients, name: str) -> LocalClient:
        if name == "client-2" and broken:
            raise FairbloomError("its file is gone")
        return local(self, name)

    local, broken = LocalClients.local, [True]
    monkeypatch.setattr(LocalClients, "local", fails)
    model = model_of(config_of())
    with closing(workers_of()) as clients:
        assert clients.train(FIVE, model, Terms(server_round=1)).refused.reasons == {"client-2": "its file is gone"}
        broken.clear()
        assert list(clients.train(FIVE, model, Terms(server_round=2)).metrics) == FIVE


def test_old_updates_that_a_method_keeps_stay_as_they_are(tmp_path: Path) -> None:
    """In memory, and in a file, where there would be no memory for copies."""
    model = model_of(config_of())
    for memory in (0.0, 1e-9):
        method = FedAvg()
        with closing(workers_of(method, memory=memory)) as clients:
            vectors = clients.train(FIVE, model, Terms(server_round=1)).updates.vectors
            method.progress.kept = {Kept("a", 1): vectors[2], Kept("b", 1): Vectors.of(np.ones(vectors.size))}
            before = [row.blocks[0].tobytes() for row in (vectors[2], Vectors.of(np.ones(vectors.size)))]
            clients.train(FIVE, model, Terms(server_round=2))
            kept = [row.blocks[0] for row in method.progress.kept.values()]
            assert [row.tobytes() for row in kept] == before
            assert isinstance(kept[0], np.memmap) == (memory > 0.0)


def test_updates_beyond_the_memory_budget_have_the_same_bits() -> None:
    model, terms = model_of(config_of()), Terms(server_round=1)
    with closing(workers_of(memory=1e-9)) as clients:
        assert isinstance(clients.train(FIVE, model, terms).updates.matrix, np.memmap)
        assert both_of(clients, FIVE, model, terms) == both_of(LoopClients(FedAvg(), config_of()), FIVE, model, terms)


# Processes that end ---------------------------------------------------------------------------------------------------


def first_time(place: Path) -> bool:
    """Return True once, whichever process asks."""
    try:
        place.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.mark.parametrize("how", ["SIGKILL, as when memory runs short", "exit code 3"])
def test_a_worker_that_ends_in_mid_round_is_replaced_and_the_bits_are_the_same(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], set[str]]
) -> None:
    """Personal models too: the first round's are the start of the second's."""
    changes = {"personal_lambda": 0.5}
    model, method = model_of(config_of()), FedAvg(personal_lambda=0.5)
    loop = LoopClients(method, config_of(**changes))
    expected = [both_of(loop, FIVE, model, method.terms(number)) for number in (1, 2, 3)]

    def dies(local: LocalClient, terms: Terms) -> None:
        if local.name == "client-2" and terms.server_round == 2 and first_time(tmp_path / "dead"):
            if "SIGKILL" in how:
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(3)

    patched(monkeypatch, dies)
    with closing(workers_of(method, **changes)) as clients:
        found = [both_of(clients, FIVE, model, method.terms(number)) for number in (1, 2, 3)]
        assert len(processes_of(clients)) == 2
    assert found == expected
    (warned,) = warnings()
    assert warned == f"a worker ended ({how}) before it had computed client client-2, which is computed again"


def test_what_a_worker_has_handed_over_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(local: LocalClient, terms: Terms) -> None:
        with (tmp_path / local.name).open("a") as times:
            times.write("x")
        if local.name == "client-2" and first_time(tmp_path / "dead"):
            os._exit(1)

    patched(monkeypatch, dies)
    monkeypatch.setattr("fairbloom.simulation.dispatch.pipes.REPORT_SECONDS", 0.0)
    with closing(workers_of(workers=1)) as clients:
        assert list(clients.train(FIVE, model_of(config_of()), Terms(server_round=1)).metrics) == FIVE
    assert {name: (tmp_path / name).read_text() for name in FIVE} == dict.fromkeys(FIVE, "x") | {"client-2": "xx"}


def test_a_client_that_ends_two_workers_is_refused_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, lambda local, terms: os._exit(7) if local.name in FIVE[2:4] else None)
    with closing(workers_of()) as clients:
        for number in (1, 2):
            trained = clients.train(FIVE, model_of(config_of()), Terms(server_round=number))
            assert list(trained.metrics) == ["client-0", "client-1", "client-4"]
            due = "computing it has ended 2 workers (exit code 7)"
            assert trained.refused.reasons == dict.fromkeys(FIVE[2:4], due)


def test_workers_that_were_killed_between_rounds_are_rebalance() -> None:
    model, terms = model_of(config_of()), Terms(server_round=1)
    with closing(workers_of()) as clients:
        before, expected = processes_of(clients), both_of(clients, FIVE, model, terms)
        for process in processes_of(clients):
            os.kill(process, signal.SIGKILL)
        assert both_of(clients, FIVE, model, terms) == expected
        assert not before & processes_of(clients)


def test_closing_ends_all_processes_may_be_done_twice_and_is_not_the_end() -> None:
    model, clients = model_of(config_of()), workers_of()
    expected = both_of(clients, FIVE, model, Terms(server_round=1))
    there = processes_of(clients)
    assert all(map(is_there, there))
    clients.close()
    clients.close()
    assert not any(map(is_there, there))
    with closing(clients):
        assert both_of(clients, FIVE, model, Terms(server_round=1)) == expected


def busy_run(folder: Path) -> int:
    """Fork a process whose workers never end; return its number once they all are at work.

    Whatever anybody writes to the terminal is in the file `said`.
    """
    parent = os.fork()
    if parent:
        ends = time.monotonic() + 20.0
        while len(list(folder.glob("[0-9]*"))) < 2 and time.monotonic() < ends:
            time.sleep(0.01)
        return parent
    status = 99
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = sys.stderr = (folder / "said").open("w", buffering=1)

        def stays(local: LocalClient, terms: Terms) -> None:
            (folder / str(os.getpid())).touch()
            time.sleep(60.0)

        with pytest.MonkeyPatch.context() as patch, closing(workers_of()) as clients:
            patched(patch, stays)
            clients.train(FIVE, model_of(config_of()), Terms(server_round=1))
    except KeyboardInterrupt:
        status = 88
    finally:
        os._exit(status)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_its_parent_or_says_anything(how: signal.Signals, tmp_path: Path) -> None:
    parent = busy_run(tmp_path)
    workers = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    assert len(workers) == 2
    if how == signal.SIGINT:
        os.killpg(parent, how)  # as Ctrl-C in a terminal
    else:
        os.kill(parent, how)
    status = os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1])
    assert status == (88 if how == signal.SIGINT else -how)
    ends = time.monotonic() + 10.0
    while any(map(is_there, workers)) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not any(map(is_there, workers))
    assert (tmp_path / "said").read_text() == ""


# What cannot be -------------------------------------------------------------------------------------------------------


def test_other_devices_than_the_processor_are_refused() -> None:
    with pytest.raises(FairbloomError, match=r"engine = 'workers': .* device is meta: set device = cpu, or engine = a"):
        workers_of(device="meta")


def test_a_platform_that_does_not_fork_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(FairbloomError, match=r"forked processes cannot compute on this platform: set engine = loop$"):
        workers_of()


def test_a_system_that_gives_no_process_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    clients = workers_of()
    monkeypatch.setattr(os, "fork", refuses)
    with pytest.raises(FairbloomError, match=r"no more processes \(Resource temporarily unavailable\): set engine = l"):
        clients.train(FIVE, model_of(config_of()), Terms(server_round=1))


def test_a_system_that_gives_no_memory_is_an_error_with_a_remedy() -> None:
    with pytest.raises(FairbloomError, match=r"its processes share 9007199.3 GB .* lower fraction"):
        shared_array((2**50,), np.float64)


def test_processes_in_which_pytorch_cannot_train_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses to where the parent has trained on a machine with a graphics card, which not every one has."""

    def refuses(*_: Any) -> None:
        raise RuntimeError("Unable to handle autograd's threading")

    monkeypatch.setattr(torch.autograd, "backward", refuses)
    with (
        closing(workers_of()) as clients,
        pytest.raises(FairbloomError, match=r"cannot train \(Unable to .*set engine = loop, or .* CUDA_VISIBLE_DEVICE"),
    ):
        clients.train(FIVE, model_of(config_of()), Terms(server_round=1))
    assert not processes_of(clients)
