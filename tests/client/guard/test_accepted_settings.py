"""What a run may set of a client's work on a device."""

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from flwr.app import Context, MessageType

from fairbloom.client.guard.accepted_settings import (
    DEVICE,
    SettingRefusedError,
    accepted_settings,
    settings_to_allow,
    work_settings,
)
from fairbloom.protocol.parameters import Choices
from fairbloom.protocol.settings import FINGERPRINT, Mark, RunSettings, fingerprint, marked
from fairbloom.server.settings import default_config
from fairbloom.tasks import Setup, Task

from ..helpers import ask, context, run_config

MESSAGES: list[tuple[str, dict[str, Any]]] = [
    (MessageType.QUERY, {}),
    (
        MessageType.TRAIN,
        {"measure": ["loss-before", "loss-after", "learning-rate"], "personal-lambda": 1.0},
    ),
    (MessageType.EVALUATE, {"measure": ["train-loss"], "personal-lambda": 1.0}),
]


WORK = {key: each.kind for key, each in work_settings({"task": "digits"}).items()}


@pytest.mark.parametrize(("kind", "terms"), MESSAGES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stragglers": 1.0, "local_epochs": 3},
        {"partition": "dirichlet"},
        {"digits.rotated-clients": 4},
    ],
)
def test_the_short_list_has_all_that_the_work_needs(
    changes: Any, kind: str, terms: dict[str, Any]
) -> None:
    everything = run_config(**changes)
    short = accepted_settings(everything)
    assert set(short) <= {*WORK, FINGERPRINT}
    whole = ask(kind, terms, context(1, everything))
    device = ask(kind, terms, context(1, short))
    assert whole.metric_records == device.metric_records
    assert whole.array_records == device.array_records


def test_every_listed_setting_is_one_of_a_run_with_its_type() -> None:
    assert {key: type(default_config()[key]) for key in WORK} == WORK
    assert WORK["digits.rotated-clients"] is int
    assert "digits.rotated-clients" not in work_settings({"task": "ones"})
    assert work_settings({"task": 3}) == work_settings({})


@pytest.mark.parametrize(
    "key", ["state-dir", "data-dir", "out", "app", "fedfv.alpha", "ones.noise", FINGERPRINT]
)
def test_what_the_work_does_not_need_is_dropped(key: Any) -> None:
    plain = accepted_settings(run_config())
    with_it = accepted_settings({**run_config(), key: "/etc/shadow"})
    assert with_it | {FINGERPRINT: ""} == plain | {FINGERPRINT: ""}, key
    assert settings_to_allow({**run_config(), key: "/etc/shadow"}) == {}


@pytest.mark.parametrize(
    "key", [key for key, kind in WORK.items() if kind is str and key not in ("method", "schema")]
)
def test_paths_and_import_strings_are_refused_by_setting(key: Any) -> None:
    paths = (
        "os:system",
        "evil.task:load",
        "/etc/shadow",
        "../x",
        "..",
        ".",
        "a\\b",
        "a/b",
        "~",
        "x" * 65,
    )
    for value in (*paths, "a\n", "a b", "é"):
        with pytest.raises(SettingRefusedError, match=f"the run sets {key} = ") as error:
            accepted_settings({**run_config(), key: value})
        assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("method", name) for name in ("afl", "torchjd:upgrad", "my_module:Mine")),
        *(("device", name) for name in ("auto", "cpu", "cuda", "cuda:1", "cuda:15", "mps")),
        *(
            ("model", ""),
            ("model", "torchvision:resnet18"),
            ("learning-rate", 1),
            ("optimizer", "AdamW"),
            ("num-rounds", 7),
            ("schedule", "cosine"),
        ),
    ],
)
def test_how_clients_train_needs_no_permission(key: Any, value: Any) -> None:
    """A method's name is taken as a word: nothing is imported by it."""
    assert accepted_settings({**run_config(), key: value})[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("clients", "os:system"),
            ("seed", 1.0),
            ("momentum", "0"),
            ("drop-stragglers", 1),
            ("clients", True),
        ),
        *(("digits.rotated-clients", value) for value in (1.0, "os:system", -1)),
        *(("task", 3), ("momentum", 1.0), ("local-epochs", 0), ("learning-rate", float("nan"))),
        ("reported-loss", "sum"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(key: Any, value: Any) -> None:
    with pytest.raises(SettingRefusedError, match=rf"the run sets {key} = {value!r}: allowed is "):
        accepted_settings({**run_config(), key: value})


def test_a_value_that_the_devices_owner_allows_is_taken() -> None:
    task = f"{__name__}:hearts"
    net = "mylab.hearts:net"
    config = {**run_config(), "task": task, "model": net, "hearts.noise": 0.5}
    config["hearts.odds"] = "1:2"  # a word of the task's own, no import string
    assert accepted_settings(config, allow=(task, net))["task"] == task
    assert accepted_settings(config, allow=(task, net))["hearts.noise"] == 0.5
    with pytest.raises(SettingRefusedError, match=r"the run sets model = 'mylab\.hearts:net'"):
        accepted_settings(config, allow=(task,))
    config = {**run_config(), "optimizer": "trap:Optimizer"}  # no such module: nothing is imported
    with pytest.raises(
        SettingRefusedError, match=r"the run sets optimizer = 'trap:Optimizer', .* allow"
    ):
        accepted_settings(config)
    assert accepted_settings(config, allow=("trap:Optimizer",))["optimizer"] == "trap:Optimizer"


def hearts(
    setup: Setup, *, noise: float = 0.1, odds: Annotated[str, Choices("1:1", "1:2")] = "1:1"
) -> Task:
    """Stands for somebody's task."""
    raise NotImplementedError


def test_a_task_is_not_imported_before_its_owner_allows_it(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingRefusedError, match=r"the run sets task = 'trap:task'"):
        accepted_settings({**run_config(), "task": "trap:task"})
    with pytest.raises(SystemExit, match="imported"):
        accepted_settings({**run_config(), "task": "trap:task"}, allow=("trap:task",))


def test_own_settings_are_checked_on_a_device() -> None:
    words = "digits.rotated-clients=3 worsthalf.share=0.5"
    assert accepted_settings({**run_config(), "own-settings": words})["digits.rotated-clients"] == 3
    with pytest.raises(SettingRefusedError, match="the run sets 'state': write it as KEY=VALUE"):
        accepted_settings({**run_config(), "own-settings": "state"})
    with pytest.raises(SettingRefusedError, match=r"the run sets own-settings = .*No closing quot"):
        accepted_settings({**run_config(), "own-settings": "mine='x"})
    assert "state-dir" not in accepted_settings({**run_config(), "own-settings": "state-dir=/tmp"})


@pytest.mark.parametrize(
    "name", ["", "meta", "cuda:", "cuda:x", "cpu:0", "privateuseone", "cuda:0001", "CUDA"]
)
def test_a_run_may_choose_no_other_device(name: str) -> None:
    assert not DEVICE.fullmatch(name)
    with pytest.raises(
        SettingRefusedError,
        match=f"device = {name!r}: auto, cpu, cuda, cuda:1 or mps would do",
    ):
        accepted_settings({**run_config(), "device": name})


# Personal models ----------------------------------------------------------------------------------


def personal_folders(state: Path, where: Context) -> set[str]:
    where.run_config = {**where.run_config, "state-dir": str(state)}
    ask(MessageType.TRAIN, {"personal-lambda": 1.0}, where)
    return {path.name for path in state.iterdir()}


def test_a_device_keeps_personal_models_where_the_settings_say(tmp_path: Path) -> None:
    """Two runs that differ in a setting that the device drops do not share personal models."""
    folders = [
        personal_folders(tmp_path / str(number), context(1, accepted_settings(config)))
        for number, config in enumerate(
            [run_config(), run_config(), {**run_config(), "ditto.lam": 3.0}]
        )
    ]
    assert folders[0] == folders[1] != folders[2]
    assert folders[0] == personal_folders(tmp_path / "whole", context(1, run_config()))


@pytest.mark.parametrize(
    "key", ["state-dir", "data-dir", "out", "device", *marked(Mark.FREE, Mark.LIMIT)]
)
def test_places_and_what_may_change_make_no_other_run(key: Any) -> None:
    """Else a device would not find its personal models again."""
    plain = fingerprint(run_config())
    assert len(plain) == 8
    assert fingerprint(json.loads(json.dumps(run_config()))) == plain
    assert fingerprint({**run_config(), key: "elsewhere"}) == fingerprint(
        {**run_config(), key: "here"}
    ), key


@pytest.mark.parametrize("name", RunSettings.model_fields)
def test_whatever_else_a_run_sets_makes_it_another_run(name: Any) -> None:
    free = {
        *marked(Mark.FREE, Mark.LIMIT, Mark.EXTENDABLE),
        "state-dir",
        "data-dir",
        "device",
        "own-settings",
        "score",
    }
    key = name.replace("_", "-")
    if key not in free:
        assert fingerprint({**run_config(), key: "elsewhere"}) != fingerprint(run_config())
