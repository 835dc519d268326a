"""Each engine supports every field of the work and the terms and every metric, to the same numbers.

A field of `LocalWork` or `Terms`, or a metric, that is added without a case here fails. So does one
that an engine neither supports nor, as listed here, leaves to one client after the other.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from fairbloom.client.fair.training import SUPPORTED as BY_FAIR
from fairbloom.client.local import LocalClient
from fairbloom.client.local_round import SUPPORTED as BY_A_CLIENT, own_work
from fairbloom.client.metrics import BY_GROUP, OF_EVALUATION, OF_TRAINING, WORK_METRICS
from fairbloom.client.plan import global_work
from fairbloom.client.rules.registry import RULES
from fairbloom.client.support import Support, metric_row
from fairbloom.client.work import LocalWork, set_fields
from fairbloom.protocol.names import ARRAYS_DISPARITY, BETWEEN_GROUPS
from fairbloom.protocol.terms import WORK, Terms
from fairbloom.rounds.clients import ClientPool, Replies, TrainReplies
from fairbloom.rounds.method import Method
from fairbloom.server.settings import Settings
from fairbloom.simulation.clients import LocalClients
from fairbloom.simulation.stacked import clients as stacked
from fairbloom.simulation.stacked.clients import StackedClients
from fairbloom.strategies import DRFA, FedAvg
from fairbloom.tasks import load_task
from fairbloom.tasks.models import arrays_of, personal_arrays

from .implementations import IMPLEMENTATIONS, Config, assert_same_replies, contents_of

PLAIN: Config = {"task": "tests.nets:few", "clients": 4, "partition": "dirichlet", "device": "cpu"}
NAMES = [f"client-{number}" for number in range(4)]

PROPFAIR = Terms(
    server_round=1, loss_transform="propfair", propfair_baseline=3.0, propfair_epsilon=0.3
)
PERSONAL = Terms(server_round=1, personal_lambda=0.5, personal_epochs=1)
HEAD = Terms(server_round=1, personal_parameters="head")
BASELINE: Mapping[str, Any] = {
    "baseline_patience": 3,
    "baseline_tolerance": 0.9,
    "baseline_epochs": 4,
}
ALONE = Terms(server_round=1, measure=("loss-baseline",), **BASELINE)
PARITY = Terms(
    server_round=1, disparity="demographic-parity", measure=("disparity", "disparity-hard")
)
OWN_RULE: Config = {"client-rule": "tests.client.own_rules:Momentum"}
TWO_GROUPS: Config = {"task": "tests.nets:even", "smallest-group": 1}


class Disparate(FedAvg):
    """FedAvg with clients that also reply the model after a step down their disparity."""

    second = ARRAYS_DISPARITY


@dataclass(frozen=True)
class Case:
    """The values set in a run's config and in the terms of a round."""

    config: Mapping[str, Any] = field(default_factory=dict)
    terms: Terms = field(default_factory=lambda: Terms(server_round=1))

    @property
    def method(self) -> Method:
        if self.terms.disparity:
            return Disparate()
        if self.terms.keeps_arrays:  # what clients keep is in no update
            module = load_task(self.settings).model()
            return FedAvg(frozen=personal_arrays(module, self.terms.personal_parameters))
        return FedAvg() if self.terms.snapshot_step is None else DRFA()

    @property
    def settings(self) -> Settings:
        return Settings.of({**PLAIN, **self.config})


def asked(**terms: Any) -> Case:
    return Case(terms=Terms(**{"server_round": 1, **terms}))


# Autocast leaves float64 as it is.
SINGLE: Config = {"task": "digits", "model": "mlp"}

OF_THE_WORK: Mapping[str, Case] = {
    "epochs": Case({"local-epochs": 2}),
    "batch_size": Case({"batch-size": 7}),
    "learning_rate": Case({"learning-rate": 0.03}),
    "momentum": Case({"momentum": 0.5}),
    "weight_decay": Case({"weight-decay": 0.1}),
    "nesterov": Case({"momentum": 0.5, "nesterov": True}),
    "optimizer": Case({"optimizer": "AdamW", "learning-rate": 0.01, "weight-decay": 0.1}),
    "gradient_clip": Case({"gradient-clip": 0.05}),
    "pull": asked(proximal_mu=0.7),
    "steps": asked(local_steps=3),
    "in_full": asked(full_batch_step=True),
    "idle": asked(local_only=True),
    "smallest_batch": Case({"batch-size": 10, "smallest-batch": 9}),
    "time_budget": Case({"time-budget": 1e-9}),
    "transform": Case(terms=PROPFAIR),
    "random": asked(server_round=2),
    "draws": Case({"model": "tests.nets:Dropping"}),
    "augment": Case({"augment": "crop-flip"}),
    "bfloat16": Case({**SINGLE, "precision": "bfloat16"}),
}

OF_THE_TERMS: Mapping[str, Case] = {
    "server_round": asked(server_round=5),
    "measure": asked(measure=("loss-before",)),
    "measures": asked(measure=("loss-before", "loss-after"), measures={NAMES[1]: ("loss-after",)}),
    "proximal_mu": asked(proximal_mu=0.3),
    "personal_lambda": Case(terms=PERSONAL),
    "personal_epochs": Case(terms=replace(PERSONAL, personal_epochs=2)),
    "personal_parameters": Case({"model": "mlp"}, HEAD),
    "head_epochs": Case({"model": "mlp"}, replace(HEAD, head_epochs=2)),
    "fine_tune_epochs": asked(fine_tune_epochs=1),
    "local_only": Case(terms=replace(PERSONAL, local_only=True)),
    "client_momentum": asked(client_momentum=0.5),
    "full_batch_step": asked(full_batch_step=True),
    "local_steps": asked(local_steps=2),
    "snapshot_step": asked(local_steps=4, snapshot_step=3),
    "loss_transform": Case(terms=PROPFAIR),
    "propfair_baseline": Case(terms=replace(PROPFAIR, propfair_baseline=2.5)),
    "propfair_epsilon": Case(terms=replace(PROPFAIR, propfair_epsilon=2.9)),
    "baseline_patience": Case(terms=replace(ALONE, baseline_patience=1)),
    "baseline_tolerance": Case(terms=replace(ALONE, baseline_tolerance=0.0)),
    "baseline_epochs": Case(terms=replace(ALONE, baseline_epochs=2)),
    "disparity": Case(TWO_GROUPS, PARITY),
    "disparity_sharpness": Case(TWO_GROUPS, replace(PARITY, disparity_sharpness=2.0)),
    "seed": asked(seed=3),
    "control_variates": asked(control_variates=True),
    "dynamic_alpha": asked(dynamic_alpha=0.5),
    "client_rule": Case(OWN_RULE, Terms(server_round=1, client_rule=OWN_RULE["client-rule"])),
    "wire_dtype": asked(wire_dtype="bfloat16"),
    "state_round": asked(dynamic_alpha=0.5, state_round=0),
    "state_rounds": asked(dynamic_alpha=0.5, state_rounds=dict.fromkeys(NAMES, 0)),
    "others": asked(others={"somebody's": 1.0}),
}

OF_THE_METRICS: Mapping[str, Case] = {
    **{
        name: asked(measure=(name,))
        for name in (
            *("loss-before", "accuracy-before", "loss-after", "accuracy-after", "train-loss"),
            *("learning-rate", "update-norm", "step-sum"),
        )
    },
    **{name: Case(TWO_GROUPS, PARITY) for name in ("disparity", "disparity-hard")},
    **{
        name: Case(TWO_GROUPS, Terms(server_round=1, measure=("loss-before", name, "loss-after")))
        for name in ("positives-0", "positives-1", "hits-0", "hits-1")
    },
    **{
        name: Case(terms=replace(ALONE, measure=(name,)))
        for name in ("loss-baseline", "accuracy-baseline")
    },
    "loss": Case(),
    "loss-validation": Case({"validation-share": 0.3}),
    "loss-personal": Case(terms=PERSONAL),
    "loss-validation-personal": Case({"validation-share": 0.3}, PERSONAL),
    "count[side:left]": Case({"task": "tests.nets:even", "smallest-group": 2}),
}

BOTH: Mapping[str, Case] = {
    "gradient-clip of a pulled, decayed step with momentum": Case(
        {"gradient-clip": 0.1, "momentum": 0.9, "weight-decay": 0.1, "model": "mlp"},
        Terms(server_round=1, proximal_mu=0.5, measure=("update-norm", "loss-after")),
    ),
    "equal opportunity with a full batch step and personal models": Case(
        TWO_GROUPS,
        replace(
            PERSONAL,
            disparity="equal-opportunity",
            full_batch_step=True,
            measure=("disparity", "hits-1"),
        ),
    ),
    "a baseline with all that can be set, and personal models": Case(
        {
            **{"optimizer": "adamw", "learning-rate": 0.01, "weight-decay": 0.1, "model": "mlp"},
            **{"batch-size": 3, "gradient-clip": 0.1, "stragglers": 0.5, "local-epochs": 2},
        },
        replace(PERSONAL, **BASELINE, proximal_mu=0.5, measure=("loss-baseline", "loss-before")),
    ),
    "adam with all other values set": Case(
        {
            **{"optimizer": "adam", "learning-rate": 0.01, "gradient-clip": 0.1, "model": "mlp"},
            **{"schedule": "linear", "warmup": 2, "local-epochs": 3, "num-rounds": 9},
        },
        Terms(
            server_round=3, proximal_mu=0.5, measure=("update-norm", "loss-after", "learning-rate")
        ),
    ),
    "adamw of clients with different numbers of steps": Case(
        {
            "optimizer": "adamw",
            "learning-rate": 0.01,
            "batch-size": 3,
            "dirichlet-alpha": 0.1,
            "local-epochs": 2,
        }
    ),
    "Nesterov's momentum, a pull and a snapshot of a network": Case(
        {"momentum": 0.9, "nesterov": True, "model": "mlp", "dirichlet-alpha": 0.1},
        replace(PERSONAL, proximal_mu=0.5, snapshot_step=2),
    ),
    "update-norm where the global model is left as it is": Case(
        terms=replace(PERSONAL, local_only=True, measure=("update-norm",))
    ),
    **{
        f"inputs, outputs and weights: {name}": Case(
            {"task": f"tests.simulation.several:{name}", "batch-size": 3},
            replace(
                PERSONAL,
                proximal_mu=0.2,
                measure=("loss-before", "loss-after", "update-norm", "train-loss"),
            ),
        )
        for name in ("masked", "uneven", "paired", "collated", "tokens", "of_itself")
    },
}

CASES: Mapping[str, Case] = {
    **{f"work: {name}": case for name, case in OF_THE_WORK.items()},
    **{f"terms: {name}": case for name, case in OF_THE_TERMS.items()},
    **{f"metric: {name}": case for name, case in OF_THE_METRICS.items()},
    **BOTH,
}

# The fields of the work that stacking does not support, and their log line.
ONE_BY_ONE = {"time_budget": "time-budget = 1e-09"}

EXPECTED = "local"


class Engines:
    """The clients of each engine for the last config: many cases differ only in their terms."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[object, LocalClients]] = {}

    def of(self, engine: str, case: Case) -> LocalClients:
        """Return clients that keep nothing of any case."""
        key = case.config, type(case.method), tuple(case.method.frozen)
        if engine not in self._there or self._there[engine][0] != key:
            self.close(engine)
            clients = IMPLEMENTATIONS[engine](case.method, case.settings)
            assert isinstance(clients, LocalClients)
            self._there[engine] = key, clients
        clients = self._there[engine][1]
        for name in NAMES:
            clients.states(name).in_memory.clear()
        return clients

    def close(self, engine: str) -> None:
        if engine in self._there:
            self._there.pop(engine)[1].close()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    there = Engines()
    yield there
    for engine in (EXPECTED, "stacked"):
        there.close(engine)


def model_of(case: Case) -> dict[str, Any]:
    module = load_task(case.settings).model()
    random = np.random.default_rng(7)
    return {
        name: (array + 0.05 * random.standard_normal(array.shape)).astype(array.dtype)
        for name, array in arrays_of(module.state_dict()).items()
    }


# The replies of a round's training and evaluation.
Seen = tuple[TrainReplies, Replies]


def of_a_round(clients: ClientPool, case: Case) -> Seen:
    """Train and evaluate, with a control variate if the clients use one."""
    assert list(clients.online(1)) == NAMES
    model = model_of(case)
    control = {name: 0.1 * model[name] for name in case.method.layout_of(model).trainable}
    trained = clients.train(
        NAMES, model, case.terms, {"control": control} if case.terms.control_variates else {}
    )
    evaluated = clients.evaluate(
        NAMES, model, replace(case.terms, local_steps=None, snapshot_step=None), NAMES[:2]
    )
    assert trained.refused.reasons == evaluated.refused.reasons == {}
    return trained, evaluated


def assert_equal(ours: Seen, expected: Seen, tolerance: float) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert_same_replies(one, other, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stacked_clients_give_the_numbers_of_one_after_the_other(
    case: str, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    """tests/simulation/test_engines.py has messages, to which the terms are sent as
    they are."""
    if together := case in BOTH and "optimizer" in CASES[case].config:
        engines.close("stacked")
    expected, ours = (
        of_a_round(engines.of(each, CASES[case]), CASES[case]) for each in (EXPECTED, "stacked")
    )
    assert_equal(ours, expected, rounding(CASES[case]))
    # else these were the numbers of one client after the other
    assert not together or caplog.text == ""


def rounding(case: Case) -> float:
    """Return by how much a processor's sums over the examples of one client and of many together
    may differ."""
    if case.config.get("precision") == "bfloat16" or torch.bfloat16 in {
        weights.dtype for weights in load_task(case.settings).model().state_dict().values()
    }:
        return torch.finfo(torch.bfloat16).eps
    return 1e-12


# What the cases are there for ---------------------------------------------------------------------


def test_every_field_and_every_metric_has_a_case() -> None:
    assert set(OF_THE_WORK) == {each.name for each in fields(LocalWork)}
    assert set(OF_THE_TERMS) == {each.name for each in fields(Terms)} - OF_ACCOUNTS
    measured = {each.pattern for each in (*OF_TRAINING, *OF_EVALUATION)}
    measured |= {*WORK_METRICS, *BETWEEN_GROUPS, BY_GROUP}
    assert {row_of(name) for name in OF_THE_METRICS} == measured
    assert {each.replace("-", "_") for each in WORK} <= {each.name for each in fields(Terms)}


@pytest.mark.parametrize(("name", "case"), OF_THE_WORK.items())
def test_a_case_of_the_work_sets_its_field(name: str, case: Case) -> None:
    local = LocalClient.of(case.settings, 0)
    assert name in set_fields(own_work(local, global_work(local.settings, case.terms), case.terms))


@pytest.mark.slow
def test_a_case_changes_the_numbers(engines: Engines, subtests: pytest.Subtests) -> None:
    """Otherwise no test would notice an engine that ignores its field."""
    plainly: dict[str, Seen] = {}
    for case, chosen in CASES.items():
        with subtests.test(case=case, chosen=chosen):
            if case in ("terms: others", "terms: seed"):
                continue
            plain = Case({"model": chosen.config["model"]} if "model" in chosen.config else {})
            if case.startswith("terms: propfair"):
                plain = Case(terms=PROPFAIR)
            elif case == "work: draws":
                plain = Case()
            elif case == "work: bfloat16":
                plain = Case(SINGLE)
            elif case == "work: nesterov":
                plain = OF_THE_WORK["momentum"]
            elif case in ("terms: personal_epochs", "terms: local_only"):
                plain = Case(terms=PERSONAL)
            elif case.startswith("terms: baseline"):
                plain = Case(terms=ALONE)
            elif case == "terms: disparity":
                plain = Case(TWO_GROUPS, replace(PARITY, disparity="equal-opportunity"))
            elif case == "terms: disparity_sharpness":
                plain = Case(TWO_GROUPS, PARITY)
            elif case in ("terms: state_round", "terms: state_rounds"):
                plain = asked(dynamic_alpha=0.5)
            ours = of_a_round(engines.of(EXPECTED, chosen), chosen)
            if (name := case.removeprefix("metric: ")) in OF_THE_METRICS:
                assert any(
                    name in report for replies in ours for report in replies.metrics.values()
                )
            if str(plain) not in plainly:
                engines.close(EXPECTED)
                plainly[str(plain)] = of_a_round(engines.of(EXPECTED, plain), plain)
            if case != "metric: loss":  # always measured
                with pytest.raises(AssertionError):
                    assert_equal(ours, plainly[str(plain)], 1e-9)


def test_an_updates_norm_is_that_of_the_reply(engines: Engines) -> None:
    trained, _ = of_a_round(
        engines.of(EXPECTED, OF_THE_METRICS["update-norm"]), OF_THE_METRICS["update-norm"]
    )
    assert [report["update-norm"] for report in trained.metrics.values()] == pytest.approx(
        list(np.linalg.norm(np.asarray(trained.updates.vectors.blocks[0]), axis=1)), rel=1e-12
    )


# Who honours what ---------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [stacked.SUPPORTED, BY_FAIR])
def test_a_client_honours_all_that_any_engine_honours(others: Support) -> None:
    assert all(BY_A_CLIENT.follows(rule) for rule in RULES)
    assert others.hooks <= BY_A_CLIENT.hooks
    assert others.work <= BY_A_CLIENT.work
    assert others.metrics <= BY_A_CLIENT.metrics
    assert BY_A_CLIENT.wire_keys == list(WORK)
    assert BY_FAIR.wire_keys == ["proximal-mu", "personal-parameters", "client-momentum"]


def test_every_key_of_the_work_is_read_by_one_rule() -> None:
    assert sorted([key.replace("-", "_") for rule in RULES for key in rule.wire_keys()]) == sorted(
        {each.name for each in fields(Terms)} - OF_NO_RULE - OF_ACCOUNTS
    )


def test_what_stacked_clients_do_not_honour_is_known() -> None:
    assert set(OF_THE_WORK) - stacked.SUPPORTED.work == set(ONE_BY_ONE)
    apart = {rule for rule in RULES if not stacked.SUPPORTED.follows(rule)}
    assert {key for rule in apart for key in rule.wire_keys()} == {
        "disparity",
        "disparity-sharpness",
        "client-rule",
        "head-epochs",
    }
    assert stacked.SUPPORTED.metrics == BY_A_CLIENT.metrics


# The fields of the terms that only a privacy account reads.
OF_ACCOUNTS = {"privacy_units", "privacy_rounds", "privacy_budgets"}

# The fields of the terms that every client supports.
OF_NO_RULE = {
    *("server_round", "measure", "measures", "state_round", "state_rounds", "seed", "others")
}


def without(honoured: Support, name: str) -> Support:
    hooks = {
        hook
        for rule in RULES
        if name.replace("_", "-") in rule.wire_keys()
        for hook in rule.hooks()
    }
    return Support(
        honoured.hooks - hooks, honoured.work - {name}, honoured.metrics - {row_of(name)}
    )


def asked_by(name: str) -> str:
    """Return the key in the reason for a field: it asks for the rule that reads the field."""
    key = name.replace("_", "-")
    return next(
        (str(rule.reads.asked_by) for rule in RULES if rule.reads and key in rule.wire_keys()), name
    )


def row_of(name: str) -> str:
    """Return the row of the table that a metric is in, asked for or not."""
    always = {"loss": "{}", "loss-validation": "{}-validation", "loss-personal": "{}-personal"}
    always["count[side:left]"] = BY_GROUP
    always["loss-validation-personal"] = "{}-validation-personal"
    return always.get(name) or metric_row(name)


@pytest.mark.parametrize("case", [*ONE_BY_ONE])
def test_stacked_clients_say_once_why_they_fall_back(
    engines: Engines, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    engines.close("stacked")
    with caplog.at_level(logging.WARNING, "flwr"):
        for _ in range(2):
            of_a_round(engines.of("stacked", OF_THE_WORK[case]), OF_THE_WORK[case])
    assert caplog.text.count(ONE_BY_ONE[case]) == 1


ALWAYS = [*(each.pattern for each in OF_EVALUATION if not each.requested), BY_GROUP]
SET_AGAIN = {f"work: {name}" for name in ("random", "draws", "smallest_batch", *ONE_BY_ONE)} | {
    f"terms: {name}" for name in OF_NO_RULE
}
SET_AGAIN |= {
    f"{kind}: {name}"
    for kind in ("terms", "metric")
    for name in ("disparity", "disparity_sharpness")
}
SET_AGAIN |= {"terms: fine_tune_epochs"}  # only an evaluation reads it
SET_AGAIN |= {"terms: wire_dtype"}  # what all engines share rounds the models of replies
SET_AGAIN |= {"metric: disparity-hard"}  # its terms are not supported either


@pytest.mark.slow
def test_an_engine_leaves_what_it_does_not_honour_to_the_loop(
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    subtests: pytest.Subtests,
) -> None:
    """As if this engine had been forgotten when the field or metric was added."""
    honoured = stacked.SUPPORTED
    monkeypatch.setattr(StackedClients, "_train_block", None)
    for case in [name for name in CASES if name not in {*BOTH, *SET_AGAIN}]:
        with subtests.test(case=case):
            name = case.partition(": ")[2]
            monkeypatch.setattr(stacked, "SUPPORTED", without(honoured, name))
            engines.close("stacked")
            caplog.clear()
            with caplog.at_level(logging.WARNING, "flwr"):
                ours = of_a_round(engines.of("stacked", CASES[case]), CASES[case])
            expected = of_a_round(engines.of(EXPECTED, CASES[case]), CASES[case])
            # an evaluation is still computed together
            assert_equal(ours, expected, rounding(CASES[case]))
            if case != "metric: train-loss":  # only evaluation measures it
                assert contents_of(ours[0]) == contents_of(expected[0]), case
            assert (
                row_of(name) if row_of(name) in ALWAYS else asked_by(name).replace("_", "-")
            ) in caplog.text, case
    engines.close("stacked")


@dataclass(frozen=True)
class Tomorrow(LocalWork):
    """Local work with a field that no engine knows."""

    rotation: float = 0.0


def test_a_field_that_no_engine_knows_is_unsupported() -> None:
    work = Tomorrow(1, 10, 0.1)
    terms = Terms(server_round=1)
    assert stacked.SUPPORTED.find_unsupported(terms, (), work) == ""
    assert (
        stacked.SUPPORTED.find_unsupported(terms, (), replace(work, rotation=0.5))
        == "rotation = 0.5"
    )
