"""A model that is another one each time it is made, in a process or in the next one."""

import copy
import inspect
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from fairbloom.client.app import app
from fairbloom.client.local import check_described
from fairbloom.errors import FairbloomError, ReportableError
from fairbloom.experiments import api
from fairbloom.prediction.predictor import load_predictor
from fairbloom.protocol.names import MODEL_MADE
from fairbloom.rounds.flower import FlowerClients
from fairbloom.server.app import federate
from fairbloom.server.run_folder.errors import RunFolderError
from fairbloom.server.run_folder.files import MADE
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.tables.preprocessing import ARRAYS, Preprocessing
from fairbloom.tasks import Examples, Splits, Task, load_task
from fairbloom.tasks.checks import guard_task
from fairbloom.tasks.models import MODELS, build, check_arrays
from fairbloom.tasks.models.made import (
    PERIOD,
    PERIODS,
    Made,
    describe_made,
    form_of,
    make_checked,
    make_up_examples,
)
from tests import nets
from tests.client import helpers as client_helpers, nets as client_nets
from tests.client.private.device import Device
from tests.experiments.helpers import start
from tests.simulation import odd

from . import drawn

IMAGE = (1, 8, 8)
LINE = (16,)


def task_of(
    make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE, *, seed: int = 7
) -> Task:
    """Return a user's task with a model, as a run has it, and two examples a client."""
    made = Examples(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64))
    loss = nn.CrossEntropyLoss(reduction="none")
    task = Task(("a", "b"), make, loss, lambda client: Splits(made, made))
    return guard_task("mine:task", task, seed=seed)


def named(name: str, seed: int = 7) -> Callable[[], nn.Module]:
    """Return a function that makes a model of drawn.py."""
    return lambda: build(f"{drawn.__name__}:{name}", LINE, 3, seed)


FORM = {"": (LINE, "float32")}


# Made twice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_each_model_is_the_same_when_it_is_made_twice(name: str) -> None:
    dtype = torch.int64 if name in ("lstm", "rnn") else torch.float32
    shape = LINE if dtype == torch.int64 else (1, 16, 16)
    form = {"": (shape, str(dtype).removeprefix("torch."))}
    task = task_of(lambda: build(name, shape, 10, 7, dtype), shape)
    model = make_checked(task, form)
    expected = build(name, shape, 10, 7, dtype).state_dict()
    assert all(torch.equal(array, expected[key]) for key, array in model.state_dict().items())
    made = Made.of(model, form)
    assert made.outputs is not None
    assert made.find_differences(Made.of(task.model(), form)) == []


def own_models(*modules: ModuleType) -> Iterator[str]:
    """Yield the import string of each model that these modules define."""
    for module in modules:
        for name, kind in vars(module).items():
            is_model = inspect.isclass(kind) and issubclass(kind, nn.Module)
            if is_model and kind.__module__ == module.__name__:
                yield f"{module.__name__}:{name}"


SAME = {f"{drawn.__name__}:{kind.__name__}" for kind in drawn.SAME}  # type: ignore[attr-defined]


# What is refused for another reason before.
FAULTY = {f"{odd.__name__}:{name}" for name in ("BatchAlone", "Expanded")}

# What rounds so coarsely that other processors may compute other outputs.
COARSE = {f"{client_nets.__name__}:{name}" for name in ("BFloat", "FrozenBFloat", "Half")}


@pytest.mark.parametrize(
    "name", sorted({*own_models(nets, client_nets, odd), *SAME}.difference(FAULTY))
)
def test_each_users_model_of_the_tests_is_the_same_twice(name: str) -> None:
    task = task_of(lambda: build(name, IMAGE, 10, 7))
    form = {"": (IMAGE, "float32")}
    made = Made.of(make_checked(task, form), form)
    assert (made.outputs is None) == (name in COARSE)
    assert made.find_differences(Made.of(task.model(), form)) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("UnseededParameters", "its omega, phase, outputs differ"),
        ("UnseededBuffers", "its omega, phase, outputs differ"),
        ("UnseededAttributes", "its omega, phase, outputs differ"),
        ("UnseededNumber", "its outputs differ"),
    ],
)
def test_what_differs_each_time_is_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FairbloomError, match=f"the model, {name}, is another one .*{words}: make"):
        make_checked(task_of(named(name), LINE), FORM)
    # also where a run begins, before it leaves a folder
    with pytest.raises(FairbloomError, match=words):
        run_of(name, tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_model_may_draw_by_itself_when_it_is_called() -> None:
    """Training such a model is no fault of how it is made."""

    class Drawing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * np.random.default_rng().random()

    model = make_checked(task_of(lambda: Drawing(16, 3), LINE), FORM)
    assert Made.of(model, FORM).outputs is None


def test_what_differs_is_named_though_nothing_can_be_computed() -> None:
    with pytest.raises(FairbloomError, match="its omega, phase differ"):
        make_checked(task_of(named("UnseededBuffers"), LINE), {})
    make_checked(task_of(named("UnseededNumber"), LINE), {})  # its outputs alone would show it


def states() -> list[Any]:
    """Return the states of the three generators."""
    kind, words, *others = np.random.get_state()
    return [random.getstate(), kind, words.tolist(), others, torch.get_rng_state().tolist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["Features", "ByPython", "Placed"])
def test_making_a_model_draws_nothing_from_the_process(name: str) -> None:
    before = states()
    task = task_of(named(name), LINE)
    Made.of(make_checked(task, FORM), FORM)
    task_of(lambda: drawn.Features(16, 3), LINE).model()  # a task's own function
    assert states() == before


def test_the_seed_decides_what_a_users_task_draws() -> None:
    one, other, again = (
        task_of(lambda: drawn.Features(16, 3), LINE, seed=seed).model() for seed in (1, 2, 1)
    )
    for name in ("omega", "head.weight"):
        get = attrgetter(name)
        assert not torch.equal(get(one), get(other))
        assert torch.equal(get(one), get(again))


def test_one_model_of_two_is_in_memory_at_a_time() -> None:
    made: list[weakref.ref[nn.Module]] = []

    def make() -> nn.Module:
        assert not [each for each in made if each() is not None]
        model = nn.Linear(4, 2)
        made.append(weakref.ref(model))
        return model

    model = make_checked(task_of(make), {"": ((4,), "float32")})
    assert [each() for each in made] == [None, model]


def test_a_task_may_make_one_model_for_all() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)).train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    task = task_of(lambda: model)
    form = {"": (IMAGE, "float32")}
    made = Made.of(make_checked(task, form), form)
    assert made.find_differences(Made.of(task.model(), form)) == []
    assert all(torch.equal(array, before[name]) for name, array in model.state_dict().items())
    assert [each.training for each in model.modules()] == [True, True, False, True]


# Elsewhere ----------------------------------------------------------------------------------------


def run_of(name: str, out: Path, rounds: int = 1, factor: int = 7) -> api.Run:
    """Run two small tables, which a factor changes, with a model of drawn.py."""
    folder = out.parent / "tables"
    folder.mkdir(exist_ok=True)
    for client in ("north", "south"):
        rows = [f"{x},{x * factor % 10},{'yes' if x % 3 else 'no'}" for x in range(30)]
        (folder / f"{client}.csv").write_text("\n".join(["a,b,outcome", *rows]) + "\n")
    return api.run(
        "csv",
        data_dir=folder,
        target="outcome",
        model=f"{drawn.__name__}:{name}",
        rounds=rounds,
        out=out,
        progress=False,
    )


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that goes to another process."""
    return lambda value: monkeypatch.setattr(drawn, "ELSEWHERE", [value])


@pytest.mark.parametrize(("name", "differs"), [("Placed", "outputs"), ("PlacedBuffer", "scale")])
def test_another_model_in_another_process_is_refused_by_name(
    name: str,
    differs: str,
    tmp_path: Path,
    moved: Callable[[float], None],
    subtests: pytest.Subtests,
) -> None:
    folder = run_of(name, tmp_path / "run").folder
    site = tmp_path / "tables" / "north.csv"
    uses: dict[str, Callable[[], object]] = {
        "resume": lambda: run_of(name, folder, 2),
        "predict": lambda: load_predictor(folder, client="north", trust=True),
        "evaluate": lambda: api.evaluate(folder, data_dir=site, trust=True),
    }
    moved(2.0)
    for what, use in uses.items():
        with (
            subtests.test(what),
            pytest.raises(FairbloomError, match=f"not that of the run in .*: its {differs} differ"),
        ):
            use()
    moved(1.0 + 1e-6)  # as another processor would round
    for what, use in reversed(uses.items()):
        with subtests.test(what, near=True):
            use()


def test_a_refused_resumption_can_go_elsewhere(
    tmp_path: Path, moved: Callable[[float], None]
) -> None:
    folder = run_of("Placed", tmp_path / "run").folder
    moved(3.0)
    with pytest.raises(RunFolderError, match=r"begin again in another folder \(--out\)"):
        run_of("Placed", folder, 2)
    assert run_of("Placed", tmp_path / "other", 2).rounds_done == 2


def test_how_a_model_is_made_says_nothing_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = run_of("Features", tmp_path / "a" / "run").folder
    other = run_of("Features", tmp_path / "b" / "run", 2, factor=3).folder
    assert MADE.path_in(one).read_bytes() == MADE.path_in(other).read_bytes()


def test_an_earlier_folder_without_the_file_gets_it(tmp_path: Path) -> None:
    folder = run_of("Buffers", tmp_path / "run").folder
    made = MADE.read(folder)
    assert made is not None
    assert {*made.buffers} == {"omega", "phase"}
    MADE.path_in(folder).unlink()
    load_predictor(folder, client="north", trust=True)
    run_of("Buffers", folder, 2)
    assert MADE.read(folder) == made


@pytest.mark.slow
def test_the_order_of_a_set_is_found_in_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tables"
    table.mkdir()
    names = ",".join(f"x{place}" for place in range(12))
    rows = [",".join([*(str(x * k % 11) for k in range(12)), "yn"[x % 2]]) for x in range(30)]
    for client in ("north", "south"):
        (table / f"{client}.csv").write_text("\n".join([f"{names},outcome", *rows]) + "\n")
    data = ("--task", "csv", "--data-dir", table, "--set", "csv.target=outcome")
    model = ("--model", f"{drawn.__name__}:Hashed", "--rounds", 1, "--out", tmp_path / "run")
    predict = ("predict", tmp_path / "run", table / "north.csv", "--client", "north", "--trust")
    for hash_seed, words, code in (
        (1, ("run", *data, *model), 0),
        (2, (*predict, "--out", tmp_path / "2.csv"), 2),
        (1, (*predict, "--out", tmp_path / "1.csv"), 0),
    ):
        monkeypatch.setenv("PYTHONHASHSEED", str(hash_seed))
        process = start(*words)
        said = process.communicate()
        assert process.returncode == code, said
    assert not (tmp_path / "2.csv").exists()


# On a device --------------------------------------------------------------------------------------


def described(task: Task) -> str:
    """Return what a server says of a task's model."""
    return Made.of(task.model(), FORM).encode().decode()


@pytest.mark.parametrize("name", ["Placed", "PlacedBuffer"])
def test_a_device_refuses_a_server_with_another_model(
    name: str, moved: Callable[[float], None]
) -> None:
    task = with_form(task_of(named(name), LINE))
    text = described(task)
    check_described(task, text)
    moved(2.0)
    with pytest.raises(ReportableError, match=r"not that of the run's server: its .* differ"):
        check_described(replace(task), text)


def with_form(task: Task) -> Task:
    """Return a task of which a server knows the examples' form."""
    known = Preprocessing(form=ARRAYS, target="class", classes=("x", "y", "z"), shape=LINE)
    return replace(task, preprocessing=lambda client: known)


def test_a_server_chooses_no_batch_on_a_device() -> None:
    """The outputs of another form than that of the device's task are not computed."""
    task = with_form(task_of(named("Features"), LINE))
    made = Made.of(task.model(), FORM)
    huge = replace(made, form={"": ((10**12,), "float32")})
    check_described(task, huge.encode().decode())
    other = replace(made, outputs=(1.0, 1.0, 1.0))
    with pytest.raises(ReportableError, match="its outputs differ"):
        check_described(task, other.encode().decode())


@pytest.mark.parametrize("text", ["{}", "[", '{"buffers": 1, "form": {}, "outputs": null}', "1"])
def test_words_that_a_device_does_not_know_are_refused(text: str) -> None:
    with pytest.raises(ReportableError, match="upgrade fairbloom on the older one"):
        check_described(task_of(named("Features"), LINE), text)


def test_a_server_that_is_not_ours_describes_nothing() -> None:
    check_described(task_of(lambda: pytest.fail("no model is made for it"), LINE), "")


def test_a_server_says_how_its_model_is_made(tmp_path: Path) -> None:
    sent: list[Message] = []

    class Watched(InProcessGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            sent.extend(messages)
            return super().push_messages(messages)

    settings = Settings.of(
        {"clients": 2, "num-rounds": 1, "device": "cpu", "out": str(tmp_path / "run")}
    )
    grid = Watched(app, settings.run_config(), 2)
    folder = federate(settings, lambda method: FlowerClients(method, grid))
    configs = [config for each in sent for config in each.content.config_records.values()]
    kinds = {each.metadata.message_type for each in sent if each.content.config_records}
    assert kinds == {MessageType.TRAIN, MessageType.EVALUATE}
    assert {str(config[MODEL_MADE]).encode() for config in configs} == {
        MADE.path_in(folder).read_bytes()
    }
    made = MADE.read(folder)
    assert made is not None
    assert made.outputs is not None


KINDS = pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])


@KINDS
def test_an_app_refuses_a_server_with_another_model(kind: str) -> None:
    where = client_helpers.context()
    task, model = client_helpers.fresh()
    made = describe_made(task)
    client_helpers.ask(kind, {MODEL_MADE: made.encode().decode()}, where, model)
    other = replace(made, outputs=(1.0, 1.0, 1.0))
    with pytest.raises(ReportableError, match="its outputs differ"):
        client_helpers.ask(kind, {MODEL_MADE: other.encode().decode()}, where, model)


@KINDS
def test_an_account_is_not_charged_for_another_model(kind: str, tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.open()
    made = describe_made(load_task(device.context().run_config))
    before = device.left
    other = replace(made, outputs=(1.0, 1.0, 1.0))
    assert "its outputs differ" in str(device.ask(kind, {MODEL_MADE: other.encode().decode()}))
    assert device.left == before
    assert isinstance(device.ask(kind, {MODEL_MADE: made.encode().decode()}), RecordDict)
    assert device.left != before


# What is stored -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(5, 3),
        {"x": torch.zeros(5, 2, 2), "mask": torch.zeros(5, 2, dtype=torch.bool)},
        (torch.zeros(5, 4, dtype=torch.int64), torch.zeros(5, 1, dtype=torch.float64)),
    ],
)
def test_made_up_examples_have_the_form_of_the_given(inputs: Any) -> None:
    made_up = make_up_examples(form_of(inputs))
    assert type(made_up) is type(inputs)
    assert form_of(made_up) == form_of(inputs)


def test_a_task_with_names_or_several_inputs_is_compared() -> None:
    class Named(nn.Linear):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x) * (~mask).float() * drawn.ELSEWHERE[0]

    form = form_of({"x": torch.zeros(1, 3), "mask": torch.zeros(1, 2, dtype=torch.bool)})
    assert Made.of(Named(3, 2), form).outputs is not None


@pytest.mark.parametrize(
    "buffer",
    [
        torch.tensor([0.0, float("-inf"), float("nan")]),
        torch.polar(torch.ones(3), torch.arange(3.0)),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.zeros(0),
        torch.tensor(2.0, dtype=torch.bfloat16),
    ],
)
def test_buffers_of_any_kind_are_stored_and_read(buffer: Tensor) -> None:
    def make() -> nn.Module:
        model = nn.Linear(4, 2)
        model.register_buffer("kept", buffer, persistent=False)
        return model

    made = Made.of(make_checked(task_of(make), {}), {})
    assert Made.decode(made.encode()) == made
    changed = torch.ones_like(buffer) if buffer.numel() else torch.ones(1)
    other = make()
    other.kept = changed
    assert made.find_differences(Made.of(make(), {})) == []
    assert made.find_differences(Made.of(other, {})) == ["kept"]


def test_a_large_buffer_is_summed_up_in_parts() -> None:
    count = PERIODS * PERIOD + 5
    model = nn.Linear(4, 2)
    model.register_buffer("kept", torch.full((count,), 2.0), persistent=False)
    waves = torch.arange(count, dtype=torch.float64).remainder(PERIOD).add(1).cos()
    total = 2.0 * float(waves.sum())
    assert Made.of(model, {}).buffers["kept"] == pytest.approx((2 * count, 2 * count, total))


@pytest.mark.parametrize(
    "buffer",
    [torch.tensor([2, 0, 1]), torch.tensor([True, False, True]), torch.tensor([0.0, 2, 1])],
)
def test_a_buffer_that_is_stored_may_differ(buffer: Tensor) -> None:
    """Each process receives it with the model."""

    class Kept(nn.Linear):
        def __init__(self, buffer: Tensor) -> None:
            super().__init__(3, 2)
            self.register_buffer("kept", buffer)

        def forward(self, x: Tensor) -> Tensor:
            kept = self.kept if self.kept.is_floating_point() else x[:, self.kept.long()]
            return super().forward(x * kept)

    form = {"": ((3,), "float32")}
    made = Made.of(Kept(buffer), form)
    assert made.outputs is not None
    assert made == Made.of(Kept(buffer.flip(0).roll(1)), form)


@pytest.mark.parametrize(
    "model",
    [
        # Ones as its vectors, and waves as weights: its norm is what a sum leaves of many numbers.
        nn.Sequential(spectral_norm(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 3)),
        nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 3)).bfloat16(),
    ],
)
def test_outputs_that_rounding_changes_are_not_compared(model: nn.Module) -> None:
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    before = copy.deepcopy(model.state_dict())
    assert Made.of(model, {"": ((64,), kind)}).outputs is None
    assert all(torch.equal(array, before[name]) for name, array in model.state_dict().items())


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(16).to_sparse(),
        torch.empty(16, 16, device="meta"),
        np.array(["1970-01-01"], dtype="datetime64[D]"),
        np.array([None]),
        np.zeros((0, 3)),
    ],
)
def test_a_model_may_hold_arrays_of_any_kind(value: Any) -> None:
    class Holding(nn.Linear):
        def __init__(self) -> None:
            super().__init__(16, 3)
            self.held = value
            if isinstance(value, Tensor):
                self.register_buffer("kept", value, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x @ self.held if getattr(self.held, "is_sparse", False) else x)

    model = make_checked(task_of(Holding, LINE), FORM)
    assert Made.of(model, FORM).outputs is not None


def test_a_lazy_model_of_a_task_is_left_to_its_error() -> None:
    model = make_checked(task_of(lambda: nn.LazyLinear(3), LINE), FORM)
    assert Made.of(model, FORM) == Made({}, FORM, None)
    with pytest.raises(FairbloomError, match="has no shape yet"):
        check_arrays(model)


def test_outputs_do_not_depend_on_weights() -> None:
    """They are compared after training, and after an upgrade of PyTorch."""
    one, other = (build("mlp", IMAGE, 10, seed) for seed in (1, 2))
    form = {"": (IMAGE, "float32")}
    assert Made.of(one, form) == Made.of(other, form)
    assert Made.of(one, form) != Made.of(build("logistic", IMAGE, 10, 1), form)
