"""Scores: the numbers of clients in which the fairness of a run is measured."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairbloom.text import decimals_showing, round_to, text_if, three_digits

SHARE = (0.0, 1.0)

# The possible values of known scores, by name.
INTERVALS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("accuracy", "balanced-accuracy", "sensitivity", "specificity"), SHARE),
    **dict.fromkeys(("auc", "f1", "calibration-error", "larger-class"), SHARE),
    "brier": (0.0, 2.0),
    "r2": (-math.inf, 1.0),
    "mae": (0.0, math.inf),
    "rmse": (0.0, math.inf),
}

# Names of scores of which higher is better, those of scikit-learn's scorers among them, in their
# normal form: lower-case words with hyphens.
GAINS = """
acc accuracy adjusted-mutual-info adjusted-rand auc auprc auroc average-precision balanced-acc
balanced-accuracy binary-accuracy bleu c-index categorical-accuracy cohen-kappa completeness
concordance-index d2 d2-absolute-error d2-brier d2-log-loss d2-pinball d2-tweedie dice elbo
exact-match explained-variance f1 fowlkes-mallows homogeneity iou jaccard kappa
label-ranking-average-precision larger-class log-likelihood map matthews-corrcoef mcc miou
mutual-info ndcg negative-predictive-value normalized-mutual-info npv pearson
positive-likelihood-ratio positive-predictive-value ppv pr-auc precision psnr r2 rand recall roc-auc
rouge sensitivity sparse-categorical-accuracy spearman specificity ssim tnr top-1-acc top-1-accuracy
top-5-acc top-5-accuracy top-k-accuracy tpr true-negative-rate true-positive-rate v-measure
"""

# Names of errors, of which lower is better.
LOSSES = """
bce bce-loss binary-cross-entropy binary-crossentropy brier brier-score brier-score-loss
calibration-error categorical-crossentropy ce ce-loss cer coverage-error cross-entropy
cross-entropy-loss crossentropy dice-loss ece eer error error-rate expected-calibration-error
false-negative-rate false-positive-rate fid fnr focal-loss fpr hamming-loss hinge-loss huber-loss
kl-divergence l1-loss label-ranking-loss log-loss logloss loss lpips mae mape max-error
mean-absolute-error mean-absolute-percentage-error mean-gamma-deviance mean-pinball-loss
mean-poisson-deviance mean-squared-error mean-squared-log-error medae median-absolute-error
misclassification-rate mse mse-loss msle negative-likelihood-ratio nll nll-loss perplexity
pinball-loss ppl rmse rmsle root-mean-squared-error root-mean-squared-log-error smape
sparse-categorical-crossentropy wer zero-one-loss
"""

# Scores of which `neg` may say that they are of the negative class.
OF_A_CLASS = (
    "accuracy|acc|f1|precision|recall|iou|miou|dice|jaccard|npv|ppv|specificity|sensitivity|tnr|tpr"
)

# A name that shows its direction, in its normal form.
KNOWN = re.compile(
    rf"""
    (?P<before>(
        (  # words that leave the direction as it is
            val(id(ation)?)? | test(ing)? | train(ing)? | eval(uat(e|ion))? | dev | holdout
            | (de)?centrali[sz]ed | distributed | federated | global | local | personal | clients?
            | server | final | avg | average | mean | macro | micro | weighted | top\d+
        )-
        | minus-  # turns it round, as neg does: but neg_recall may be of the negative class
        | neg(ated|ative)?-(?!([a-z\d]+-)*({OF_A_CLASS})(-(?!loss)|$))
    )*)
    (
        (?P<gain>{"|".join(GAINS.split())})
        (-score)?
        (-(macro | micro | samples | weighted | ov[or](-weighted)?))?
        | {"|".join(LOSSES.split())}
    )
    """,
    re.VERBOSE,
)

# What files say of a score that were written before scores had a unit, or noise.
NO_UNIT: Mapping[str, object] = {"measured_in": "", "noisy": False}

# Sums of probabilities in float32 may exceed their interval by this.
PROBABILITY_ROUNDING = 1e-6


@dataclass(frozen=True)
class Score:
    """A number that measures how well a model serves a client.

    Attributes
    ----------
    name
        Its name on the wire: lower-case words with hyphens, such as `accuracy` or `r2`.
    higher_is_better
        Whether a higher number is better.
    percent
        Whether it is a share in [0, 1], which tables show as a percentage.
    of
        The positive class, of two, that it is of, such as "ill"; "" for other scores.
    measured_in
        The unit of its numbers, such as "days"; "" for scores without one, or of an unknown one.
    noisy
        Whether privacy accounts add noise to it: then it has no interval.
    """

    name: str
    higher_is_better: bool = True
    percent: bool = False
    of: str = ""
    measured_in: str = field(default="", compare=False)  # the same score in any unit
    noisy: bool = field(default=False, compare=False)

    @property
    def words(self) -> str:
        """Its ordinary name: "balanced accuracy", "AUC", or "sensitivity (ill)"."""
        usual = {"auc": "AUC", "mae": "mean absolute error", "r2": "R²"}
        words = usual.get(self.name, self.name.replace("-", " "))
        if self.of:
            words += f" ({self.of})"
        return words

    @property
    def title(self) -> str:
        """Its name in tables and figures: "sensitivity (ill), %", or "loss, lower is better"."""
        title = self.words
        if self.percent:
            title += ", %"
        if self.measured_in:
            title += f", {self.measured_in}"
        if not self.higher_is_better:
            title += ", lower is better"
        return title

    @property
    def unit(self) -> str:
        """The unit of its differences: points, its own, or the score itself."""
        return "points" if self.percent else self.measured_in or self.words

    def better(self, value: float, than: float) -> float:
        """Return by how much a number is better than another, negative if it is worse."""
        return value - than if self.higher_is_better else than - value

    def written(self, value: float | None, decimals: int | None = None) -> str:
        """Return a number of tables as text: "84.3 %", "0.512", "19,600 EUR"; "–" if not finite.

        Without `decimals`, a number that is no percentage has three digits.
        """
        if value is None or not math.isfinite(value):
            return "–"
        if self.percent:
            return f"{value:.1f} %"
        number = three_digits(value) if decimals is None else round_to(value, decimals)
        return f"{number}{text_if(self.measured_in, f' {self.measured_in}')}"

    def decimals_of(self, values: Iterable[float]) -> int:
        """Return the decimals that show three digits of the largest number; one of percentages.

        They are negative if digits before the point are rounded.
        """
        largest = max(map(abs, values), default=0.0)
        return 1 if self.percent or not largest else decimals_showing(3, largest)

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest possible value: a share is in [0, 1]."""
        if self.noisy:
            return -math.inf, math.inf
        return INTERVALS.get(self.name, SHARE if self.percent else (-math.inf, math.inf))

    @property
    def is_error(self) -> bool:
        """Whether it may be as large as any number and lower is better, as of losses."""
        return not self.higher_is_better and self.interval[1] == math.inf

    def has(self, value: float, noise: float = 0.0) -> bool:
        """Return whether a value is possible: finite and in its interval.

        Noise of this standard deviation may leave the interval by eight of them.
        """
        low, high = self.interval
        around = 8.0 * noise + (0.0 if self.percent else PROBABILITY_ROUNDING)
        return math.isfinite(value) and low - around <= value <= high + around

    def shown(self, value: float) -> float:
        """Return a number in the unit of tables."""
        return 100.0 * value if self.percent else value

    def cells(self, values: Iterable[float | None]) -> list[float | None]:
        """Return numbers of clients in the unit of tables, None for missing and impossible ones."""
        return [
            None if value is None or not self.has(value) else self.shown(value) for value in values
        ]

    def column(self, model: str = "global", split: str = "test") -> str:
        """Return its column; `model` is global or personal, `split` is test or validation."""
        return f"{split}_{self.name.replace('-', '_')}_of_{model}_model"


# The share of examples that are classified correctly.
ACCURACY = Score("accuracy", percent=True)

# The mean of the task's loss, which every client reports.
LOSS_SCORE = Score("loss", higher_is_better=False)


# The name of the number of examples of a group.
COUNT = "count"


# 2 TP / (2 TP + FP + FN): the harmonic mean of precision and sensitivity.
F1 = Score("f1")

# The share of the positive examples that are predicted as positive.
SENSITIVITY = Score("sensitivity", percent=True)

# The share of the negative examples that are predicted as negative.
SPECIFICITY = Score("specificity", percent=True)

# The share of the examples of a class that are predicted as that class; of a client, the mean over
# the classes of its examples.
RECALL = Score("recall", percent=True)

# The mean distance of confidence and accuracy over ten equal bins of confidence, weighted by
# examples.
CALIBRATION_ERROR = Score("calibration-error", higher_is_better=False)

# The mean squared distance of probabilities and outcomes: of the positive class if there are two
# classes, else summed over all classes.
BRIER = Score("brier", higher_is_better=False)

# The scores that a run may ask for in addition to those of its task, by name.
FURTHER: Mapping[str, Score] = {
    score.name: score for score in (F1, SENSITIVITY, SPECIFICITY, RECALL, CALIBRATION_ERROR, BRIER)
}


# The reason why a client may have no value of a score, by the score's name.
WHY_UNDEFINED: Mapping[str, str] = {
    "auc": "one class in its test examples",
    "sensitivity": "no positive test example",
    "specificity": "positive test examples alone",
    "f1": "no test example is positive or predicted to be",
    "r2": "all its test targets are the same",
}


@dataclass(frozen=True)
class GroupScore(Score):
    """A score that clients measure in each group of their examples: a mean over examples.

    Attributes
    ----------
    over
        The name of the number of examples in the mean: `count` for all examples of a group, another
        word for some of them, such as `positives` for a true positive rate.
    by
        The grouping by true classes, if it is measured only there; None: in all other groupings.
    """

    over: str = COUNT
    by: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns of tables: the number of examples unless that is `count`, and the score."""
        name = self.name.replace("-", "_")
        return (name,) if self.over == COUNT else (self.over.replace("-", "_"), name)


def put_first(scores: Iterable[Score], first: Score) -> tuple[Score, ...]:
    """Return the scores with `first`, which measures fairness, before all others."""
    return (first, *(score for score in scores if score != first))


def accuracy_first(scores: Iterable[Score]) -> list[Score]:
    """Return the scores in the order of tables of clients: accuracy first."""
    return sorted(scores, key=lambda score: score != ACCURACY)


def name_in_group(name: str, grouping: str, group: str | None) -> str:
    """Return the name on the wire of a score, or count, of one group: "accuracy[sex:female]".

    It is "accuracy[sex:]" of None, the group of examples without a value.
    """
    return f"{name}[{grouping}:{group or ''}]"


def words_of_group(group: str | None) -> str:
    """Return a group's name in tables."""
    return "(without a value)" if group is None else group


def find_direction(name: str) -> bool | None:
    """Return whether higher is better of a score, by its name; None if the name is not known.

    Words such as `val` and `eval` before a known name do not count, `neg` and `minus` turn the
    direction round: lower is better of `eval_loss`, and higher of `neg_val_loss`. What follows any
    other word is no known name: `gain_of_loss` is not known.
    """
    found = KNOWN.fullmatch(re.sub(r"[\s_/.]", "-", name.lower()))
    if found is None:
        return None
    return (found["gain"] is None) == (len(re.findall("minus|neg", found["before"])) % 2 == 1)
