"""Stacked clients: each ends with the weights and measures that it would have by itself.

Unusual tasks and models of users: they are learned right, or refused by name before the first
round.
"""

import logging
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fairbloom
from fairbloom.client.capture import Capture
from fairbloom.client.dropout import Draws, Drop
from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import Terms
from fairbloom.server.settings import Settings
from fairbloom.simulation.choice import choose
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.run import simulate
from fairbloom.simulation.stacked.blocks import (
    MAX_PADDING,
    StackedClient,
    divide_into_blocks,
    gather,
)
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.simulation.stacked.programs import Chain, Mapped, UnstackableError, make_program
from fairbloom.strategies import FedAvg
from fairbloom.tasks import Examples, load_task
from fairbloom.tasks.models import frozen_parameters
from fairbloom.tasks.pooled import join
from tests.client import nets
from tests.client.test_capture import PlainRecorder
from tests.rounds.implementations import assert_same_replies

from .helpers import model_of, rounds, run, small, without_seconds
from .several import of_lines

T = TypeVar("T")

PLAIN: dict[str, Any] = {
    **{
        "task": "tests.nets:doubled",
        "clients": 9,
        "partition": "dirichlet",
        "device": "cpu",
        "seed": 4,
    },
}
PLAIN_TERMS = Terms(server_round=3, measure=("loss-before",))


def config_of(**changes: Any) -> dict[str, Any]:
    return Settings.of(PLAIN | changes).run_config()


def both(config: dict[str, Any]) -> tuple[LocalClients, StackedClients, dict[str, Any]]:
    """Return the two engines, and a model that is not the initial one."""
    method = FedAvg(frozen=frozen_parameters(load_task(config).model()))
    random = np.random.default_rng(7)
    return (
        LocalClients(method, RunSettings.of(config)),
        StackedClients(method, RunSettings.of(config), block=64),
        {
            name: array + 0.05 * random.standard_normal(array.shape)
            for name, array in model_of(config).items()
        },
    )


# What cannot be stacked ---------------------------------------------------------------------------


def program(model: str, **changes: Any) -> Any:
    task = load_task(config_of(model=model, **changes))
    return make_program(task.model(), task, task.splits(task.clients[0]).train)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("tests.nets:Contrasted", "depends on the others of its batch"),
        ("tests.nets:Branching", "PyTorch cannot map it over clients"),
        ("tests.client.nets:Dropping", "draws, other than by dropout"),
        ("tests.client.nets:Normed", "BatchNorm keeps statistics"),
        (
            "tests.client.nets:Untouched",
            "does not touch some of its parameters|depends on the others",
        ),
        ("tests.client.nets:Tied", "several of its names are one parameter"),
        ("tests.client.nets:Moded", "computes otherwise in training"),
        ("tests.client.nets:Masked", "changes buffers"),
    ],
)
def test_a_model_that_cannot_be_stacked_is_named_with_the_reason(model: str, reason: str) -> None:
    with pytest.raises(UnstackableError, match=reason):
        program(model, task="digits")


class Dropped(nn.Module):
    """Dropout of inputs, of channels as a module, and of a hidden layer as a function."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.channels = nn.Dropout2d(0.25)
        self.hidden = nn.Linear(4 * 36, 16)
        self.last = nn.Linear(16, outputs)

    def forward(self, images: Tensor) -> Tensor:
        images = nn.functional.dropout(images.view(-1, 1, 8, 8), 0.1, self.training)
        hidden = self.hidden(self.channels(self.convolution(images).relu()).flatten(1)).relu()
        return self.last(nn.functional.dropout(hidden, p=0.5, training=self.training))  # type: ignore[no-any-return]


DROPPED = "tests.simulation.test_stacked:Dropped"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": DROPPED},
        {"model": DROPPED, "batch-size": 0, "local-epochs": 2},
        {"model": DROPPED, "augment": "crop-flip", "stragglers": 0.5},
        {"augment": "flip"},
        {"augment": "crop-flip", "batch-size": 0, "local-epochs": 2},
    ],
)
@pytest.mark.parametrize("counted", [(), ("cpu",)], ids=["generators", "counted"])
def test_clients_draw_together_as_each_does_by_itself(
    changes: dict[str, Any], counted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairbloom.client.dropout.COUNTED", counted)
    loop, together, model = both(config_of(**changes))
    names = loop.online(1)
    assert_same_replies(
        together.train(names, model, PLAIN_TERMS), loop.train(names, model, PLAIN_TERMS), 1e-12
    )


def test_masks_do_not_depend_on_the_size_of_a_block() -> None:
    config = config_of(model=DROPPED)
    _, together, model = both(config)
    few = StackedClients(together.method, RunSettings.of(config), block=2)
    names = together.online(1)
    assert_same_replies(
        few.train(names, model, PLAIN_TERMS), together.train(names, model, PLAIN_TERMS), 1e-12
    )


def test_clients_of_other_seeds_draw_other_masks() -> None:
    draws = Draws(torch.device("cpu"))
    draws.begin([1, 1, 2])
    (mask,) = draws.masks([Drop((1, 50), torch.float32, 0.5)], [3, 3, 2])
    assert torch.equal(mask[0], mask[1])
    assert not torch.equal(mask[0, :2], mask[2, :2])
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    assert not mask[2, 2].any()


class Operations(TorchDispatchMode):
    """Counts the operations that the processor launches; those of a graph count as one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # PyTorch's own
        self.launched = Counter[str]()
        self.in_graph = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.launched[func.overloadpacket.__name__] += not self.in_graph
        return func(*args, **kwargs or {})


class Graphs(PlainRecorder):
    """Graphs whose replay is one operation."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    def record(self, step: Callable[[], T]) -> Callable[[], T]:
        replay = super().record(step)

        def one() -> T:
            self._operations.launched["graph"] += 1
            self._operations.in_graph = True
            result = replay()
            self._operations.in_graph = False
            return result

        return one


def launched_in_a_round(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Counter[str]:
    """Return the operations of the sixth round of clients that train together."""
    monkeypatch.setattr("fairbloom.client.dropout.COUNTED", ("cpu",))
    _, together, model = both(config_of(partition="iid", clients=5, **changes))
    operations = Operations()
    together.capture = Capture(Graphs(operations))
    for number in range(1, 7):
        operations.launched.clear()
        with operations:
            together.train(together.online(1), model, Terms(server_round=number))
    return operations.launched


@pytest.mark.parametrize("model", ["mlp", DROPPED])
def test_a_round_is_a_graph_and_few_operations(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # However many steps it has, with dropout and without.
    few, many = (
        launched_in_a_round(monkeypatch, model=model, **{"batch-size": size}) for size in (128, 16)
    )
    for launched in (few, many):
        assert 1 <= launched["graph"] == launched["_foreach_copy_"] <= 2  # the rest of an epoch
        assert launched.total() < 200
    assert many.total() < 1.2 * few.total()


def test_auto_stacks_dropout_only_if_it_draws_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(model="tests.nets:Dropping", fraction=1.0)
    for counted in (("cpu",), ()):
        monkeypatch.setattr("fairbloom.client.dropout.COUNTED", counted)
        assert choose(RunSettings.of(config)).engine == "stacked"

    masks = Draws.masks
    monkeypatch.setattr(Draws, "masks", lambda *of: [1.0 + mask for mask in masks(*of)])
    taken = choose(RunSettings.of(config))
    assert taken.engine != "stacked"
    assert "draw other numbers for dropout" in taken.reason
    assert choose(RunSettings.of({**config, "engine": "stacked"})).engine == "stacked"


def test_a_users_own_augmentation_is_not_stacked() -> None:
    taken = choose(RunSettings.of(config_of(augment="torch:relu", engine="stacked", fraction=1.0)))
    assert taken.engine == "loop"
    assert "does not support augment = torch:relu" in taken.reason


@pytest.mark.parametrize("model", ["logistic", "mlp", DROPPED])
def test_stacked_clients_compute_in_bfloat16(model: str) -> None:
    changes: dict[str, Any] = {"task": "digits", "model": model, "precision": "bfloat16"}
    loop, together, weights = both(config_of(**changes))
    exact, _, _ = both(config_of(**changes | {"precision": "float32"}))
    weights = {name: array.astype("float32") for name, array in weights.items()}
    names = loop.online(1)
    rough, ours, expected = (
        np.asarray(clients.train(names, weights, PLAIN_TERMS).updates.matrix)
        for clients in (loop, together, exact)
    )
    assert np.abs(ours - rough).max() < 0.03
    assert 0.0 < np.abs(ours - expected).max() < 0.05


def test_weights_of_several_dtypes_are_not_stacked() -> None:
    task = load_task(config_of(task="digits"))
    mixed = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10).double())
    with pytest.raises(UnstackableError, match="several dtypes"):
        make_program(mixed, task, task.splits(task.clients[0]).train)


def test_a_probe_leaves_the_models_buffers_as_they_were() -> None:
    task = load_task(config_of(task="digits", model="tests.client.nets:Masked"))
    model = task.model()
    with pytest.raises(UnstackableError):
        make_program(model, task, task.splits(task.clients[0]).train)
    assert int(model.get_buffer("steps")) == 0


class Lowest(nn.Module):
    """A model with the lowest value of each input so far as a buffer, or as an attribute."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(inputs, outputs)
        self.keep(torch.full((inputs,), 9.0))

    def keep(self, low: Tensor) -> None:
        self.register_buffer("low", low)

    def forward(self, examples: Tensor) -> Tensor:
        rows = examples.flatten(1)
        self.low = torch.minimum(self.low, rows.detach().amin(0))
        return self.last(rows - self.low)


class LowestAttribute(Lowest):
    def keep(self, low: Tensor) -> None:
        self.low = low


class Watched(Lowest):
    """A model with an attribute that it writes and never reads."""

    def forward(self, examples: Tensor) -> Tensor:
        self.seen = examples.mean()
        return self.last(examples.flatten(1))


@pytest.mark.parametrize(
    ("net", "reason"),
    [(Lowest, "changes buffers"), (LowestAttribute, "PyTorch cannot map it")],
)
def test_a_tensor_that_forward_assigns_is_restored(net: type[nn.Module], reason: str) -> None:
    task = load_task(config_of(task="digits", model=f"{__name__}:{net.__name__}"))
    model: Any = task.model()
    for _ in range(2):
        with pytest.raises(UnstackableError, match=reason):
            make_program(model, task, task.splits(task.clients[0]).train)
    assert torch.equal(model.low, torch.full((64,), 9.0))
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_tensor_that_forward_only_writes_is_stacked() -> None:
    task = load_task(config_of(task="digits", model=f"{__name__}:Watched"))
    model: Any = task.model()
    assert isinstance(make_program(model, task, task.splits(task.clients[0]).train), Mapped)
    assert model.seen is None


def test_a_model_that_assigns_a_buffer_runs_in_the_loop(tmp_path: Path) -> None:
    settings = config_of(task="digits", model=f"{__name__}:Lowest", **{"num-rounds": 2})
    simulate(Settings.of({**settings, "out": str(tmp_path)}))
    assert "it changes buffers as it trains" in (tmp_path / "engine.json").read_text()
    assert {row["replies_used"] for row in rounds(tmp_path)} == {str(settings["clients"])}


@pytest.mark.parametrize("net", nets.USABLE, ids=lambda net: net.__name__)
def test_a_corner_of_pytorch_is_computed_right_or_refused(net: type[nn.Module]) -> None:
    config = config_of(
        task="digits", model=f"tests.client.nets:{net.__name__}", **{"weight-decay": 0.01}
    )
    try:
        program(config["model"], task="digits")
    except UnstackableError:
        return
    loop, stacked, _ = both(config)
    ours, expected = (
        engine.train(loop.online(1), model_of(config), PLAIN_TERMS) for engine in (stacked, loop)
    )
    assert_same_replies(ours, expected, 1e-2 if net in (nets.Half, nets.Autocast) else 1e-5)


def test_chains_are_products_and_other_models_are_mapped() -> None:
    assert isinstance(program("mlp"), Chain)
    assert isinstance(program("cnn"), Mapped)
    assert isinstance(program("tests.client.nets:Frozen", task="digits"), Mapped)
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    hooked[1].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    task = load_task(config_of())
    assert isinstance(make_program(hooked, task, task.splits(task.clients[0]).train), Mapped)


# One bad client, and too little memory ------------------------------------------------------------


def test_one_bad_client_is_refused_alone() -> None:
    """One has labels that are not classes, which fails the whole block, one infinite examples."""
    loop, stacked, model = both(config_of(**{"doubled.apart": True, "batch-size": 8}))
    names = loop.online(1)
    for engine in (loop, stacked):
        engine.local(names[2]).splits.train.targets.fill_(10)
        engine.local(names[5]).splits.train.inputs.fill_(float("inf"))
        engine.local(names[4]).splits.test.targets.fill_(10)
    ours, expected = (engine.train(names, model, PLAIN_TERMS) for engine in (stacked, loop))
    assert_same_replies(ours, expected, 1e-12)
    assert set(ours.refused.reasons) == {names[2], names[5]}
    assert (
        "is not finite" in ours.refused.reasons[names[5]]
        or "finite number" in ours.refused.reasons[names[5]]
    )
    measured, due = (
        engine.evaluate(names, model, Terms(server_round=1), names) for engine in (stacked, loop)
    )
    assert_same_replies(measured, due, 1e-12)
    assert set(measured.refused.reasons) == {names[4]}


def test_a_block_beyond_memory_is_computed_in_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fairbloom.simulation.stacked.clients as engine

    train_together = engine.train_together
    sizes = list[int]()

    def short_of_memory(program: Any, task: Any, rows: Any, *others: Any, **named: Any) -> Any:
        sizes.append(len(rows.arrays[0]))
        if sizes == [4]:
            raise torch.OutOfMemoryError("a made-up card is full")
        return train_together(program, task, rows, *others, **named)

    loop, stacked, model = both(config_of())
    stacked.block = 4
    stacked.capture = Capture(PlainRecorder())
    expected = loop.train(loop.online(1), model, PLAIN_TERMS)
    monkeypatch.setattr(engine, "train_together", short_of_memory)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert_same_replies(stacked.train(loop.online(1), model, PLAIN_TERMS), expected, 1e-12)
        first = len(sizes)
        assert_same_replies(stacked.train(loop.online(1), model, PLAIN_TERMS), expected, 1e-12)
    assert max(sizes[first:]) <= 2  # it is not tried again
    assert max(sizes[1:first]) == 4  # the round's other blocks were there before
    assert "more memory than is free" in caplog.text
    assert "one by one" not in caplog.text


def test_a_failure_that_is_no_clients_own_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any, **named: Any) -> Tensor:
        raise RuntimeError("a fault of the engine")

    monkeypatch.setattr("fairbloom.simulation.stacked.clients.train_together", broken)
    loop, stacked, model = both(config_of())
    with caplog.at_level(logging.WARNING, "flwr"):
        ours = stacked.train(loop.online(1), model, PLAIN_TERMS)
    assert_same_replies(ours, loop.train(loop.online(1), model, PLAIN_TERMS), 1e-12)
    assert "computed one by one" in caplog.text
    assert "a fault of the engine" in caplog.text


def test_examples_that_stay_outside_come_batch_by_batch() -> None:
    stored = torch.randn(20, 3), torch.randint(2, (20,))
    device = torch.device("meta")
    joined = Examples(*stored, rows=torch.arange(4, 20), streamed_to=device)
    stretch = gather(joined, torch.tensor([[0], [8]]), [[torch.arange(3), torch.arange(2)]])
    (step,) = stretch.steps()
    assert not stretch.shared
    assert {each.device for each in step.tensors()} == {device}


# Blocks -------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=40),
    batch=st.integers(0, 60),
    most=st.integers(1, 12),
)
def test_blocks_hold_everybody_once_and_little_to_fill_up(
    sizes: list[int], batch: int, most: int
) -> None:
    members = [
        StackedClient(None, place, 1, count, size, -(-count // size))  # type: ignore[arg-type]
        for place, count in enumerate(sizes)
        for size in [min(batch or count, count)]
    ]
    made = list(divide_into_blocks(members, most))
    assert sorted(member.place for block in made for member in block) == list(range(len(sizes)))
    for block in made:
        assert 1 <= len(block) <= most
        assert [member.steps for member in block] == sorted(
            (member.steps for member in block), reverse=True
        )
        real = sum(member.batch for member in block)
        assert len(block) * max(member.batch for member in block) <= MAX_PADDING * real


ODD = "tests.simulation.odd"


@pytest.mark.parametrize(("name", "engine"), [("one_logit", "loop"), ("column", "stacked")])
def test_a_single_logit_is_thresholded_at_0(tmp_path: Path, name: str, engine: str) -> None:
    folder = run(
        tmp_path / name,
        task=f"{ODD}:{name}",
        num_rounds=25,
        learning_rate=0.5,
        engine=engine,
    )
    assert np.mean([*fairbloom.load(folder).final().values()]) > 90.0


@pytest.mark.parametrize(
    ("name", "shapes"), {"quantity": ("(10, 1)", "(10,)"), "wide": ("(10, 3)", "(10, 1)")}.items()
)
def test_shapes_that_are_not_of_classes_are_refused(
    tmp_path: Path, name: str, shapes: tuple[str, ...]
) -> None:
    with pytest.raises(FairbloomError, match="trial step") as refused:
        run(tmp_path / name, task=f"{ODD}:{name}", num_rounds=1)
    assert [words for words in (*shapes, "scores=") if words not in str(refused.value)] == []
    assert not (tmp_path / name / "checkpoint" / "1.safetensors").exists()


def test_places_that_are_left_out_and_soft_labels_are_learned(tmp_path: Path) -> None:
    """The same loss takes autograd in each engine, and gives the same model."""
    models = {}
    for name in ("ignored", "soft", "soft_partial"):
        for engine in ("loop", "stacked"):
            models[name, engine] = fairbloom.load(
                run(tmp_path / name / engine, task=f"{ODD}:{name}", num_rounds=2, engine=engine)
            ).arrays()["weight"]
        np.testing.assert_allclose(models[name, "loop"], models[name, "stacked"], atol=1e-5)
    np.testing.assert_allclose(models["soft", "loop"], models["soft_partial", "loop"], atol=1e-6)


@pytest.mark.parametrize("words", ["fair(", "learning-rate"])
def test_a_loss_that_is_nan_at_all_clients_is_named(tmp_path: Path, words: str) -> None:
    with pytest.raises(FairbloomError, match=r"in round 3, .* 'loss-before' .* got nan") as refused:
        run(tmp_path / "run", task=f"{ODD}:nan_loss", method="fedfv", num_rounds=3)
    assert words not in str(refused.value)


def test_constants_that_are_not_finite_are_carried(tmp_path: Path) -> None:
    arrays = fairbloom.load(
        run(tmp_path / "run", model=f"{ODD}:CausalMask", clients=3, num_rounds=2)
    ).arrays()
    assert (arrays["mask"] == -np.inf).sum() == 6
    assert np.isfinite(arrays["last.weight"]).all()


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "BatchAlone": ("BatchAlone", "more than 1 value per channel", "its BatchNorm (2)"),
        "Expanded": ("'weights'", ".clone()"),
    }.items(),
)
def test_models_that_cannot_be_used_are_refused_by_name(
    tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(FairbloomError) as refused:
        run(tmp_path / name, model=f"{ODD}:{name}", clients=3, num_rounds=1)
    assert [each for each in words if each not in str(refused.value)] == []


def in_unit(place: Path, unit: float) -> dict[str, Any]:
    """Write a table of each of two clients; return the settings of a run on them."""
    place.mkdir()
    for seed, name in enumerate(("a", "b")):
        ages = np.random.default_rng(seed).uniform(20.0, 80.0, 40).round(1)
        rows = [f"{age},{float((2.0 * age + 1.0) * unit)!r}" for age in ages]
        (place / f"{name}.csv").write_text("\n".join(["age,target", *rows]))
    return {"task": "csv", "data_dir": str(place), "num_rounds": 2, "csv.kind": "regression"}


def test_a_quantity_of_any_unit_is_scored_or_refused_by_name(tmp_path: Path) -> None:
    """The error is in the target's unit, beyond the range of float32 as well."""
    errors = []
    for number, unit in enumerate((1.0, 1e61, 1e-59)):
        folder = run(tmp_path / f"run{number}", **in_unit(tmp_path / str(number), unit))
        errors.append(np.mean([*fairbloom.load(folder).final().values()]) / unit)
    np.testing.assert_allclose(errors, errors[0], rtol=1e-4)
    with pytest.raises(FairbloomError, match="'target'"):
        run(tmp_path / "run", **in_unit(tmp_path / "large", 1e200))


class ByBrier(FedAvg):
    """Asks for a score that digits does not have by itself."""

    needs = frozenset({"brier-after"})


def test_a_method_that_needs_a_missing_score_is_refused(tmp_path: Path) -> None:
    words = r"'fedfa': it weighs clients by accuracy-after, and task csv has no accuracy here, but"
    with pytest.raises(FairbloomError, match=words):
        run(tmp_path / "run", **in_unit(tmp_path / "data", 1.0), method="fedfa")
    asking = {"method": f"{__name__}:ByBrier", "num_rounds": 1}
    with pytest.raises(FairbloomError, match=r"has no brier here.*: choose another method"):
        run(tmp_path / "run", **{**in_unit(tmp_path / "same", 1.0), **asking})
    with pytest.raises(FairbloomError, match=r"has no brier here.*set scores = 'brier'"):
        run(tmp_path / "run", **asking)
    assert not (tmp_path / "run").exists()
    run(tmp_path / "run", **asking, scores="brier")


def changes_of(task: str) -> dict[str, Any]:
    return {
        **{
            "task": f"tests.simulation.several:{task}",
            "clients": 4,
            "num_rounds": 2,
            "method": "ditto",
        },
        **{"batch_size": 3, "local_epochs": 2, "learning_rate": 0.3, "fraction": 1.0},
    }


def test_a_dataset_and_a_models_loss_give_the_numbers_of_tensors(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Batches that are filled up to their own longest sequence, and losses that the model takes
    itself."""
    names = ("masked", "collated", "of_itself")
    expected, *others = (run(tmp_path / name, engine="loop", **changes_of(name)) for name in names)
    for ours, name in product(others, ("rounds.csv", "clients.csv")):
        with subtests.test(ours=ours, name=name):
            for row, due in zip(
                without_seconds(ours / name), without_seconds(expected / name), strict=True
            ):
                assert row.keys() == due.keys()
                assert all(
                    row[key] == due[key] or float(row[key]) == pytest.approx(float(due[key]), 1e-12)
                    for key in due
                )


def test_tensors_and_a_dataset_are_not_pooled() -> None:
    part = load_task(small("", **changes_of("masked")).run_config()).splits("client-0").train
    assert isinstance(part, Examples)
    with pytest.raises(
        FairbloomError, match="some clients' examples are tensors, and others' are of a Dataset"
    ):
        join([part, of_lines(part)])


def test_weights_in_bfloat16_are_averaged_in_float32(tmp_path: Path) -> None:
    model = load_file(
        run(tmp_path / "run", model="tests.client.nets:BFloat", engine="loop", num_rounds=2)
        / "model.safetensors"
    )
    assert {array.dtype for array in model.values()} == {np.dtype(np.float32)}
    rounded = {
        name: torch.from_numpy(array).bfloat16().float().numpy() for name, array in model.items()
    }
    assert any((rounded[name] != array).any() for name, array in model.items())
