"""The names of records, keys and metrics on the wire, each spelled only here.

This module imports nothing: the client loop of a device uses it, and has to stay small.
"""

ARRAYS = "arrays"
METRICS = "metrics"
CONFIG = "config"
"""These records of a message hold the model, what a client reports, and the terms of its work."""

SNAPSHOT = "snapshot"
"""This record holds the model that a client had in the midst of its local work."""

ARRAYS_DISPARITY = "arrays-disparity"
"""This record holds the received model after one step down the disparity between two groups of a
client's examples."""
CONTROL = "control"
"""In a message to a client that uses control variates, this record holds the server's, for the
trainable arrays."""

CLIENT = "client"
NAME = "name"
"""In this record a client says who it is; its name has this key there."""

LONGEST_NAME = 100
"""The most characters of a client's name."""


def is_usable_name(name: str) -> bool:
    """Return whether a client can be called so in logs and tables, where a line end would make another line."""
    return 1 <= len(name) <= LONGEST_NAME and name.isprintable()


HONOURS = "honours"
"""A client lists under this key, next to its name, the terms of local work that it supports: some
of `terms.WORK`."""

DEPLOYED = "deployed"
"""A client's settings say by this whether what it reports about its data leaves the machine; no run
can set it."""

MIN_ROWS = "limit-rows"
"""Key of a device's node config: the fewest rows behind a number that leaves the device, which its
owner sets (limits rows, in owner.toml)."""

FILES = "files"
"""Key of a device's node config: the tables `files` of a schema, as JSON, which declare how the
device's files are written."""

FROZEN = "frozen"
"""The digest of a model's frozen parameters: a QUERY with it in the config asks a client for that
of its own, which the answer has in the record `client`. In the terms of local work it says that
`arrays` lacks them: the client has them, or they are in the record of this name. A client that
lacks them after all replies its own digest and nothing else."""

NUM_EXAMPLES = "num-examples"
"""This metric counts the examples of a client's training set, and in an evaluation those of its
test set."""

LARGER_CLASS = "larger-class"
"""The share of a client's test examples that are of the larger one of two classes."""

LOSS_BEFORE = "loss-before"
ACCURACY_BEFORE = "accuracy-before"
"""These are measured with the received model on the client's whole training set."""

LOSS_AFTER = "loss-after"
ACCURACY_AFTER = "accuracy-after"
"""These are measured with the trained model on the client's whole training set."""

BEFORE = "before"
AFTER = "after"
"""What follows the name of a number that is measured on training examples before local work, and
after it."""

DISPARITY = "disparity"
DISPARITY_HARD = "disparity-hard"
"""How differently the received model treats two groups of a client's training examples: the mean
smoothed decision in the second group less that in the first, and the same of the decisions
themselves."""

POSITIVES = ("positives-0", "positives-1")
HITS = ("hits-0", "hits-1")
"""These count the positive training examples of each of two groups, and those of them that the
received model finds."""

BETWEEN_GROUPS = frozenset({DISPARITY, DISPARITY_HARD, *POSITIVES, *HITS})
"""All that is measured of two groups of a client's training examples."""

BASELINE = "baseline"
LOSS_BASELINE = "loss-baseline"
"""What follows the name of a number that a client's best model has on its training examples, of
those that it meets by training alone, once in a run: loss-baseline is the least loss."""

LEARNING_RATE = "learning-rate"
"""The client trained with this learning rate."""

STEP_SUM = "step-sum"
"""The sum of the learning rates of all local steps that a client took, 0 where it took none."""

STATE_ROUND = "state-round"
"""In the terms of a client's work, the round of its last reply that was used, 0 for none: the
client goes on from the state that it kept then. It reports, as a metric of this name, the round of
the state that it went on from."""

UPDATE_NORM = "update-norm"
"""The Euclidean norm ‖w_k − w‖ of what a client's local work has changed, over all trainable
parameters."""

LOSS = "loss"
ACCURACY = "accuracy"
"""These are measured with the received model on the client's test set."""

PERSONAL = "personal"
"""What follows the name of a number that is measured with the client's personal model:
accuracy-personal."""

VALIDATION = "validation"
"""What follows the name of a number that is measured on validation examples: loss-validation."""

TRAIN = "train"
"""What precedes the name of a number that the received model has on training examples in an
evaluation: train-loss."""

TRAIN_LOSS = "train-loss"
"""An evaluation that is asked for this measures the received model on the training set as well."""

PROTOCOL = "fairbloom-protocol"
"""In the config of every message of ours: the number of the language that the server speaks (see
version.py)."""
