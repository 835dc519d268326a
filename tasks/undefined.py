"""Why a client may have no value of a score, which is then left out; nothing here imports PyTorch."""

from collections.abc import Mapping

WHY_UNDEFINED: Mapping[str, str] = {
    "auc": "one class in its test examples",
    "sensitivity": "no positive test example",
    "specificity": "positive test examples alone",
    "f1": "no test example is positive or predicted to be",
    "r2": "all its test targets are the same",
}
"""By the names of scores."""
