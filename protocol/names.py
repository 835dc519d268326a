"""The names of records and metrics on the wire, each spelled here alone."""

ARRAYS, METRICS, CONFIG = "arrays", "metrics", "config"
"""The records of a message: the model, what a client reports, and what it is told."""

SNAPSHOT = "snapshot"
"""The record with the model that a client had in the midst of its local work."""

CLIENT, NAME = "client", "name"
"""The record in which a client says who it is, and its name in there."""

NUM_EXAMPLES = "num-examples"
"""How many examples a client has: of its training set, and in an evaluation of its test set."""

LOSS_BEFORE, ACCURACY_BEFORE = "loss-before", "accuracy-before"
"""Of the received model on the client's whole training set."""

LOSS_AFTER, ACCURACY_AFTER = "loss-after", "accuracy-after"
"""Of the trained model on the client's whole training set."""

LEARNING_RATE = "learning-rate"
"""That the client trained with."""

LOSS, ACCURACY = "loss", "accuracy"
"""Of the received model on the client's test set."""

LOSS_PERSONAL, ACCURACY_PERSONAL = "loss-personal", "accuracy-personal"
"""Of the client's personal model on its test set."""

TRAIN_LOSS = "train-loss"
"""Of the received model on the training set, where an evaluation is asked for it."""
