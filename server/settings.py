"""The settings of a run, checked once before any client works."""

import difflib
import inspect
import tomllib
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fairbloom.strategies import METHODS, FairStrategy
from fairbloom.strategies.torchjd import by_name
from fairbloom.tasks import TASKS

Value = bool | int | float | str

ENGINES = ("loop",)
"""How an in-process run computes: one client after the other."""

STARTING_POINTS: dict[str, Value] = {
    "fedprox.mu": 0.1,
    "qfedavg.q": 5.0,
    "qfedavg.lipschitz": 1.0,
    "qfedsgd.q": 1.0,
    "qfedsgd.lipschitz": 10.0,
    "term.tilt": 1.0,
    "afl.gamma": 0.1,
    "drfa.gamma": 0.01,
    "deltafl.theta": 0.5,
    "propfair.baseline": 5.0,
    "gifair.strength": 0.5,
    "vred.beta": 0.5,
    "semivred.beta": 0.5,
    "mgdaprox.mu": 0.1,
    "ditto.lam": 1.0,
}
"""Run-config defaults of method parameters that have no default in their class."""


TORCHJD = "torchjd:"
"""What a method's name begins with that is one of TorchJD's weightings: torchjd:upgrad."""


class SettingsError(ValueError):
    """A setting that is unknown or impossible; the message names it, its value and what would do."""


def check_known(what: str, value: str, choices: Collection[str]) -> str:
    """Return `value` if it is among `choices`; else say so and suggest the nearest."""
    if value not in choices:
        close = difflib.get_close_matches(value, choices, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ValueError(f"unknown {what}: {hint}there are {', '.join(choices)}")
    return value


def check_method(name: str) -> str:
    """Return a method's name if it is one of ours; TorchJD's are looked up when they are made."""
    return name if name.startswith(TORCHJD) else check_known("method", name, METHODS)


def sizes_of(words: str) -> dict[str, int]:
    """Return the sizes by client name of words as site-a=1200 site-b=300.

    Raises
    ------
    ValueError
        When a word is none of these, or a name comes twice.
    """
    sizes: dict[str, int] = {}
    for word in words.split():
        name, _, size = word.partition("=")
        if not (name and size.isascii() and size.isdigit() and int(size) >= 1):
            raise ValueError(f"{word!r} is no client's name and number of examples: write site-a=1200 say")
        if name in sizes:
            raise ValueError(f"{name} comes twice: give each client one number of examples")
        sizes[name] = int(size)
    return sizes


def check_sizes(words: str) -> str:
    """Return `words` if they are clients' sizes."""
    sizes_of(words)
    return words


class Settings(BaseModel):
    """Everything that determines a run; the run config's keys are these names with hyphens."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        protected_namespaces=(),
    )

    task: Annotated[str, AfterValidator(partial(check_known, "task", choices=TASKS))] = Field(
        "digits", description="what is learned"
    )
    model: str = Field("logistic", description="one of the task's models")
    clients: int = Field(20, ge=1, description="into how many clients the data is split")
    partition: str = Field("shards", description="how: shards, dirichlet or iid")
    shards_per_client: int = Field(2, ge=1, description="of a label-sorted data set, for shards")
    dirichlet_alpha: float = Field(0.5, gt=0, description="the smaller, the more unequal, for dirichlet")
    rotated_clients: int = Field(0, ge=0, description="clients whose camera is mounted sideways")
    method: Annotated[str, AfterValidator(check_method)] = Field(
        "fedavg", description="a class of strategies/, lower case"
    )
    weighting: str = Field("", description='prior: examples or uniform; "" is the method\'s own')
    proximal_mu: float = Field(0.0, ge=0, description="proximal term on the clients")
    personal_lambda: float = Field(0.0, ge=0, description="personal models: pull towards the global one")
    num_rounds: int = Field(50, ge=1, description="rounds of the run")
    fraction: float = Field(0.5, gt=0, le=1, description="of the clients that train in a round")
    seed: int = Field(0, ge=0, lt=2**63, description="of data, model, draws and batches")
    local_epochs: int = Field(1, ge=1, description="passes over the local data in a round")
    batch_size: int = Field(10, ge=0, description="examples a step; 0: all")
    learning_rate: float = Field(0.1, gt=0, description="of local SGD")
    momentum: float = Field(0.0, ge=0, lt=1, description="of local SGD, afresh in every round")
    weight_decay: float = Field(0.0, ge=0, description="of local SGD")
    stragglers: float = Field(0.0, ge=0, le=1, description="probability that a client has time for fewer epochs")
    drop_stragglers: bool = Field(False, description="leave them out, as FedAvg does")
    time_budget: float = Field(0.0, ge=0, description="seconds of local work in a round, then what is there; 0: no end")
    evaluate_every: int = Field(1, ge=0, description="rounds between evaluations; 0: only at the end")
    round_timeout: float = Field(600.0, gt=0, description="seconds until a round's replies are due")
    min_replies: int = Field(
        0, ge=0, description="of deployed clients that end a round's training; 0: all that are due"
    )
    max_growth: float = Field(
        10.0,
        ge=1,
        allow_inf_nan=True,
        description="a reply with more than so many times the examples of its client's first is refused; inf: never",
    )
    loss_limit: float = Field(
        1000.0,
        ge=1,
        allow_inf_nan=True,
        description="a reply with a loss above so many times the round's median, or 1, is refused; inf: never",
    )
    enrolled_sizes: Annotated[str, AfterValidator(check_sizes)] = Field(
        "", description="the most examples that each client may have: 'site-a=1200 site-b=300'"
    )
    engine: Annotated[str, AfterValidator(partial(check_known, "engine", choices=ENGINES))] = Field(
        "loop", description="of in-process runs"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    log_format: Annotated[str, AfterValidator(partial(check_known, "log-format", choices=("text", "json")))] = Field(
        "text", description="of the server's log: text, or json lines with run, round and client"
    )
    metrics_port: int = Field(0, ge=0, lt=65536, description="serves metrics for Prometheus; 0: nowhere")
    state_dir: str = Field("", description="where clients keep personal models; in process, the run folder")
    out: str = Field("", description='run folder; "" names it by the settings, under runs/')
    parameters: dict[str, Any] = Field(default_factory=dict, description="of methods, as fedfv.alpha")

    @classmethod
    def of(cls, config: Mapping[str, Value]) -> "Settings":
        """Return the settings of a flat run config.

        Raises
        ------
        SettingsError
            When a key is unknown or a value impossible.
        """
        fields = {field.alias: name for name, field in cls.model_fields.items() if name != "parameters"}
        for key in config:
            if key not in fields and key not in parameter_defaults():
                close = difflib.get_close_matches(key, [*map(str, fields), *parameter_defaults()], n=1)
                hint = f"; did you mean {close[0]}?" if close else "; fairbloom settings lists them"
                raise SettingsError(f"unknown setting {key} = {config[key]!r}{hint}")
        parameters = {key: value for key, value in config.items() if key in parameter_defaults()}
        try:
            chosen: dict[str, Any] = {key: value for key, value in config.items() if key in fields}
            return cls.model_validate(chosen | {"parameters": parameters})
        except ValidationError as error:
            raise SettingsError("; ".join(map(_in_words, error.errors()))) from error

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        task = TASKS[self.task]
        for what, value, choices in (
            ("model", self.model, task.models),
            ("partition", self.partition, task.partitions),
        ):
            if value not in choices:
                raise ValueError(f"{what} = {value!r}: task {self.task} has {', '.join(choices)}")
        if self.rotated_clients > self.clients:
            raise ValueError(
                f"rotated-clients = {self.rotated_clients}: at most clients = {self.clients} of them can be turned"
            )
        self.strategy()
        return self

    def strategy(self, **options: Any) -> FairStrategy:
        """Return the method with its parameters and the common options; `options` add to them."""
        chosen = {**parameter_defaults(), **self.parameters}
        own: dict[str, Any] = {
            key.partition(".")[2].replace("-", "_"): value
            for key, value in chosen.items()
            if key.startswith(f"{self.method}.")
        }
        common: dict[str, Any] = {
            "fraction_train": self.fraction,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "max_growth": self.max_growth,
            "loss_limit": self.loss_limit,
            "enrolled_sizes": sizes_of(self.enrolled_sizes),
        }
        given = {"weighting": self.weighting, "proximal_mu": self.proximal_mu, "personal_lambda": self.personal_lambda}
        common |= {name: value for name, value in given.items() if value}
        try:
            if self.method.startswith(TORCHJD):
                return by_name(self.method.removeprefix(TORCHJD), **common, **options)
            return METHODS[self.method](**own, **common, **options)
        except ValueError as error:
            values = ", ".join(f"{self.method}.{name} = {value!r}" for name, value in own.items())
            raise ValueError(f"{error} ({values})" if values else str(error)) from error

    def run_config(self) -> dict[str, Value]:
        """Return the flat run config, with the parameters of the chosen method and of no other."""
        fields = self.model_dump(by_alias=True, exclude={"parameters"})
        chosen = {**parameter_defaults(), **self.parameters}
        return fields | {key: value for key, value in chosen.items() if key.startswith(f"{self.method}.")}


def check_used(given: Iterable[str], method: str) -> None:
    """Raise SettingsError when one of the keys that a user has given is another method's parameter.

    A run config has the parameters of all methods, so only where somebody typed them is it a mistake.
    """
    for key in given:
        owner, dot, _ = key.partition(".")
        if dot and owner != method:
            raise SettingsError(f"{key} has no effect with method = {method!r}: leave it out, or set method={owner}")


def default_config() -> dict[str, Value]:
    """Return every run-config key with its default, those of all methods included."""
    return Settings.model_validate({}).model_dump(by_alias=True, exclude={"parameters"}) | dict(parameter_defaults())


@cache
def parameter_defaults() -> Mapping[str, Value]:
    """Return the default of every method parameter under its run-config key, `fedfv.alpha`."""
    defaults: dict[str, Value] = {}
    for name, method in METHODS.items():
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                key = f"{name}.{parameter.name.replace('_', '-')}"
                missing = parameter.default is inspect.Parameter.empty
                defaults[key] = STARTING_POINTS[key] if missing else parameter.default
    return defaults


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
            raise SettingsError(f"--set {word}: write it as KEY=VALUE, fedfv.alpha=0.2 say")
        config[key.strip()] = parsed(text.strip())
    return config


def parsed(text: str) -> Value:
    """Return a boolean, a number or a string as TOML reads it; anything else is taken as it is written."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, Value) else text


def _in_words(error: Mapping[str, Any]) -> str:
    reason = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in error["loc"])
    return f"{where} = {error['input']!r}: {reason}" if where else reason
