"""The names of records, keys and metrics on the wire, each spelled only here.

This module imports nothing: the client loop of a device uses it, and has to stay small.
"""

# These records of a message hold the model, what a client reports, and the terms of its work.
ARRAYS = "arrays"
METRICS = "metrics"
CONFIG = "config"

# This record holds the model that a client had in the middle of its local steps.
SNAPSHOT = "snapshot"

# This record holds the received model after one step down the disparity between two groups of a
# client's examples.
ARRAYS_DISPARITY = "arrays-disparity"

# In a message to a client that uses control variates, this record holds the server's control
# variate of each trainable array.
CONTROL = "control"

# The record in which a client introduces itself, and the key of its name there.
CLIENT = "client"
NAME = "name"

# Maximum number of characters of a client's name.
LONGEST_NAME = 100


def is_usable_name(name: str) -> bool:
    """Return whether a name can be printed in logs and tables, so has no line end, for example."""
    return 1 <= len(name) <= LONGEST_NAME and name.isprintable()


# Key, next to a client's name, of the terms of local work that it supports: some of `terms.WORK`.
HONOURS = "honours"

# Key in the config of the messages of a run folder: its id. A device keeps the state of an app's
# context by it and by round, so that a run that is continued finds it.
RUN_FOLDER = "run-folder"

# Key in the config of the messages of a run folder in Flower's simulation: the folder in which the
# clients keep the states of their contexts.
CONTEXTS = "contexts"

# Key in the record `client` of a reply to such a message: whether the context has a state that the
# node keeps for one run of Flower's only.
CONTEXT_STATE = "context-state"

# The types of messages whose handlers may change the state of a context, in the order of a round.
WORK_OF_ROUND = ("train", "evaluate")

# Key in the record `client` of a reply: whether all steps had a learning rate of 0, so that a model
# without a change is no fault.
ZERO_RATE = "zero-rate"

# Key in a client's settings: whether its reports leave the machine. No run can set it.
DEPLOYED = "deployed"

# Key in a client's settings: whether all files in the folder of its data are its own. No run can
# set it.
ONE_CLIENT = "one-client"

# Key in the settings of a prediction: the state folder of the device that keeps the sides of the
# rows. No run can set it.
SIDES_IN = "sides-in"

# Key in the settings of clients in one process: the schema that a continued run began with, if the
# settings name none. No run can set it.
RECORDED_SCHEMA = "recorded-schema"

# Key of a device's node config: the fewest rows behind a number that leaves the device, which its
# owner sets (limits rows, in owner.toml).
MIN_ROWS = "limit-rows"

# Key of a device's node config, which its owner sets (limits order, in owner.toml), and its value
# for an order of rows by the run's seed, as in one process.
ORDER = "limit-order"
ORDER_OF_RUN = "run"

# Key of a device's node config: the tables `files` of a schema, as JSON, which declare how the
# device's files are written.
FILES = "files"

# Key of a device's node config: the owner's table limits.privacy, as JSON.
PRIVACY_LIMIT = "limit-privacy"

# Type of the message that brings a released model. Key of a device's node config, which its owner
# sets (limits release, in owner.toml), with its values; the reply has the value that was followed.
RELEASE = "query.release"
RELEASE_LIMIT = "limit-release"
TAKE = "take"
ASK = "ask"
OFF = "off"

# Key in the record `client`: what a client's privacy account allows, see private.AccountStatus.
PRIVACY = "privacy"

# The file among a device's data that names their privacy account.
ACCOUNT_FILE = "fairbloom-account.toml"

# The digest of a model's frozen parameters. A QUERY with this key in its config asks a client for
# the digest of its own model, which it replies in the record `client`. In the terms of local work,
# this key means that `arrays` has no frozen parameters: the client has them, or they are in the
# record of this name. A client with other frozen parameters replies only its own digest.
FROZEN = "frozen"

# This metric counts the examples of a client's training set, and in an evaluation those of its test
# set.
NUM_EXAMPLES = "num-examples"

# Standard deviations of the noise in a client's accuracy and test loss, which the server takes from
# the status of its privacy account.
ACCURACY_DEVIATION = "accuracy-deviation"
LOSS_DEVIATION = "loss-deviation"

# The number of a device's table among the different ones that it has had with the run's split, from
# 1: other rows have another number. It is in the metrics of a reply.
ROWS_VERSION = "rows-version"

# How many fewer rows, or units, a device's data have than before they last changed: a file may be
# cut off. It is in the metrics of a reply, and in the answer to QUERY.
ROWS_MISSING = "rows-missing"

# The share of a client's test examples that belong to the larger one of two classes.
LARGER_CLASS = "larger-class"

# In a simulation, the report of a device with a privacy account, next to the exact results.
REPORTED_ACCURACY = "reported-accuracy"
REPORTED_LOSS = "reported-loss"

# These are measured with the received model on the client's whole training set.
LOSS_BEFORE = "loss-before"
ACCURACY_BEFORE = "accuracy-before"

# These are measured with the trained model on the client's whole training set.
LOSS_AFTER = "loss-after"

# Suffixes of the name of a number that is measured on training examples before local work, and
# after it.
BEFORE = "before"
AFTER = "after"

# How differently the received model treats two groups of a client's training examples: the mean
# smoothed decision in the second group minus the mean in the first, and the same for the decisions
# themselves.
DISPARITY = "disparity"
DISPARITY_HARD = "disparity-hard"

# The number of positive training examples of each of two groups, and of those that the received
# model finds.
POSITIVES = ("positives-0", "positives-1")
HITS = ("hits-0", "hits-1")

# All metrics of two groups of a client's training examples.
BETWEEN_GROUPS = frozenset({DISPARITY, DISPARITY_HARD, *POSITIVES, *HITS})

# Suffix of the name of a number that a client's baseline has on its training examples, and the
# baseline's loss. The baseline is the best model that the client reaches without the others; it
# trains it once in a run.
BASELINE = "baseline"
LOSS_BASELINE = "loss-baseline"

# The client trained with this learning rate.
LEARNING_RATE = "learning-rate"

# The sum of the learning rates of all local steps of a client, 0 without steps.
STEP_SUM = "step-sum"

# In the terms of a client's work: the round of its last reply that was used, 0 if none was. The
# client resumes from the state that it stored then. The metric of this name is the round of the
# state that it did resume from.
STATE_ROUND = "state-round"

# The Euclidean norm ‖w_k − w‖ of a client's update, over all trainable parameters.
UPDATE_NORM = "update-norm"

# In a reply with its update in place of the model, rounded: the bits of each number, 16.
UPDATE_BITS = "update-bits"

# These are measured with the received model on the client's test set.
LOSS = "loss"
ACCURACY = "accuracy"

# Suffix of the name of a number that is measured with the client's personal model, as in
# accuracy-personal.
PERSONAL = "personal"

# The round in which a client last trained the personal model, or parameters, that it keeps; 0 if
# it has not trained any, or has lost them.
PERSONAL_ROUND = "personal-round"

# Suffix of the name of a number that is measured on validation examples, as in loss-validation.
VALIDATION = "validation"

# Prefix of the name of a number that an evaluation measures on training examples, as in train-loss.
TRAIN = "train"

# An evaluation with this in its terms measures the received model on the training set, too.
TRAIN_LOSS = "train-loss"

# What a seed may do to the clients' data in a user's own task or app.
SPLIT = "split"  # it splits the data of the same clients
DRAW = "draw"  # it gives other clients
SEEDS = (SPLIT, DRAW)

# Environment variables by which `fairbloom server` names folders to a run: that with a file for
# each client ever enrolled, that of the run's order and log, and that which holds the federation's.
CLIENTS_FOLDER = "FAIRBLOOM_CLIENTS"
ORDER_FOLDER = "FAIRBLOOM_RUN"
PLACE_FOLDER = "FAIRBLOOM_PLACE"

# Key in the config of every message of our server: the number of its protocol, see version.py.
PROTOCOL = "fairbloom-protocol"

# Key of the description of how the server's model is made, see fairbloom/tasks/models/made.py.
MODEL_MADE = "model-made"

# The file with it in a run folder, and next to a model that a device keeps.
MODEL_MADE_FILE = "model.json"
