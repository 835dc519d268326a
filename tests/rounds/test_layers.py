"""Inner products and coefficients by array: what they are in vectors, however the arrays lie in
chunks.

Frozen parameters: they are sent once, and never change.

Models in a matrix, in memory or in a file, are to the bit what they are, borrowed; one pass
screens them all.
"""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from hypothesis import given, strategies as st

from fairbloom.client.app import app
from fairbloom.client.local import load_task_and_model
from fairbloom.errors import FairbloomError
from fairbloom.protocol.names import CLIENT, FROZEN
from fairbloom.protocol.settings import RunSettings
from fairbloom.rounds import arrays, updates, vectors
from fairbloom.rounds.aggregation import NoStepError, build_cohort, decide
from fairbloom.rounds.arrays import CHUNK_COLUMNS, FloatArray
from fairbloom.rounds.clients import TrainReplies
from fairbloom.rounds.cohort import Cohort, Decision, Kept, MethodError
from fairbloom.rounds.flower import FlowerClients
from fairbloom.rounds.layout import Layout
from fairbloom.rounds.loop import Rounds
from fairbloom.rounds.refusals import Refusals
from fairbloom.rounds.round import Round, size_on_the_wire
from fairbloom.rounds.updates import Updates
from fairbloom.rounds.vectors import Vectors, combine, gram_matrices
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.simulation.memory import GIGABYTE, empty_matrix
from fairbloom.strategies import FairStrategy, FedMGDA
from fairbloom.tasks.models import frozen_parameters
from tests.client import nets
from tests.federation import BUFFERS, flat, initial_model, quadratics, run, unpack

from .helpers import gram_matrix, squared_norms, taken_in, taken_in as borrowed
from .implementations import bits, method_and_model

# A single number, no numbers, and arrays with which a chunk of 1 to 100 columns has parts of many
# or of one.
SHAPES: Sequence[tuple[int, ...]] = ((), (0,), (1,), (3,), (2, 3), (0, 4), (50,), (4, 5, 6))


@st.composite
def models(draw: st.DrawFn) -> tuple[Layout, list[dict[str, np.ndarray]], np.random.Generator]:
    """A layout with a buffer, an integer, a frozen array and one array under two names, and the
    models of clients."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = draw(st.lists(st.sampled_from(SHAPES), max_size=12))
    scales = draw(st.sampled_from(((1.0,), (1.0, 1e-30, 1e25), (0.0, 1.0))))
    names = {f"layer-{k}.weight": shape for k, shape in enumerate(shapes)}

    def made(frozen: np.ndarray) -> dict[str, np.ndarray]:
        scale = rng.choice(scales)
        model = {
            name: np.asarray(scale * rng.normal(size=shape), np.float32)
            for name, shape in names.items()
        }
        model |= {
            "mean": rng.normal(size=2).astype(np.float32),
            "base": frozen,
            "steps": np.array(rng.integers(99)),
        }
        return model | ({"twin": model["layer-0.weight"]} if shapes else {})

    base = rng.normal(size=4).astype(np.float32)
    layout = Layout(made(base), ("mean",), {"twin": "layer-0.weight"} if shapes else {}, ("base",))
    return layout, [made(base) for _ in range(draw(st.integers(1, 5)))], rng


def fragments(stored: Updates) -> list[FloatArray]:
    """The updates in float64, one matrix of shape (m, size) for each array."""
    whole = np.vstack([np.asarray(block) for block in stored.vectors.blocks]).astype(np.float64)
    return [whole[:, place] for _, place in stored.layout.slices]


# Inner products -----------------------------------------------------------------------------------

CHUNKS = st.sampled_from((1, 7, 100))


@given(drawn=models(), chunk=CHUNKS, few=st.booleans())
def test_inner_products_are_those_of_the_trained_entries(drawn: Any, chunk: int, few: bool) -> None:
    """Each array's, and the whole ones: a parameter of two names counts once, and buffers and
    frozen arrays never."""
    layout, replies, _ = drawn
    rounding, tiny = (1e-12, 1e-300) if few else (1e-6, 1e-36)  # the least square of float32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        patch.setattr(vectors, "EXACT_NUMBERS", 10**9 if few else 0)
        stored = taken_in(layout, replies)
        assert stored.screen(gram=False) == {}
        grams = stored.grams(stored.vectors, exact=False)
        whole = stored.gram(stored.vectors, exact=False)
        parts = fragments(stored)
        squares = squared_norms(stored.vectors)
    assert list(layout.trainable) == [name for name in layout.arrays if name.startswith("layer-")]
    assert grams.shape == (len(layout.trainable), len(replies), len(replies))
    norms = np.sqrt(np.diag(whole))
    for gram, U, name in zip(grams, parts, layout.trainable, strict=True):
        received, after = (
            np.array([model[name].ravel() for model in models], np.float64)
            for models in ([layout.arrays] * len(replies), replies)
        )
        largest = np.abs(received).max(initial=0.0) + np.abs(after).max(initial=0.0)
        np.testing.assert_allclose(U, received - after, atol=1e-6 * largest)
        lengths = np.linalg.norm(U, axis=1)
        np.testing.assert_array_less(
            np.abs(gram - U @ U.T), rounding * np.outer(lengths, lengths) + tiny
        )
        np.testing.assert_array_equal(gram, gram.T)
    assert (np.abs(grams.sum(axis=0) - whole) <= rounding * np.outer(norms, norms)).all()
    np.testing.assert_allclose(
        squares, sum(((U**2).sum(axis=1) for U in parts), np.zeros(len(replies))), rtol=rounding
    )


def test_equal_updates_have_equal_products_in_every_array(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    U = np.random.default_rng(0).normal(size=(5, 2 * CHUNK_COLUMNS + 3)).astype(np.float32)
    U[3] = U[1]
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    products = vectors.squares_and_products

    def uneven(vectors: Vectors, ends: Sequence[int], *, exact: bool) -> Any:
        """The products of a processor with a rounding that depends on the place of a row."""
        squares, found = products(vectors, ends, exact=exact)
        error = np.random.default_rng(1).normal(scale=1e-7, size=(5, 5))
        return squares, found * (1.0 + error + error.T)

    monkeypatch.setattr(vectors, "squares_and_products", uneven)
    for gram in gram_matrices(Vectors((U,)), (4, CHUNK_COLUMNS + 9, 2 * CHUNK_COLUMNS + 3)):
        with subtests.test(gram=gram):
            np.testing.assert_array_equal(gram[3], gram[1])
            np.testing.assert_array_equal(gram[:, 3], gram[:, 1])
            assert gram[0, 0] != gram[1, 1]


@pytest.mark.parametrize("tiny", [1e-155, 1e-200, 1e-300])
def test_a_part_next_to_nothing_has_products_of_zero(tiny: float) -> None:
    U = np.array([[tiny, 1.0], [3.0, 1.0], [0.0, tiny]])
    whole = gram_matrix(Vectors((U,)))
    grams = gram_matrices(Vectors((U,)), (1, 2))
    assert whole[2].tolist() == whole[:, 2].tolist() == [0.0, 0.0, 0.0]
    assert whole[:2, :2].tolist() == [[1.0, 1.0 + 3.0 * tiny], [1.0 + 3.0 * tiny, 10.0]]
    assert grams[0].tolist() == [[0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]]
    assert grams[1].tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


# Steps --------------------------------------------------------------------------------------------


@given(drawn=models(), chunk=CHUNKS, few=st.booleans(), by_array=st.booleans())
def test_each_array_is_stepped_by_its_own_coefficients(
    drawn: Any, chunk: int, few: bool, by_array: bool
) -> None:
    """Or all by the same; buffers are averaged by examples, and integers are those of the client
    with the most."""
    layout, replies, rng = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        patch.setattr(vectors, "EXACT_NUMBERS", 10**9 if few else 0)
        stored = taken_in(layout, replies)
        assert stored.screen(gram=False) == {}
        C = rng.normal(size=(len(layout.trainable), len(replies)) if by_array else len(replies))
        counts = rng.integers(1, 9, len(replies)).astype(np.float64)
        after, _ = stored.model_after(C, stored.vectors, counts / counts.sum(), counts)
        parts = fragments(stored)
    for number, (name, U) in enumerate(zip(layout.trainable, parts, strict=True)):
        received = layout.arrays[name].astype(np.float64)
        expected = received - ((C[number] if by_array else C) @ U).reshape(received.shape)
        largest = np.abs(U).max(initial=0.0) + np.abs(received).max(initial=0.0)
        np.testing.assert_allclose(after[name], expected, atol=1e-5 * largest)
    assert {name: (type(array), array.dtype, array.shape) for name, array in after.items()} == {
        name: (type(array), array.dtype, array.shape) for name, array in layout.arrays.items()
    }
    assert list(after) == list(layout.arrays)
    assert after["base"] is layout.arrays["base"]
    assert after["steps"] == replies[int(np.argmax(counts))]["steps"]
    mean = np.average([reply["mean"] for reply in replies], axis=0, weights=counts)
    np.testing.assert_allclose(after["mean"], mean, rtol=1e-5, atol=1e-6)
    if "twin" in layout.shared:
        np.testing.assert_array_equal(after["twin"], after["layer-0.weight"])


# A round ------------------------------------------------------------------------------------------


class ByArray(FairStrategy):
    """The weight goes by the first client, the bias by the mean of all, and the scale against the
    last one.

    It keeps the mean update, and steps the scale along the one of the round before.
    """

    requires = frozenset({"gram by array"})
    default_weighting = None

    def weigh(self, cohort: Cohort) -> Decision:
        C = np.zeros((len(cohort.arrays), cohort.size + len(cohort.memory)))
        C[cohort.arrays.index("weight"), 0] = 1.0
        C[cohort.arrays.index("bias"), : cohort.size] = 1.0 / cohort.size
        C[cohort.arrays.index("scale"), cohort.size - 1] = -1.0
        C[cohort.arrays.index("scale"), cohort.size :] = 0.5
        mean = np.append(np.full(cohort.size, 1.0 / cohort.size), np.zeros(len(cohort.memory)))
        return Decision(C, keep={Kept("mean", cohort.round): mean})


def test_a_round_steps_by_array_and_records_its_coefficients() -> None:
    _, rounds = run(ByArray(buffers=BUFFERS, fraction_train=0.6), rounds=2)
    before = initial_model()
    clients = quadratics(6)
    kept = np.zeros(10)
    for finished in rounds:
        U = np.array(
            [flat(before) - flat(clients[name].trained(before)) for name in finished.participants]
        )
        m = len(U)
        (weight, bias, scale) = np.split(U, [6, 9], axis=1)
        step = np.concatenate([weight[0], bias.mean(axis=0), -scale[-1] + 0.5 * kept[9:]])
        after = unpack(finished.arrays)
        np.testing.assert_allclose(flat(after), flat(before) - step, rtol=1e-5, atol=1e-5)
        C = np.vstack([np.eye(m)[0], np.full(m, 1.0 / m), -np.eye(m)[-1]])
        squares = np.array([(part**2).sum(axis=1) for part in (weight, bias, scale)])
        expected = (C * squares).sum(axis=0) / squares.sum(axis=0)
        np.testing.assert_allclose(list(finished.coefficients.values()), expected, rtol=1e-5)
        before = after
        kept = U.mean(axis=0)


def made(method: FairStrategy, U: FloatArray, sizes: Sequence[int]) -> Cohort:
    """The cohort of updates of zeros, of a model with arrays of these sizes."""
    model = {f"a{k}": np.zeros(size) for k, size in enumerate(sizes)}
    names = [f"client-{k}" for k in range(len(U))]
    trained = TrainReplies.empty(method.layout_of(model), refused=Refusals(1))
    for name, u in zip(names, U, strict=True):
        parts = dict(zip(model, np.split(-u, np.cumsum(sizes)[:-1]), strict=True))
        trained.add(name, {"num-examples": 1.0}, parts, {})
    draws = dict.fromkeys(names, 1)
    cohort, _ = build_cohort(
        method, trained, server_round=1, num_rounds=2, online=names, draws=draws, sent={}
    )
    return cohort


def test_a_layerwise_gram_matrix_is_the_sum_to_the_bit() -> None:
    U = np.random.default_rng(0).normal(size=(3, 9))
    cohort, plain = (made(method, U, (2, 0, 4, 3)) for method in (ByArray(), FedMGDA()))
    assert cohort.arrays == ("a0", "a1", "a2", "a3")
    np.testing.assert_array_equal(cohort.gram, cohort.grams.sum(axis=0))
    np.testing.assert_allclose(plain.gram, U @ U.T, rtol=1e-12)
    np.testing.assert_allclose(plain.grams, cohort.grams, rtol=1e-12)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 4), (2, 3, 1), ()])
def test_coefficients_of_another_shape_are_refused_by_shapes(shape: tuple[int, ...]) -> None:
    cohort = made(ByArray(), np.eye(3), (2, 1))
    odd = type(
        "Odd", (FairStrategy,), {"weigh": lambda self, cohort, shape=shape: np.ones(shape)}
    )()
    with pytest.raises(MethodError, match=r"Odd\.weigh.*shape \(3,\).*shape \(2, 3\)"):
        decide(odd, cohort)
    wrong = np.array([[1.0, 1.0, 1.0], [1.0, np.inf, 1.0]])
    infinite = type("Infinite", (FairStrategy,), {"weigh": lambda self, cohort: wrong})()
    with pytest.raises(MethodError, match=r"not finite \(of client-1\)"):
        decide(infinite, cohort)


def test_inner_products_that_are_not_finite_are_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Updates, "grams", lambda *_, **__: np.full((1, 1, 1), np.inf))
    with pytest.raises(
        NoStepError, match=r"not finite; .* of the length 1, is that of client client-0"
    ):
        _ = made(ByArray(), np.ones((1, 1)), (1,)).grams


SETTINGS: dict[str, Any] = {
    **{"clients": 4, "model": "tests.nets:Adapted", "num-rounds": 3, "method": "fedfv"},
    **{"device": "cpu", "batch-size": 0},
}

# A client that misbehaves: maps a message and the honest answer to its answer.
Node = Callable[[Message, Callable[[Message], Message]], Message]


class Grid(InProcessGrid):
    """Clients in this process, of which some are `nodes` of their own; it notes what travels,
    unpacked."""

    def __init__(self, settings: Settings, nodes: Mapping[int, Node] | None = None) -> None:
        super().__init__(app, settings.run_config(), settings.clients)
        self.nodes = nodes or {}
        self.sent: list[tuple[int, str, RecordDict]] = []

    def _answer(self, message: Message) -> Message:
        place = message.metadata.dst_node_id - 2
        self.sent.append((place, message.metadata.message_type, message.content))
        node = self.nodes.get(place)
        return super()._answer(message) if node is None else node(message, super()._answer)

    def whole(self, place: int, kind: str = MessageType.TRAIN) -> list[bool]:
        """Return of each message to a client whether it has the frozen parameters."""
        found = [
            content.array_records["arrays"]
            for to, what, content in self.sent
            if (to, what) == (place, kind)
        ]
        return ["second.weight" in record for record in found]


def run_frozen(nodes: Mapping[int, Node] | None = None, **changes: Any) -> tuple[Grid, list[Round]]:
    """Run as a deployed server does."""
    settings = Settings.of({**SETTINGS, **changes})
    method, model = method_and_model(settings)
    grid = Grid(settings, nodes)
    loop = Rounds(method, FlowerClients(method, grid, 60.0), settings.num_rounds)
    return grid, list(loop.run(model, measure=lambda number: [], measure_after=[]))


class Elsewhere:
    """A client on a machine of its own, which has built other frozen parameters and begins with
    these in round 3."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._model = load_task_and_model(RunSettings.of(config))[1]
        self.trained = 0

    def __call__(self, message: Message, answer: Callable[[Message], Message]) -> Message:
        self.trained += message.metadata.message_type == MessageType.TRAIN
        restarts = self.trained == 3 and message.metadata.message_type == MessageType.TRAIN
        ours = {
            name: tensor.clone()
            for name, tensor in self._model.state_dict().items()
            if name in frozen_parameters(self._model)
        }
        if restarts:
            self._model.load_state_dict(
                {name: tensor + 0.25 for name, tensor in ours.items()}, strict=False
            )
        reply = answer(message)
        self._model.load_state_dict(ours, strict=False)
        return reply


@pytest.fixture(scope="module")
def plain() -> tuple[Grid, list[Round]]:
    """A run with clients that build the frozen parameters themselves."""
    return run_frozen()


# Which clients have them --------------------------------------------------------------------------


def test_the_first_message_alone_has_them(
    plain: tuple[Grid, list[Round]], subtests: pytest.Subtests
) -> None:
    grid, rounds = plain
    assert all(not finished.refused for finished in rounds)
    for place in range(4):
        with subtests.test(place=place):
            assert grid.whole(place) == [True, False, False]
            assert grid.whole(place, MessageType.EVALUATE) == [False] * 3
    method, model = method_and_model(Settings.of(SETTINGS))
    whole = sum(map(size_on_the_wire, model.values()))
    changing = whole - sum(size_on_the_wire(model[name]) for name in method.frozen)
    assert changing < 0.2 * whole
    assert [finished.bytes_sent for finished in rounds] == [
        4 * whole + 4 * changing,
        8 * changing,
        8 * changing,
    ]
    assert [finished.bytes_received for finished in rounds] == [4 * changing] * 3
    travelled = [
        each
        for _, _, content in grid.sent
        for record in content.array_records.values()
        for each in record.values()
    ]
    assert sum(len(array.data) for array in travelled) == sum(
        finished.bytes_sent for finished in rounds
    )


def test_a_client_that_has_lost_them_misses_one_round() -> None:
    grid, rounds = run_frozen(
        {2: Elsewhere(Settings.of(SETTINGS).run_config())}, **{"num-rounds": 4}
    )
    assert grid.whole(2) == [True, False, False, False]
    assert grid.whole(2, MessageType.EVALUATE) == [False, False, True, False]
    assert [list(finished.refused) for finished in rounds] == [[], [], ["client-2"], []]
    assert "frozen parameters" in rounds[2].refused["client-2"]


def test_flowers_hooks_send_whole_models() -> None:
    settings = Settings.of(SETTINGS)
    method, model = method_and_model(settings)
    grid = Grid(settings)
    finished = list[Round]()
    arrays = ArrayRecord({name: Array(array) for name, array in model.items()})
    method.start(grid, initial_arrays=arrays, num_rounds=2, on_round=finished.append)
    assert grid.whole(0) == [True] * 2
    whole = sum(map(size_on_the_wire, model.values()))
    assert [each.bytes_sent for each in finished] == [8 * whole] * 2
    assert [each.bytes_received for each in finished] == [4 * whole] * 2


# Clients that lie ---------------------------------------------------------------------------------


def with_frozen(weight: Any) -> Node:
    """Return a client that replies another frozen parameter."""

    def node(message: Message, answer: Callable[[Message], Message]) -> Message:
        reply = answer(message)
        if message.metadata.message_type == MessageType.TRAIN:
            reply.content.array_records["arrays"]["second.weight"] = Array(weight)
        return reply

    return node


def test_clients_that_reply_others_are_refused_with_a_remedy() -> None:
    frozen = method_and_model(Settings.of(SETTINGS))[1]["second.weight"]
    wrong = (
        frozen + np.float32(1e-3),
        frozen * np.float32(np.nan),
        frozen[:3],
        frozen.astype(np.int64),
    )
    _, (finished,) = run_frozen(
        dict(enumerate(map(with_frozen, wrong), start=1)), clients=5, **{"num-rounds": 1}
    )
    assert set(finished.refused) == {f"client-{place}" for place in range(1, 5)}
    assert all("requires_grad = False" in reason for reason in finished.refused.values())
    assert finished.arrays["second.weight"].tobytes() == frozen.tobytes()


def silent(message: Message, answer: Callable[[Message], Message]) -> Message:
    """Answer like an app without support for frozen parameters."""
    config = message.content.config_records.get("config", ConfigRecord())
    known = ConfigRecord({key: value for key, value in config.items() if key != FROZEN})
    message.content = RecordDict({**message.content, "config": known})
    return answer(message)


def claiming(digest: Any, honest: int = 0) -> Node:
    """Return a client that reports another digest of its frozen parameters after honest replies."""
    replies = itertools.count()

    def node(message: Message, answer: Callable[[Message], Message]) -> Message:
        reply = answer(message)
        named = FROZEN in reply.content.config_records.get(CLIENT, ConfigRecord())
        if named and next(replies) >= honest:
            reply.content.config_records[CLIENT][FROZEN] = digest
        return reply

    return node


def test_clients_that_do_not_know_frozen_arrays_get_all(plain: tuple[Grid, list[Round]]) -> None:
    grid, rounds = run_frozen(
        {0: silent, 1: claiming(7), 2: claiming(["a"]), 3: claiming("0" * 64)}
    )
    assert [bits(each.arrays) for each in rounds] == [bits(each.arrays) for each in plain[1]]
    assert [grid.whole(place) for place in range(4)] == [[True] * 3] * 4


def test_one_report_of_frozen_arrays_is_enough() -> None:
    grid, _ = run_frozen({0: claiming("", honest=1)})
    assert grid.whole(0) == [True, False, False]


def test_a_model_that_changes_them_in_training_is_refused() -> None:
    _, rounds = run_frozen(model="tests.nets:Following", **{"unused-rounds": 0, "num-rounds": 1})
    assert "'second.bias' of the model is written to" in rounds[0].refused["client-2"]
    assert "register_buffer" in rounds[0].refused["client-2"]


# What is an update --------------------------------------------------------------------------------


def test_tied_parameters_are_frozen_together() -> None:
    w = {"a": np.ones(3), "b": np.ones(3), "table": np.arange(4), "c": np.zeros(2)}
    layout = Layout(w, (), {"b": "a"}, ("a", "table"))
    assert (layout.trainable, layout.integers, layout.frozen) == (("c",), (), {"a", "b", "table"})
    module = nets.Tied(10)
    module.requires_grad_(False)
    assert set(frozen_parameters(module)) == {
        name for name, _ in module.named_parameters(remove_duplicate=False)
    }


@pytest.mark.parametrize(
    ("buffers", "frozen", "words"),
    [
        (("mean",), ("missing",), "frozen names 'missing'"),
        (("mean",), ("mean",), "frozen names 'mean'"),
        (("steps",), (), "buffers names 'steps'"),
    ],
)
def test_a_name_that_is_no_parameter_is_refused(
    buffers: tuple[str, ...], frozen: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Layout({"w": np.ones(2), "mean": np.ones(2), "steps": np.array(1)}, buffers, {}, frozen)


# Gigabytes that hold one byte.
TINY = 1e-9

MEAN = ("mean",)
TIED = {"twin": "a"}
ODD = (1e-44, 1e-30, 1e25, 3e38, -3e38, np.nan, np.inf, -np.inf)


def model_of(flat: Any, dtypes: tuple[str, str] = ("float32", "float32")) -> dict[str, np.ndarray]:
    """Return a model of five numbers in two arrays, with a buffer, an integer and a name more for
    the first array."""
    a = np.asarray(flat[:2], dtypes[0])
    return {
        "twin": a,
        "a": a,
        "mean": np.float32(flat[5:7]),
        "b": np.asarray(flat[2:5], dtypes[1]).reshape(3, 1),
        "steps": np.array(7 * len(flat)),
    }


def written(
    layout: Layout, models: list[dict[str, np.ndarray]], cut: int = 0, gigabytes: float = 1.0
) -> Updates:
    """Write models into the rows of a matrix, in memory or in a file, and add them: `cut` of them
    first."""
    matrix = empty_matrix(len(models), layout.size, layout.dtype, gigabytes)
    assert isinstance(matrix, np.memmap) == (gigabytes == TINY)
    stored = Updates(layout, matrix)
    for start, stop in ((0, cut), (cut, len(models))):
        for k in range(start, stop):
            for name, place in layout.slices:
                stored.matrix[k, place] = models[k][name].ravel()
        stored.add_rows(
            [{name: model[name] for name in ("mean", "steps")} for model in models[start:stop]]
        )
    return stored


def screened(stored: Updates, *, gram: bool = False) -> dict[int, str]:
    """Remove the unusable updates; return the reasons by place."""
    wrong = {**stored.screen(gram=gram)}
    stored.remove(*wrong)
    return {place: str(reason) for place, reason in wrong.items()}


def contents(stored: Updates) -> list[Any]:
    vectors = stored.vectors
    m = len(stored.vectors)
    counts = np.arange(1.0, m + 1)
    steps = []
    for step in np.eye(m):
        try:
            after, _ = stored.model_after(step, vectors, counts / counts.sum(), counts)
            steps.append(after)
        except ValueError as reason:
            steps.append({"reason": np.array(str(reason))})
    after = [
        {name: (str(array.dtype), array.tobytes()) for name, array in model.items()}
        for model in steps
    ]
    return [np.asarray(vectors.blocks[0]).tobytes(), vectors.needs_float64, after]


def drawn(
    seed: int, m: int, odd: float, dtypes: tuple[str, str]
) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a random model, and models of which some have numbers out of range."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=7)
    flats = rng.normal(size=(m, 7))
    strange = rng.random((m, 7)) < odd
    flats[strange] = rng.choice(ODD, strange.sum())
    if seed % 3 == 0:
        w[0] = 3e38
    with np.errstate(over="ignore"):
        return Layout(model_of(w, dtypes), MEAN, TIED), [model_of(flat, dtypes) for flat in flats]


DTYPES = st.sampled_from((("float32", "float32"), ("float16", "float32"), ("float64", "float32")))
ODDS = st.sampled_from((0.0, 0.02, 0.3))


@given(
    seed=st.integers(0, 300),
    cut=st.integers(0, 8),
    odd=ODDS,
    dtypes=DTYPES,
    cache=st.sampled_from((1, 12, 10**6)),
    chunk=st.sampled_from((1, 2, 3, 100)),
    large=st.booleans(),
    gigabytes=st.sampled_from((1.0, TINY)),
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_models_in_a_matrix_have_the_bits_of_borrowed_ones(
    seed: int,
    cut: int,
    odd: float,
    dtypes: tuple[str, str],
    cache: int,
    chunk: int,
    large: bool,
    gigabytes: float,
) -> None:
    try:
        layout, models = drawn(seed, 8, odd, dtypes)
    except ValueError:  # the global model itself is beyond float16
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "CACHED_NUMBERS", cache)
        patch.setattr(arrays, "CHUNK_COLUMNS", chunk)
        # of 30, products are made in float64 once few are left
        patch.setattr(vectors, "EXACT_NUMBERS", 0 if large else 30)
        stored = written(layout, models, cut, gigabytes)
        expected = borrowed(layout, models)
        wrong = screened(stored, gram=large)
        assert wrong == screened(expected)
        np.testing.assert_array_equal(
            stored.gram(stored.vectors, exact=False), expected.gram(expected.vectors, exact=False)
        )
        np.testing.assert_array_equal(stored.norms, expected.norms)
        if len(expected) > 2:  # those that are left are as if the others had not come
            usable = [model for k, model in enumerate(models) if k not in wrong]
            expected = borrowed(
                layout, [model for k, model in enumerate(usable) if k not in (0, 2)]
            )
            assert screened(expected) == {}
            stored.remove(0, 2)
        a = stored.vectors
        b = expected.vectors
        np.testing.assert_array_equal(gram_matrix(a), gram_matrix(b))
        np.testing.assert_array_equal(gram_matrix(a, exact=True), gram_matrix(b, exact=True))
        np.testing.assert_array_equal(squared_norms(a), squared_norms(b))
        assert contents(stored) == contents(expected)
        for k in range(len(b)):
            one_hot = np.arange(len(b)) == k
            ours, theirs = (combine(one_hot * 1.0, each).blocks[0] for each in (a, b))
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


def small(count: int) -> tuple[Layout, list[dict[str, np.ndarray]]]:
    """Return the layout of a small model, and this many models near it."""
    rng = np.random.default_rng(3)
    model = {
        "w": rng.normal(size=(50, 3)).astype(np.float32),
        "b": rng.normal(size=9).astype(np.float32),
    }
    return Layout(model), [
        {n: a + rng.normal(size=a.shape).astype(np.float32) for n, a in model.items()}
        for _ in range(count)
    ]


@pytest.mark.parametrize("by_array", [False, True])
def test_one_pass_screens_updates_and_multiplies_kept_rows(
    monkeypatch: pytest.MonkeyPatch, by_array: bool
) -> None:
    monkeypatch.setattr(vectors, "EXACT_NUMBERS", 0)
    layout, models = small(9)
    earlier = borrowed(layout, models[:4])
    stored = borrowed(layout, models[4:])
    kept = [combine(np.eye(4)[k], earlier.vectors) for k in (1, 3)]
    assert stored.screen(gram=True, by_array=by_array, below=kept) == {}
    rows = Vectors.concat([stored.vectors, *kept])
    expected = gram_matrices(rows, layout.ends if by_array else (layout.size,))
    with monkeypatch.context() as patch:
        patch.setattr(updates.Borrowed, "read", None)  # no number is read again
        found = (
            stored.grams(rows, exact=False) if by_array else stored.gram(rows, exact=False)[None]
        )
    np.testing.assert_array_equal(found, expected)


def test_borrowed_models_are_not_copied() -> None:
    layout, (model,) = drawn(1, 1, 0.0, ("float32", "float32"))
    stored = borrowed(layout, [model])
    model["b"] += np.float32(1.0)
    after = np.concatenate([model["a"], model["b"].ravel()])
    assert gram_matrix(stored.vectors, exact=True)[0, 0] == pytest.approx(
        np.sum((layout.flat - after).astype(np.float64) ** 2), rel=1e-12
    )


def test_buffers_that_are_handed_over_may_be_overwritten() -> None:
    layout, (model,) = drawn(0, 1, 0.0, ("float32", "float32"))
    stored = written(layout, [model])
    before = contents(stored)
    model["mean"][:] = 9.0
    assert contents(stored) == before


@pytest.mark.parametrize(
    ("matrices", "of", "in_file"),
    [
        (1, 1, False),
        (1, 2, True),
        (2, 2, False),
        (0, 2, False),
    ],
)
def test_the_budget_is_for_all_matrices_of_a_round(matrices: int, of: int, in_file: bool) -> None:
    gigabytes = matrices * 5 * 1000 * 4 / GIGABYTE
    assert isinstance(empty_matrix(5, 1000, np.float32, gigabytes, of=of), np.memmap) == in_file


def test_the_file_has_no_name_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    matrix = empty_matrix(3, 5, np.float32, TINY)
    matrix[:] = 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_before_the_round_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(
        FairbloomError, match=r"memory = 0\.5 allows.*has no room for them.*raise memory"
    ) as error:
        # Larger than any file: less would fill the disk for a moment, and fail the tests beside.
        empty_matrix(1000, 2**40, np.float32, 0.5)
    assert str(tmp_path) in str(error.value)
    assert shutil.disk_usage(tmp_path).free > free // 2
