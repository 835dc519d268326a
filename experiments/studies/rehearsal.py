"""A study's results are rehearsed: measured and shown of runs of one round, before the runs that take hours."""

import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import FairbloomError
from fairbloom.protocol.settings import SettingsError
from fairbloom.server.run_folder.errors import RunFolderError

from .on_ray import OnRay
from .pool import Workers, is_done
from .study import Study

Failures = Mapping[Path, str]
"""Why runs failed, by their folders."""

SHORT_ROUNDS = 5
"""Studies of runs with at most so many rounds are not rehearsed: that would take about as long as they do."""


def rehearse(jobs: int | OnRay, study: Study, try_results: Callable[[Study, Failures], object]) -> None:
    """Run one candidate of each row for one round with the first seed on this machine, and try to show the results.

    Nothing of it stays. `try_results` takes the shortened study and why its runs failed.

    Raises FairbloomError where results could not be measured or shown. Runs that fail are the training's to report, as
    are scores that clients lack after one round.
    """
    if not any(run.num_rounds > SHORT_ROUNDS and not is_done(run) for run in study.first_runs().values()):
        return
    with tempfile.TemporaryDirectory(prefix="fairbloom-") as scratch:
        one_each = replace(study, rows=[row[:1] for row in study.rows], seeds=study.seeds[:1], out=Path(scratch))
        short = one_each.with_settings({"num-rounds": 1})
        try:
            with Workers(1 if isinstance(jobs, OnRay) else jobs, logging.CRITICAL) as here:
                here.run(short.first_runs())
            try_results(short, here.failures)
        except (SettingsError, RunFolderError):  # a setting that takes more rounds, or a score that is not there yet
            return
        except FairbloomError:
            raise
        except Exception as error:  # a mistake of this program, found in seconds rather than hours
            raise FairbloomError(
                f"the results of this study could not be shown ({type(error).__name__}: {error}), so nothing was "
                "trained: please report it"
            ) from error
