"""The settings of a run: the keys of its run config, which server and clients both read."""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairbloom.errors import FairbloomError

Value = bool | int | float | str
"""What a setting may be; Flower's run configs carry nothing else."""


class Mark(Enum):
    """What is known of a setting beside its type, range and meaning; said on the setting, as Annotated metadata.

    A setting without FREE or LIMIT belongs to what a run is, and must be the same when the run is continued.
    """

    WORK = "a client's work depends on it, so a run sets it on deployed clients; they drop all others"
    FREE = "it leaves the numbers unchanged, so it may differ whenever a run is continued"
    LIMIT = "it refuses replies; an honest one may have been among them, so it may be changed until the run is finished"
    RECONSIDERED = "it decides who takes part, and may be changed when a run is taken back to an earlier round"
    GROWS = "it may be raised when a run is continued, and a finished run is extended then"
    LATER = "runs were named by their settings before it was one, so its default has no part in a name"
    PLACE = "it says where a process computes or keeps things, so clients of one run may differ in it"


class RunSettings(BaseModel):
    """Every setting with its type, range, default and meaning; the run config's keys are these names with hyphens.

    One frozen object from the door where a run config enters (`of`) to the one where Flower wants it back
    (`run_config`). What a run config has beside the fields, settings of tasks and methods above all, is kept unchecked
    in `parameters`. `model_copy(update={"state_dir": ..., "digits.noisy-clients": 3})` changes fields by their names,
    and `parameters` by their keys.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        protected_namespaces=(),
    )

    task: Annotated[str, Mark.WORK] = Field(
        "digits", description="Task that is learned: a name that fairbloom tasks lists, or your own as my_module:task"
    )
    model: Annotated[str, Mark.WORK] = Field(
        "",
        description="Model that is trained: the task's (\"\": its first), torchvision's, or your own as my_module:Net",
    )
    clients: Annotated[int, Mark.WORK] = Field(
        0,
        ge=0,
        description="Number of clients that the data is split into; 0 takes 20, or those that the data has",
    )
    partition: Annotated[str, Mark.WORK] = Field(
        "",
        description="How the data is split: as fairbloom tasks lists it, or flwr:NAME as flwr-datasets does",
    )
    shards_per_client: Annotated[int, Mark.WORK] = Field(
        2, ge=1, description="Number of pieces of the label-sorted data that each client gets, if partition = shards"
    )
    classes_per_client: Annotated[int, Mark.WORK] = Field(
        2, ge=1, description="Number of classes that each client has, if partition = classes or class-groups"
    )
    dirichlet_alpha: Annotated[float, Mark.WORK] = Field(
        0.5,
        gt=0,
        description="How even clients' shares of a label (partition = dirichlet) or sizes (sizes) are: small is uneven",
    )
    smallest_client: Annotated[int, Mark.WORK] = Field(
        5, ge=2, description="Fewest examples that a client is given, if partition = dirichlet or sizes"
    )
    test_share: Annotated[float, Mark.WORK] = Field(
        0.2, gt=0, lt=1, description="Share of a client's examples that it is tested on and does not train on"
    )
    validation_share: Annotated[float, Mark.WORK] = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of a client's examples by which the best model is chosen, and which it does not train on",
    )
    pooled: Annotated[bool, Mark.WORK] = Field(
        False,
        description="Whether a client trains on the training data of all clients together; in one process only",
    )
    data_dir: Annotated[str, Mark.PLACE] = Field(
        "", description='Folder of the data; "" takes FAIRBLOOM_DATA, or the cache; a deployed client names its own'
    )
    verify_data: Annotated[bool, Mark.WORK] = Field(
        True, description="Whether files of a known data set must be the originals; false takes others of that format"
    )
    method: str = Field(
        "fedavg",
        description="Method that combines updates: a name that fairbloom methods lists, or your own as my_module:Mine",
    )
    weighting: str = Field(
        "", description='Prior weight of a client: by examples or uniform; "" takes what the method prefers'
    )
    proximal_mu: float = Field(
        0.0, ge=0, description="Strength of the proximal term that keeps local models near the received one"
    )
    personal_lambda: float = Field(
        0.0, ge=0, description="Strength that pulls personal models to the global one; 0 trains no personal models"
    )
    num_rounds: Annotated[int, Mark.GROWS] = Field(
        50, ge=1, description="Number of rounds after which the run is finished"
    )
    from_round: Annotated[int, Mark.FREE] = Field(
        -1, ge=-1, description="Round that a run is taken back to, once, before it continues; -1: to none"
    )
    fraction: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the clients that train in a round; 0 takes all of up to nine, and half of more",
    )
    seed: Annotated[int, Mark.WORK] = Field(
        0, ge=0, lt=2**63, description="Seed of the data split, initial model, client sampling and batch order"
    )
    local_epochs: Annotated[int, Mark.WORK] = Field(
        1, ge=1, description="Number of passes that a client makes over its training data in a round"
    )
    batch_size: Annotated[int, Mark.WORK] = Field(
        10, ge=0, description="Number of examples that a local step takes; 0 takes all of them"
    )
    learning_rate: Annotated[float, Mark.WORK] = Field(0.1, gt=0, description="Learning rate of the clients' SGD")
    learning_rate_decay: Annotated[float, Mark.WORK] = Field(
        1.0, gt=0, le=1, description="Factor by which the learning rate becomes smaller from one round to the next"
    )
    momentum: Annotated[float, Mark.WORK] = Field(
        0.0, ge=0, lt=1, description="Momentum of the clients' SGD, which starts afresh in every round"
    )
    weight_decay: Annotated[float, Mark.WORK] = Field(0.0, ge=0, description="Weight decay of the clients' SGD")
    gradient_clip: Annotated[float, Mark.WORK, Mark.LATER] = Field(
        0.0, ge=0, description="Largest norm of a minibatch's gradient, to which longer ones are shortened; 0: of any"
    )
    stragglers: Annotated[float, Mark.WORK] = Field(
        0.0,
        ge=0,
        le=1,
        description="Probability that a client is a straggler, who has time for fewer epochs in a round",
    )
    drop_stragglers: Annotated[bool, Mark.WORK] = Field(
        False, description="Whether stragglers are left out of the round, as FedAvg does, or train for fewer epochs"
    )
    time_budget: Annotated[float, Mark.WORK] = Field(
        0.0, ge=0, description="Seconds after which a client stops training and replies what it has; 0 sets no limit"
    )
    reported_loss: Annotated[str, Mark.WORK] = Field(
        "mean",
        description="What clients report as training loss: the mean, the total, or the total over batches (batches)",
    )
    reported_loss_factor: Annotated[float, Mark.WORK] = Field(
        1.0, gt=0, description="Factor by which misreporting clients multiply the training loss that they report"
    )
    reported_loss_bias: Annotated[float, Mark.WORK] = Field(
        0.0, description="What misreporting clients add to the training loss that they report, after the factor"
    )
    misreporting_clients: Annotated[str, Mark.WORK] = Field(
        "", description="Names, with commas, of the clients that report another training loss than they have"
    )
    training_clients: Annotated[str, Mark.RECONSIDERED] = Field(
        "", description='Names, with commas, of the clients that train; the others only evaluate; "" lets all train'
    )
    average_models: bool = Field(
        False, description="Whether the mean of all rounds' global models is evaluated and saved in place of the last"
    )
    evaluate_every: int = Field(
        1, ge=0, description="Number of rounds from one evaluation to the next; 0 evaluates after the last round only"
    )
    fraction_evaluate: float = Field(
        1.0, gt=0, le=1, description="Share of the clients that evaluate the model where a round is evaluated"
    )
    round_timeout: float = Field(600.0, gt=0, description="Seconds until the replies of a round are due")
    min_replies: int = Field(
        0,
        ge=0,
        description="Number of usable replies that end a round's training on deployed clients; 0 awaits them all",
    )
    min_clients: Annotated[int, Mark.FREE] = Field(
        0,
        ge=0,
        description="Fewest deployed clients online; with fewer a run waits; 0: half of those it began with, or two",
    )
    patience: Annotated[float, Mark.FREE] = Field(
        3600.0, ge=0, description="Seconds that a run waits for clients before it goes on without them, or ends"
    )
    unused_rounds: Annotated[int, Mark.FREE] = Field(
        3,
        ge=0,
        description="Number of rounds in a row without a step that stop the run with an error; 0 never stops it",
    )
    max_growth: Annotated[float, Mark.LIMIT] = Field(
        10.0,
        ge=1,
        allow_inf_nan=True,
        description="Factor by which a client's number of examples may exceed that of its first reply; inf allows any",
    )
    loss_limit: Annotated[float, Mark.LIMIT] = Field(
        1000.0,
        ge=1,
        allow_inf_nan=True,
        description="Factor by which a reply's loss may exceed the round's median, or 1; inf allows any",
    )
    update_limit: Annotated[float, Mark.LIMIT] = Field(
        100.0,
        ge=1,
        allow_inf_nan=True,
        description="Factor by which an update, or a step, may be longer than usual, or the model; inf allows any",
    )
    clip_updates: float = Field(
        0.0,
        ge=0,
        description="Factor beyond which an update that is longer than usual is shortened to it; 0 shortens none",
    )
    enrolled_sizes: Annotated[str, Mark.FREE] = Field(
        "", description="Largest number of examples that each client may report, as in 'site-a=1200 site-b=300'"
    )
    engine: str = Field(
        "auto",
        description="How clients on one machine are computed: auto, loop, stacked, workers, or ray on a cluster",
    )
    device: Annotated[str, Mark.WORK, Mark.PLACE] = Field(
        "auto", description="Device that clients compute on: auto, cpu, cuda, cuda:1 or mps"
    )
    memory: Annotated[float, Mark.FREE] = Field(
        0.0,
        ge=0,
        description="Gigabytes of memory for a round's updates, more lie in a file; 0 is half of what there is",
    )
    log_format: Annotated[str, Mark.FREE] = Field(
        "text", description="Format of the server's log: text, or json with run, round and client in every line"
    )
    metrics_port: Annotated[int, Mark.FREE] = Field(
        0, ge=0, lt=65536, description="Port on which the server offers metrics to Prometheus; 0 offers none"
    )
    own_settings: str = Field(
        "",
        description="Settings of your own task or method where a run config knows no such key, as in 'mine.share=0.5'",
    )
    state_dir: Annotated[str, Mark.PLACE] = Field(
        "", description='Folder in which clients keep personal models; in process, "" keeps them in the run folder'
    )
    out: Annotated[str, Mark.FREE] = Field(
        "", description='Folder that the run is written to; "" names one under runs/ by the settings'
    )

    @classmethod
    def of(cls, config: "RunSettings | Mapping[str, Any]") -> "RunSettings":
        """Return the settings of a run config, defaults filled in and `own-settings` under their keys.

        Settings are returned as they are.

        Raises
        ------
        SettingsError
            When a value is of another type or outside its range; the message names all such settings.
        """
        if isinstance(config, RunSettings):
            return config
        try:
            return RunSettings.model_validate(spread(config))
        except ValidationError as error:
            raise SettingsError("; ".join(map(_explained, error.errors()))) from error

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The settings of tasks and methods, and whatever else the run config has, by their keys."""
        return self.model_extra or {}

    def given(self) -> dict[str, Any]:
        """Return the flat run config of what was given, without defaults."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def run_config(self) -> dict[str, Value]:
        """Return the flat run config that Flower's messages carry."""
        return self.model_dump(by_alias=True, exclude={"own_settings"})  # which stand under their own keys


OWN_SETTINGS = "own-settings"


class SettingsError(FairbloomError):
    """A setting that is unknown or impossible; the message names it, its value and what would do."""


def digest(config: Mapping[str, Any]) -> str:
    """Return eight letters that stand for settings: they name a run's folder, and tell a client which run it is in."""
    named = {key: value for key, value in config.items() if key not in marked(Mark.LATER) or value != _DEFAULTS[key]}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]


def assigned(words: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE words; of several values of a key, the last.

    Raises
    ------
    SettingsError
        When a word is no assignment.
    """
    config: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise SettingsError(f"{word!r}: write it as KEY=VALUE, as in fedfv.alpha=0.2")
        config[key.strip()] = parsed(text.strip())
    return config


def words(text: str) -> tuple[str, ...]:
    """Return the words, names of clients say, that commas separate."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parsed(text: str) -> Value:
    """Return a boolean, a number or a string as TOML reads it; anything else is taken as it is written."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Value) else text


def spread(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config in which the words of `own-settings` stand under their own keys.

    Raises
    ------
    SettingsError
        When a word of it is no assignment.
    """
    words = config.get(OWN_SETTINGS, "")
    rest = {key: value for key, value in config.items() if key != OWN_SETTINGS}
    return {**rest, **assigned(shlex.split(words))} if words else rest


def complete(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config with the defaults of the settings that it lacks, as the run of somebody's own app may."""
    return {**_DEFAULTS, **spread(config)}


def key_of(name: str) -> str:
    """Return what a run config calls the setting of a field."""
    return name.replace("_", "-")


def marked(*marks: Mark) -> Mapping[str, type]:
    """Return the keys of the settings that have one of these marks, with their types."""
    fields = {key_of(name): field for name, field in RunSettings.model_fields.items() if {*marks} & {*field.metadata}}
    return {key: field.annotation for key, field in fields.items() if isinstance(field.annotation, type)}


def of_kind(value: object, kind: type) -> bool:
    """Return whether a value is of a setting's type; a whole number is, where any number may be."""
    return type(value) is kind or (kind is float and type(value) is int)


_DEFAULTS = {key_of(name): field.default for name, field in RunSettings.model_fields.items()}


def _explained(error: Mapping[str, Any]) -> str:
    """Return one of pydantic's errors with the key and the value of the setting."""
    reason = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in error["loc"])
    return f"{where} = {error['input']!r}: {reason}" if where else reason
