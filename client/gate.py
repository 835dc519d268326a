"""The gate of a device: which of the numbers that a run asks for leave it, by how many rows are behind each."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairbloom.logs import log
from fairbloom.tasks import Splits, Task
from fairbloom.tasks.collated import CollatedExamples
from fairbloom.tasks.files.reasons import DataError, Heading
from fairbloom.tasks.inputs import tensors_of
from fairbloom.tasks.leaving import CLASS_SCORES, check_rows, score_floor
from fairbloom.tasks.row_digests import Digests, RowsBehind, tell_apart
from fairbloom.tasks.task import AnyExamples

from .ledger import Ledger, keyed_digest
from .metrics import OF_TRAINING, TEST, TRAIN, VALIDATION, Measurement
from .record import hold_back

ROWS, CLASSES = "rows", "classes"
"""The kinds of sets of rows that are compared: those of whole parts and of groups, and those of single classes."""


class Gate:
    """What a client may send of its examples: `floor` is the fewest rows behind a count, or between two."""

    def __init__(self, ledger: Ledger, floor: int, task: Task, client: str, splits: Splits) -> None:
        self.floor = floor
        self._ledger, self._task, self._client, self._splits = ledger, task, client, splits

    def check_training(self) -> None:
        """Raise DataError where a model would leave that is trained on too few rows of the owner's files."""
        if self._task.behind is not None:
            check_rows("few-to-train", len(self._splits.train), score_floor(self.floor))

    def pass_scores(self, measurement: Measurement, scores: Mapping[str, float]) -> dict[str, float]:
        """Return those of the loss and the scores of a part, by their names, that may leave; of groups all do.

        Where those of training may not leave, it raises DataError: methods need these numbers as they are.
        """
        part = measurement.examples
        examples: AnyExamples = getattr(self._splits, part)
        fewest = score_floor(self.floor)
        if len(examples) < fewest or not self._admit_whole(part):
            if measurement in OF_TRAINING:
                check_rows("few-to-measure", len(examples), fewest)
                raise near_error("its loss", self.floor)
            why = self._too_near if len(examples) >= fewest else f"there are fewer than {fewest}"
            hold_back(f"loss and scores of its {part} examples, because {why}")
            return {}
        of_classes = {name for name in scores if name.partition("-at-")[0] in CLASS_SCORES}
        if of_classes and (why := self._why_no_classes(examples, self._digests(part), fewest)):
            hold_back(f"{', '.join(sorted(of_classes))} of its {part} examples, because {why}")
            return {name: score for name, score in scores.items() if name not in of_classes}
        return dict(scores)

    def admits(self, part: str, members: Sequence[Tensor]) -> bool:
        """Return whether counts and scores of groups of a part may leave; each group as a mask over the part.

        All groups of a grouping together are the part, which must be one that may leave.
        """
        rows = self._digests(part)
        if self._admit_whole(part) and self._admit([(ROWS, rows[mask.cpu().numpy()]) for mask in members]):
            return True
        hold_back(f"counts and scores of groups of its {part} examples, because {self._too_near}")
        return False

    def _admit_whole(self, part: str) -> bool:
        """Return whether a part may leave, and it together with others that have left: sums show those, too."""
        if self._ledger.holds(ROWS, self._digests(part)):
            return True
        there = [name for name in (TRAIN, TEST, VALIDATION) if name != part and getattr(self._splits, name)]
        others = [rows for rows in map(self._digests, there) if self._ledger.holds(ROWS, rows)]
        rows, joins = self._digests(part), [join for n in range(3) for join in combinations(others, n)]
        joined = [np.concatenate([rows, *join]) for join in joins]
        # A part is enough rows by itself, so that it may differ from a join by so few.
        own = [*joined, *(np.concatenate(join) for join in joins if join)]
        return self._ledger.admit([(ROWS, each) for each in joined], self.floor, own)

    def _admit(self, numbers: Sequence[tuple[str, Digests]]) -> bool:
        return self._ledger.admit(numbers, self.floor)

    def _why_no_classes(self, examples: AnyExamples, rows: Digests, fewest: int) -> str:
        """Return why scores of single classes may not leave, "" where they may."""
        targets = examples.all_targets.cpu()
        if targets.is_floating_point() or targets.dim() != 1:
            return "their targets are no classes"
        counts = torch.bincount(targets, minlength=self._task.classes or len(self._task.class_names) or 2)
        if int(counts.min()) < fewest:
            return f"a class has fewer than {fewest} of them"
        members = [(CLASSES, rows[(targets == place).numpy()]) for place in range(len(counts))]
        return "" if self._admit(members) else self._too_near

    @property
    def _too_near(self) -> str:
        return f"they differ by fewer than {self.floor} from those behind an earlier number"

    def _digests(self, part: str) -> Digests:
        return digest_part(self._task, self._client, part, self._ledger.read_key())


def check_summary(task: Task, client: str, ledger: Ledger, floor: int) -> None:
    """Raise DataError where a number of a client's summary may not leave the device, and remember the others."""
    if task.behind is None or not (behind := task.behind(client)).summary:
        return
    digests = digest_rows(task.behind, client, ledger.read_key())
    for number, places in behind.summary.items():
        if not ledger.admit([(number, digests[places])], floor):
            raise near_error(number, floor)


def near_error(number: str, floor: int) -> DataError:
    """Return the error of a number whose rows are too near those behind an earlier one."""
    error = DataError("", "near-rows", number=Heading(number), floor=floor)
    return DataError(error.reportable, "near-rows", number=Heading(number), floor=floor)


@lru_cache(maxsize=1)
def open_ledger(folder: Path | None) -> Ledger:
    """Return the ledger of a state folder, the same one again; where there is none, it ends with this process."""
    if folder is None:
        log.warning("no state-dir is set: the ledger of the numbers that leave this device ends with this process")
    return Ledger(folder)


@lru_cache(maxsize=2)
def digest_rows(behind: Callable[[str], RowsBehind], client: str, key: bytes) -> Digests:
    """Return a digest of each example of a client, in the order of the task's tensors."""
    return behind(client).identify(partial(keyed_digest, key))


@lru_cache(maxsize=4)
def digest_part(task: Task, client: str, part: str, key: bytes) -> Digests:
    """Return a digest of each example of a part."""
    examples: AnyExamples = getattr(task.splits(client), part)
    places = np.arange(len(examples)) if examples.rows is None else examples.rows.cpu().numpy()
    if task.behind is not None:
        return digest_rows(task.behind, client, key)[places]
    if isinstance(examples, CollatedExamples):  # made when they are wanted: told apart by their places alone
        start = "" if examples.rows is not None else part
        return tell_apart(keyed_digest(key, f"{start}{place}".encode()) for place in places)
    inputs, targets = examples[torch.arange(len(examples), device=examples.device)]
    columns = [_bytes_of(tensor) for tensor in (*tensors_of(inputs), targets)]
    return tell_apart(keyed_digest(key, b"".join(row)) for row in zip(*columns, strict=True))


def _bytes_of(tensor: Tensor) -> list[bytes]:
    values: NDArray[np.generic] = tensor.detach().cpu().numpy()
    return [row.tobytes() for row in values.reshape(len(values), -1)]
