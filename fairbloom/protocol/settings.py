"""The settings of a run: the keys of its run config, which server and clients both read."""

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairbloom.errors import did_you_mean, reason_of

from .accounts import COUNTS
from .conditions import WITH_ACCOUNTS, AtMost, Below, IdleIf, NotWith, OnlyInProcess, Under, Where
from .names import DEPLOYED, ONE_CLIENT, SIDES_IN
from .options import DECLARED, NO_TESTS, RunOptions
from .parameters import (
    Choices,
    Mark as Mark,
    Parameter,
    Partitions,
    Range,
    SettingsError as SettingsError,
    Value as Value,
    annotated,
    key_of as key_of,
    of_kind,
    parsed as parsed,
    split_names as split_names,
)

# The attacks: false losses, and false losses with updates scaled alike.
LOSS = "loss"
LOSS_SCALE = "loss-scale"

# What leaves several settings without effect.
NO_ATTACK = IdleIf("attack", "", f"name an attack by {{attack}}, as in {LOSS}")
NO_ACCOUNTS = IdleIf(
    "privacy__mode",
    "none",
    "set {privacy__mode}=simulated, which needs no devices and protects no row",
    " without simulated accounts",
)
ONLY_LAST = IdleIf(
    "evaluate_every",
    0,
    "set {evaluate_every}, as in 1",
    " with {evaluate_every} = 0, which evaluates only the last round",
)


class Setup(BaseModel):
    """The settings of a run on which its task depends; every task gets them.

    The task gets them with the defaults of model, partition and number of clients filled in; the
    number is 0 if the clients come with the data, and 1 on a device with its own. `schema_` is then
    the text of the schema that describes the clients' files.
    """

    model_config = ConfigDict(
        frozen=True,
        alias_generator=key_of,
        protected_namespaces=(),
        hide_input_in_errors=True,  # a traceback shows them, and the input may be a table
    )

    task: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "digits",
        description="Task to learn: a name from fairbloom tasks, or your own as my_module:task",
    )
    model: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "",
        description=(
            'Model to train: a name from fairbloom tasks ("": the first), or yours as my_module:Net'
        ),
    )
    norm: Annotated[
        str, Choices("auto", "own", "group", "layer"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS
    ] = Field(
        "auto",
        description="Norm layers of torchvision's models; auto is group, or own with weights",
    )
    clients: Annotated[int, Range("[0, inf)"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        0,
        description=(
            "Number of clients that the data is split into; 0 uses the task's number, 20 for most"
            " tasks"
        ),
    )
    partition: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "",
        description=(
            "Split of the data into clients: a name from fairbloom tasks, or my_module:deal"
        ),
    )
    shards_per_client: Annotated[
        int, Range("[1, inf)"), Partitions("shards"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS
    ] = Field(
        2,
        description=(
            "Number of pieces of the label-sorted data that each client gets, if partition = shards"
        ),
    )
    classes_per_client: Annotated[
        int, Range("[1, inf)"), Partitions("classes"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS
    ] = Field(2, description="Number of classes that each client has, if partition = classes")
    dirichlet_alpha: Annotated[
        float,
        Range("(0, inf)"),
        Partitions("dirichlet", "sizes"),
        Mark.SENT_TO_CLIENTS,
        WITH_ACCOUNTS,
    ] = Field(
        0.5,
        description=(
            "Dirichlet concentration: smaller values make clients more unequal (dirichlet, sizes)"
        ),
    )
    smallest_client: Annotated[
        int,
        Range("[2, inf)"),
        Partitions("dirichlet", "sizes"),
        Mark.SENT_TO_CLIENTS,
        WITH_ACCOUNTS,
    ] = Field(
        5,
        description=(
            "Smallest number of examples that a client is given, if partition = dirichlet or sizes"
        ),
    )
    test_share: Annotated[float, Range("[0, 1)"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        0.2,
        description=(
            "Share of each client's examples that is held out to test on; 0 trains on all, and"
            " measures no score"
        ),
    )
    validation_share: Annotated[
        float, Range("[0, 1)"), Mark.SENT_TO_CLIENTS, NO_TESTS, Under(Where.ACCOUNT, 0.0)
    ] = Field(
        0.0,
        description=(
            "Share of each client's examples that is held out to choose the best model; 0 holds out"
            " none"
        ),
    )
    held_out_clients: Annotated[
        float,
        Range("[0, 1)"),
        OnlyInProcess(
            "every deployed client is in training", "or name those that train by training-clients"
        ),
    ] = Field(
        0.0,
        description=(
            "Share of the clients that are not in training, and test only the final model; 0: none"
        ),
    )
    data_dir: Annotated[str, Mark.PLACE, Mark.DEVICE] = Field(
        "",
        description=(
            'Folder of the data; "" uses FAIRBLOOM_DATA or the cache; a deployed client sets'
            " its own"
        ),
    )
    schema_: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "",
        description=(
            'File that says what the tables hold; "" infers it from the files, in one process'
        ),
    )
    verify_data: Annotated[bool, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        True,
        description=(
            "Whether files of a known data set must be the originals; false accepts others in that"
            " format"
        ),
    )
    seed: Annotated[int, Range("[0, 9223372036854775807]"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = (
        Field(
            0, description="Seed of the data split, initial model, client sampling and batch order"
        )
    )

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse names with underscores: as settings of a task they would have no effect."""
        for name, value in config.items():
            if name in cls.model_fields and name != key_of(name):
                raise SettingsError(
                    f"unknown setting {name} = {value!r}; did you mean {key_of(name)}?"
                )
        return config

    @field_validator("*", mode="plain")
    @classmethod
    def _check(cls, value: object, info: ValidationInfo) -> Value:
        return SETTINGS[key_of(str(info.field_name))].checked(value)

    @classmethod
    def of(cls, config: Self | Mapping[str, Any]) -> Self:
        """Return the settings of a run config, with defaults and `own-settings` under their keys.

        Settings are returned unchanged. Raise SettingsError, which names all settings with a value
        of another type or outside the range.
        """
        if not isinstance(config, Mapping):
            return config
        try:
            return cls.model_validate(expand_own_settings(config))
        except ValidationError as error:
            # The messages are those of Parameter.checked, which name the setting.
            reasons = map(reason_of, error.errors())
            raise SettingsError("; ".join(reasons)) from error


class Given(NamedTuple):
    """A setting with its value; as a text, it is as a user writes it."""

    key: str
    value: Value

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return f"{self.key} = {str(self.value).lower()}"
        return f"{self.key} = {self.value!r}"


class RunSettings(Setup):
    """Every setting with type, range, default, meaning and marks.

    The run config's keys are these names with hyphens. `of` reads a run config, `run_config` writes
    one for Flower. All other keys of a run config, mostly those of tasks and methods, are in
    `parameters`, unchecked. `model_copy(update={"state_dir": ..., "digits.rotated-clients": 3})`
    changes fields by their names in Python, and `parameters` by their keys.

    An option of all methods is declared in `RunOptions`; here it has its place in the run config.
    """

    model_config = ConfigDict(extra="allow")

    pooled: Annotated[
        bool,
        Mark.SENT_TO_CLIENTS,
        OnlyInProcess("the training data of all clients lie together in one process only"),
        Under(Where.ACCOUNT, False),
    ] = Field(
        False,
        description=(
            "Whether one client trains on the training data of all clients together; in one process"
            " only"
        ),
    )
    method: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "fedavg",
        description=(
            "Method that combines updates: a name from fairbloom methods, or my_module:Mine"
        ),
    )
    weighting: Annotated[str, Choices("examples", "uniform", ""), Mark.VARIANT] = Field(
        "",
        description=(
            'Prior weight of a client: by its examples, or uniform; "" takes the method\'s own'
            " choice"
        ),
    )
    proximal_mu: float = RunOptions.proximal_mu
    personal_lambda: float = RunOptions.personal_lambda
    personal_parameters: str = RunOptions.personal_parameters
    personal_steps: str = RunOptions.personal_steps
    head_epochs: int = RunOptions.head_epochs
    fine_tune_epochs: int = RunOptions.fine_tune_epochs
    draw: str = RunOptions.draw
    prior: str = RunOptions.prior
    server_optimizer: str = RunOptions.server_optimizer
    server_optimizer_lr: Annotated[float, Range("[0, inf)"), Mark.VARIANT] = Field(
        0.0,
        description=(
            "Step size of the server optimizer; 0 means 1 for avgm; the others need a value"
        ),
    )
    server_optimizer_beta1: float = RunOptions.server_optimizer_beta1
    server_optimizer_beta2: float = RunOptions.server_optimizer_beta2
    server_optimizer_tau: float = RunOptions.server_optimizer_tau
    control_variates: bool = RunOptions.control_variates
    initial_weights: Annotated[
        str,
        NotWith(
            "norm",
            ("group", "layer"),
            "its model was trained with the network's own norm layers: leave {norm} out",
        ),
    ] = Field(
        "",
        description="File of weights that the initial model has, of the same kind of model",
    )
    weights_digest: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "",
        description="Digest of the arrays of initial-weights; owners of devices accept it",
    )
    after_all_rows: Annotated[str, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        "",
        description="Digest of the model of all rows before; devices test on rows since then",
    )
    num_rounds: Annotated[
        int, Range("[1, inf)"), Mark.SENT_TO_CLIENTS, Mark.EXTENDABLE, WITH_ACCOUNTS
    ] = Field(50, description="Number of rounds after which the run is finished")
    fraction: Annotated[float, Range("[0, 1]")] = Field(
        0.0,
        description=(
            "Share of the clients that train in a round; 0 means all if there are up to nine,"
            " otherwise half"
        ),
    )
    local_epochs: Annotated[
        int,
        Range("[1, inf)"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        WITH_ACCOUNTS,
        Under(Where.SUMS, 1),
    ] = Field(
        1, description="Number of passes that a client makes over its training data in a round"
    )
    batch_size: Annotated[
        int, Range("[0, inf)"), Mark.SENT_TO_CLIENTS, Mark.VARIANT, Under(Where.ACCOUNT, 0)
    ] = Field(10, description="Number of examples in a client's minibatch; 0 means all")
    smallest_batch: Annotated[
        int, Range("[1, inf)"), Mark.SENT_TO_CLIENTS, Mark.VARIANT, WITH_ACCOUNTS
    ] = Field(
        1,
        description=(
            "Fewest examples, or units of the schema, of a client's last minibatch; with fewer, it"
            " joins another"
        ),
    )
    learning_rate: Annotated[
        float, Range("(0, inf)"), Mark.SENT_TO_CLIENTS, Mark.VARIANT, WITH_ACCOUNTS
    ] = Field(0.1, description="Learning rate of the clients' optimizer")
    learning_rate_decay: Annotated[
        float, Range("(0, 1]"), Mark.SENT_TO_CLIENTS, Mark.VARIANT, WITH_ACCOUNTS
    ] = Field(
        1.0,
        description="Factor by which the clients' learning rate is multiplied after each round",
    )
    schedule: Annotated[
        str,
        Choices("constant", "linear", "cosine"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        WITH_ACCOUNTS,
    ] = Field(
        "constant",
        description=(
            "How the clients' learning rate falls to zero: linearly, as a cosine, or not at all"
        ),
    )
    warmup: Annotated[
        int,
        Range("[0, inf)"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Below("num_rounds"),
        WITH_ACCOUNTS,
    ] = Field(
        0,
        description=(
            "Number of rounds in which the clients' learning rate rises to its full height"
        ),
    )
    optimizer: Annotated[
        str,
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Mark.CHANGES_STEP,
        Under(Where.ACCOUNT, "sgd", "adam", "adamw"),
        Under(Where.SUMS, "sgd"),
    ] = Field(
        "sgd",
        description=(
            "Optimizer of the clients: sgd, adam, adamw, or my_module:Mine; its state is new in"
            " each round"
        ),
    )
    momentum: Annotated[
        float,
        Range("[0, 1)"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Mark.CHANGES_STEP,
        WITH_ACCOUNTS,
        Under(Where.SUMS, 0.0),
    ] = Field(
        0.0, description="Momentum of the clients' optimizer, which starts at zero in every round"
    )
    nesterov: Annotated[
        bool, Mark.SENT_TO_CLIENTS, Mark.VARIANT, Mark.CHANGES_STEP, WITH_ACCOUNTS
    ] = Field(False, description="Whether the momentum of the clients' SGD is Nesterov's")
    weight_decay: Annotated[
        float,
        Range("[0, inf)"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        WITH_ACCOUNTS,
        Under(Where.SUMS, 0.0),
    ] = Field(0.0, description="Weight decay of the clients' optimizer")
    gradient_clip: Annotated[
        float,
        Range("[0, inf)"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Mark.CHANGES_STEP,
        WITH_ACCOUNTS,
        Under(Where.SUMS, 0.0),
    ] = Field(
        0.0,
        description=(
            "Largest norm of a minibatch's gradient; longer ones are shortened; 0 disables it"
        ),
    )
    augment: Annotated[str, Mark.SENT_TO_CLIENTS, Mark.VARIANT, Under(Where.ACCOUNT, "none")] = (
        Field(
            "none",
            description=(
                "Random changes of the training images: none, flip, crop-flip, or"
                " my_module:transform"
            ),
        )
    )
    client_rule: str = RunOptions.client_rule
    wire_dtype: str = RunOptions.wire_dtype
    privacy__mode: Annotated[
        str,
        Choices("none", "simulated"),
        Mark.VARIANT,
        IdleIf("privacy__epsilon", "", "set {privacy__epsilon}, as in 3", " without an epsilon"),
        OnlyInProcess("noise from the run's seed protects nobody", "whose owners open accounts"),
    ] = Field(
        "none",
        description=(
            "Whether clients in one process add the noise of privacy accounts, which protects"
            " nobody there"
        ),
    )
    privacy__epsilon: Annotated[str, Mark.NAMES, Mark.VARIANT, NO_ACCOUNTS] = Field(
        "",
        description=(
            "Epsilon of the simulated accounts: of every client, or as in 'site-a=1 site-b=3'"
        ),
    )
    privacy__delta: Annotated[float, Range("[0, 1)"), Mark.VARIANT, NO_ACCOUNTS] = Field(
        0.0, description="Delta of the simulated accounts; 0: 1e-5, or 1/(10 n) if that is less"
    )
    privacy__steps: Annotated[int, COUNTS, Mark.VARIANT, NO_ACCOUNTS] = Field(
        90, description="Training steps that a simulated account is for, each with a loss report"
    )
    privacy__tests: Annotated[int, COUNTS, Mark.VARIANT, NO_ACCOUNTS] = Field(
        1, description="Evaluations that a simulated account is for"
    )
    privacy__honest: Annotated[int, Range("[1, 1000000]"), Mark.VARIANT, NO_ACCOUNTS] = Field(
        1,
        description=(
            "Clients that follow the protocol, if all share their noise in sums; 1: each has its"
            " own"
        ),
    )
    weight_cap: Annotated[
        float,
        Range("[1, inf)"),
        Mark.VARIANT,
        IdleIf("privacy__honest", 1, "set {privacy__honest}, as in 8", " without shared noise"),
    ] = Field(
        2.0,
        description="With shared noise, the most that a client weighs over its share of the rows",
    )
    privacy__spend: Annotated[str, Mark.VARIANT] = Field(
        "",
        description=(
            "Units of each privacy account that the run may spend, or all; lowest: the least of a"
            " round"
        ),
    )
    stragglers: Annotated[
        float, Range("[0, 1]"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS, Under(Where.SUMS, 0.0)
    ] = Field(
        0.0,
        description=(
            "Probability that a client is a straggler, which trains for fewer epochs in a round"
        ),
    )
    drop_stragglers: Annotated[bool, Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        False,
        description=(
            "Whether stragglers are left out of the round, as in FedAvg, instead of training less"
        ),
    )
    time_budget: Annotated[
        float, Range("[0, inf)"), Mark.SENT_TO_CLIENTS, Under(Where.ACCOUNT, 0.0)
    ] = Field(
        0.0,
        description=(
            "Seconds after which a client stops training and sends its model; 0 sets no limit"
        ),
    )
    reported_loss: Annotated[
        str, Choices("mean", "batches"), Mark.SENT_TO_CLIENTS, Under(Where.ACCOUNT, "mean")
    ] = Field(
        "mean",
        description=(
            "Training loss that clients report: the mean over examples, or the total over batches"
        ),
    )
    attack: Annotated[
        str,
        Choices("", LOSS, LOSS_SCALE),
        Mark.VARIANT,
        IdleIf("attackers", "", "say who attacks by {attackers}, as names or as a share, 0.25"),
        NotWith(
            "privacy__mode",
            ("simulated",),
            "what a privacy account releases is what it has charged, and no false report: leave"
            " {attack} out, or set {privacy__mode}=none",
        ),
        NotWith(
            "pooled",
            (True,),
            "with {pooled} = true, one client has the data of all, and no other to attack: leave"
            " {attack} out",
        ),
        OnlyInProcess("clients attack in one process only"),
    ] = Field(
        "",
        description=(
            "False reports of attackers: loss adds to their losses, loss-scale multiplies these and"
            " updates"
        ),
    )
    attackers: Annotated[str, Mark.NAMES, Mark.VARIANT, NO_ATTACK] = Field(
        "",
        description=(
            "Names of the clients that attack, separated by commas; or their share, drawn from the"
            " seed"
        ),
    )
    attack_strength: Annotated[float, Range("[-1e12, 1e12]"), Mark.VARIANT, NO_ATTACK] = Field(
        0.0,
        description="What an attack adds or multiplies by; 0 takes its usual one, 1 and 10",
    )
    training_clients: Annotated[str, Mark.NAMES] = Field(
        "",
        description=(
            "Names of the clients that train, separated by commas (or in quotes); all evaluate;"
            ' "": all train'
        ),
    )
    average_models: bool = RunOptions.average_models
    evaluate_every: int = RunOptions.evaluate_every
    early_stopping: Annotated[
        int,
        Range("[0, inf)"),
        Mark.EXTENDABLE,
        NO_TESTS,
        IdleIf(
            "validation_share",
            0.0,
            "set {validation_share}, such as 0.2",
            " without validation examples",
        ),
        ONLY_LAST,
    ] = Field(
        0,
        description=(
            "Number of rounds without a better validation score that end the run; 0 never ends it"
            " early"
        ),
    )
    best_model: Annotated[str, Choices("mean", "worst-10"), ONLY_LAST, NO_TESTS] = Field(
        "mean",
        description=(
            "Mean by which the best model is kept: over all clients, or the worst 10 % of them"
        ),
    )
    fraction_evaluate: Annotated[float, Range("(0, 1]"), NO_TESTS] = Field(
        1.0,
        description="Share of the clients that evaluate the model in a round with an evaluation",
    )
    scores: Annotated[str, Mark.NAMES, Mark.SENT_TO_CLIENTS, NO_TESTS, Under(Where.ACCOUNT, "")] = (
        Field(
            "",
            description=(
                "Scores to add: recall, brier, calibration-error; of two classes"
                " f1, sensitivity, specificity"
            ),
        )
    )
    score: Annotated[str, NO_TESTS] = Field(
        "",
        description=(
            'Score that measures fairness: accuracy, balanced-accuracy, auc, loss and more; ""'
            " suits the data"
        ),
    )
    smallest_group: Annotated[int, Range("[1, inf)"), Mark.SENT_TO_CLIENTS, WITH_ACCOUNTS] = Field(
        5,
        description=(
            "Fewest examples of a group for which a client reports counts, scores or a disparity"
        ),
    )
    round_timeout: Annotated[float, Range("(0, inf)"), Mark.DEPLOYED] = Field(
        600.0, description="Seconds that deployed clients have to reply in a round"
    )
    min_replies: Annotated[int, Range("[0, inf)"), Mark.DEPLOYED] = Field(
        0,
        description=(
            "Number of usable replies that end a round's training on deployed clients; 0 waits"
            " for all"
        ),
    )
    min_clients: Annotated[
        int,
        Range("[0, inf)"),
        Mark.FREE,
        Mark.DEPLOYED,
        AtMost("clients"),
        AtMost("training_clients"),
    ] = Field(
        0,
        description=(
            "Fewest deployed clients online; with fewer the run waits; 0: half of those at its"
            " start, or two"
        ),
    )
    wait_for_clients: Annotated[float, Range("[0, inf)"), Mark.FREE, Mark.DEPLOYED] = Field(
        3600.0,
        description=(
            "Seconds that a run waits for deployed clients before it continues without them, or"
            " ends"
        ),
    )
    unused_rounds: int = RunOptions.unused_rounds
    max_growth: float = RunOptions.max_growth
    loss_limit: float = RunOptions.loss_limit
    update_limit: float = RunOptions.update_limit
    enrolled_sizes: Annotated[str, Mark.FREE] = Field(
        "",
        description=(
            "Largest number of examples that each client may report, as in 'site-a=1200 site-b=300'"
        ),
    )
    engine: Annotated[str, Choices("auto", "loop", "stacked"), Mark.ROUNDING] = Field(
        "auto", description="How clients on one machine are computed; auto chooses"
    )
    device: Annotated[str, Mark.SENT_TO_CLIENTS, Mark.PLACE, Mark.ROUNDING, WITH_ACCOUNTS] = Field(
        "auto", description="Device that clients compute on: auto, cpu, cuda, cuda:1 or mps"
    )
    precision: Annotated[
        str,
        Choices("float32", "tf32", "bfloat16"),
        Mark.SENT_TO_CLIENTS,
        Mark.VARIANT,
        Under(Where.ACCOUNT, "float32"),
    ] = Field(
        "float32",
        description="Numbers that clients compute with; tf32 and bfloat16 are faster on a GPU",
    )
    threads: Annotated[
        int,
        Range("[1, inf)"),
        Mark.ROUNDING,
        OnlyInProcess("it is for one process", "and set OMP_NUM_THREADS on each device"),
    ] = Field(
        1,
        description=(
            "Threads with which one process computes all clients; the last bits depend on it"
        ),
    )
    memory: Annotated[float, Range("[0, inf)"), Mark.FREE] = Field(
        0.0,
        description=(
            "Gigabytes of memory for a round's updates; the rest is kept in a file; 0: half of the"
            " machine's"
        ),
    )
    own_settings: str = Field(
        "",
        description=(
            "Settings of user-defined tasks and methods that a run config lacks, as in"
            " 'mine.share=0.5'"
        ),
    )
    state_dir: Annotated[str, Mark.PLACE, Mark.DEVICE] = Field(
        "",
        description=(
            'Folder of what clients keep between rounds; in process, "" keeps it in the run folder'
        ),
    )
    release: Annotated[str, Choices("", "last", "best"), Mark.FREE, Mark.DEPLOYED] = Field(
        "",
        description=(
            'Model that all devices get for predictions once the run is finished: last or best; ""'
            " for none"
        ),
    )
    out: Annotated[str, Mark.FREE] = Field(
        "",
        description='Folder that the run is written to; "" names one under runs/ by the settings',
    )

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The settings of tasks and methods, and all other keys of the run config."""
        return self.model_extra or {}

    @property
    def paced(self) -> bool:
        """Whether clients' steps depend on the number of rounds, so that it cannot be raised."""
        return self.schedule != "constant"

    def value_of(self, parameter: Parameter) -> Value:
        """Return the value of one of the settings."""
        name = parameter.argument
        if name == "schema":  # which is a method of pydantic's models
            name = "schema_"
        value: Value = getattr(self, name)
        return value

    def beyond_plain_sgd(self, but: str = "") -> Given | None:
        """Return the first setting that makes a client's steps not plain SGD, None without one.

        The setting `but` does not count: with a `client-rule`, the gradients that it corrects are
        those of plain SGD.
        """
        for key in marked(Mark.CHANGES_STEP):
            value = getattr(self, SETTINGS[key].argument)
            if key != but and value != SETTINGS[key].default:
                return Given(key, value)
        return None

    def given(self) -> dict[str, Any]:
        """Return the flat run config of the settings that were given, without defaults."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def run_config(self) -> dict[str, Value]:
        """Return the flat run config that Flower's messages carry."""
        # `of` has moved the settings of own-settings to their own keys.
        return self.model_dump(by_alias=True, exclude={"own_settings"})


OWN_SETTINGS = "own-settings"

# The key of the digest of all settings, including dropped ones: a deployed client identifies its
# run by it.
FINGERPRINT = "fingerprint"


def digest(config: Mapping[str, Any]) -> str:
    """Return the eight-character digest of settings that names run folders and client states."""
    written = json.dumps(dict(config), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:8]


def flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings with dotted keys, as Flower reads them: in TOML, `csv.group` is a table."""
    settings: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            settings |= flatten_tables(value, f"{prefix}{key}.")
        else:
            settings[prefix + key] = value
    return settings


def check_app_config(
    given: Mapping[str, Value], defaults: Mapping[str, Any], where: str
) -> dict[str, Value]:
    """Return settings of a user's app, in the types of their defaults in its pyproject.toml.

    `where` names the table of the defaults. Raise SettingsError for a setting without a default, or
    of another type.
    """
    checked: dict[str, Value] = {}
    for key, value in given.items():
        if key not in defaults:
            raise SettingsError(
                f"unknown setting {key} = {value!r}: {did_you_mean(key, defaults)}{where} has"
                f" {', '.join(defaults) or 'no key'}; add it there if your app is to read it"
            )
        kind = type(defaults[key])
        if not of_kind(value, kind):
            raise SettingsError(
                f"{key} = {value!r}: it must be of type {kind.__name__}, as its default in {where}"
                " is"
            )
        checked[key] = kind(value)
    return checked


def parse_assignments(words: Iterable[str]) -> dict[str, Value]:
    """Return the settings of KEY=VALUE words; the last value of a key wins."""
    config: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not key.strip() or not equals:
            raise SettingsError(f"{word!r}: write it as KEY=VALUE, as in fedfv.alpha=0.2")
        # In a list of clients, quotes are around one of them: TOML would take them away. No score
        # has a comma in its name.
        is_list = "," in text and key.strip() in marked(Mark.NAMES).keys() - {"scores"}
        config[key.strip()] = text.strip() if is_list else parsed(text.strip())
    return config


def expand_own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config with the settings of `own-settings` under their own keys."""
    words = config.get(OWN_SETTINGS, "")
    if not isinstance(words, str):
        return dict(config)  # the type is refused when the settings are checked
    expanded = {key: value for key, value in config.items() if key != OWN_SETTINGS}
    try:
        split = shlex.split(words)
    except ValueError as error:  # for example, no closing quotation
        raise SettingsError(
            f"own-settings = {words!r}: {error}: write KEY=VALUE words, quoted as in a shell"
        ) from error
    expanded |= parse_assignments(split)
    of_torchvision = str(expanded.get("model", "")).startswith("torchvision:")
    is_open = expanded.get("norm", "auto") == "auto"
    if expanded.get("initial-weights") and of_torchvision and is_open:
        expanded["norm"] = "own"  # weights belong to the layers that they were trained with
    return expanded


def marked(*marks: Mark) -> Mapping[str, type]:
    """Return the keys of the settings that have one of these marks, with their types."""
    return {key: each.kind for key, each in SETTINGS.items() if each.marks.intersection(marks)}


def _declared_settings() -> Iterator[Parameter]:
    """Yield the fields of RunSettings that are settings."""
    for name, hint in get_type_hints(RunSettings, include_extras=True).items():
        field = RunSettings.model_fields.get(name)
        if field is None:
            continue
        kind = DECLARED.get(name, hint)
        parameter = annotated(name, kind, field.default, field.description or "")
        if parameter is not None:
            yield parameter


# Every setting of a run by its key.
SETTINGS: Mapping[str, Parameter] = {each.key: each for each in _declared_settings()}


def usual_fraction(clients: int) -> float:
    """Return the default share of clients that train: half, or all of up to 9 clients."""
    return 1.0 if clients <= 9 else 0.5


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return the digest of all settings that define a run; a client stores its states by it."""
    others = {
        *marked(Mark.FREE, Mark.LIMIT, Mark.PLACE, Mark.EXTENDABLE),
        OWN_SETTINGS,
        DEPLOYED,
        ONE_CLIENT,
        SIDES_IN,
        "score",  # it changes no client's work, and is decided after the clients have begun
    }
    defaults = {key: each.default for key, each in SETTINGS.items()}
    given = {key: value for key, value in expand_own_settings(config).items() if key not in others}
    return digest({key: value for key, value in given.items() if value != defaults.get(key)})
