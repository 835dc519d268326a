"""Aggregation: each method's server side against FedAvg, ours and Flower's, on the same replies.

Prints the time of `aggregate_train` (screening, flattening, weights, step) and the peak of its
additional memory, in units of the updates: m · d numbers in the model's dtype. All sides are
measured in this one run.
"""

import gc
import time
import tracemalloc
from collections.abc import Iterable, Iterator

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.app.error import Error
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg, Strategy

from fairbloom.client.app import app
from fairbloom.protocol.names import ARRAYS_DISPARITY, CLIENT, HONOURS, STATE_ROUND
from fairbloom.protocol.terms import WORK
from fairbloom.server.settings import Settings
from fairbloom.simulation.grid import InProcessGrid
from fairbloom.strategies import METHODS

from .tables import Row, parser_of, print_machine, print_table

SIZES = [(m, d) for m in (10, 100, 1000) for d in (10_000, 1_000_000, 11_000_000)]
LEFT_OUT = ("drfa",)
"""DRFA exchanges messages a second time within its aggregation."""


class Replies(InProcessGrid):
    """Nodes with prepared replies: the received model minus a random update."""

    def __init__(self, m: int, d: int) -> None:
        super().__init__(app, {}, m)
        random = np.random.default_rng(0)
        model = {
            "body.weight": random.standard_normal(d // 2, np.float32),
            "head.weight": random.standard_normal(d - d // 2, np.float32),
        }
        self.model = record(model)
        self.contents = [reply(model, random) for _ in range(m)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Reply at once; queries for a name fail, so that clients are named by node id."""
        replies = []
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{number}"
            if message.metadata.message_type == MessageType.QUERY:
                replies.append(Message(Error(2, "no query"), reply_to=message))
            else:
                replies.append(Message(answer(self.contents[number], message), reply_to=message))
        return replies


def answer(content: RecordDict, message: Message) -> RecordDict:
    """Return a client's reply with the round of its state and, if asked, a second model."""
    config = message.content.config_records["config"]
    (metrics,) = content.metric_records.values()
    state = MetricRecord({**metrics, STATE_ROUND: int(str(config.get(STATE_ROUND, 0)))})
    second = {ARRAYS_DISPARITY: content["arrays"]} if "disparity" in config else {}
    return RecordDict({**content, "metrics": state, **second})


def record(model: dict[str, np.ndarray]) -> ArrayRecord:
    """Return a model as Flower's record."""
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def reply(model: dict[str, np.ndarray], random: np.random.Generator) -> RecordDict:
    """Return a client's reply with the metrics that any method needs, on any terms."""
    after = {
        name: w - np.float32(0.01) * random.standard_normal(w.shape, np.float32)
        for name, w in model.items()
    }
    metrics = {
        "num-examples": int(random.integers(10, 100)),
        "loss-before": float(random.uniform(0.5, 2.0)),
        "loss-baseline": 0.1,
        "accuracy-before": float(random.uniform(0.5, 1.0)),
        "accuracy-after": float(random.uniform(0.5, 1.0)),
        "disparity": float(random.uniform(-0.5, 0.5)),
        **{"positives-0": 5, "positives-1": 4, "hits-0": 3, "hits-1": int(random.integers(0, 5))},
        "learning-rate": 0.1,
        "step-sum": 1.0,
    }
    about = ConfigRecord({HONOURS: list(WORK)})
    return RecordDict({"arrays": record(after), "metrics": MetricRecord(metrics), CLIENT: about})


def measure(strategy: Strategy, grid: Replies, repeats: int) -> tuple[float, float]:
    """Return an aggregation's least seconds, and its peak of added memory per updates' memory."""
    seconds = []
    for number in range(1, repeats + 2):  # the last one for its memory: tracing costs time
        messages = list(strategy.configure_train(number, grid.model, ConfigRecord(), grid))
        replies = grid.send_and_receive(messages)
        gc.collect()
        if number > repeats:
            tracemalloc.start()
        started = time.perf_counter()
        strategy.aggregate_train(number, replies)
        seconds.append(time.perf_counter() - started)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    updates = len(grid.contents) * sum(len(array.data) for array in grid.model.values())
    return min(seconds[:-1]), peak / updates


def rows_of(m: int, d: int, repeats: int) -> Iterator[Row]:
    """Yield the cost of an aggregation by method, Flower's FedAvg first."""
    grid = Replies(m, d)
    ours = 0.0
    flower, memory = measure(FlowerFedAvg(min_train_nodes=m, min_available_nodes=m), grid, repeats)
    yield {
        "method": "Flower's FedAvg",
        "seconds": f"{flower:.4f}",
        "memory, × updates": f"{memory:.2f}",
    }
    for name, method in METHODS.items():
        if name not in LEFT_OUT:
            strategy = Settings.of({"method": name, "fraction": 1.0}).strategy()
            seconds, memory = measure(strategy, grid, repeats)
            ours = ours or seconds
            yield {
                "method": method.__name__,
                "seconds": f"{seconds:.4f}",
                "× our FedAvg": f"{seconds / ours:.2f}",
                "× Flower's FedAvg": f"{seconds / flower:.2f}",
                "memory, × updates": f"{memory:.2f}",
            }


def main() -> None:
    """Measure all methods at all sizes that fit into memory; print a table for each size."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--gigabytes", type=float, default=10.0, help="leave out sizes that need more"
    )
    parser.add_argument("--repeats", type=int, default=8)
    chosen = parser.parse_args()
    print_machine()
    for m, d in SIZES:
        needed = 3 * 4 * m * d / 1e9
        if needed > chosen.gigabytes:
            print(f"m = {m}, d = {d:,}: left out, needs about {needed:.0f} GB")
        else:
            print_table(f"m = {m}, d = {d:,}", rows_of(m, d, chosen.repeats), as_csv=chosen.csv)


if __name__ == "__main__":
    main()
