"""MLflow: each run is one run of an experiment, in a store next to the run folders or at MLFLOW_TRACKING_URI."""

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from fairbloom.system.lock import exclusive_lock

from .tracker import TrackedRun

STORE = "mlflow"
"""The folder, next to the run folders, of the embedded store: a database and the attached files."""

MOST_AT_ONCE = 1000
"""The most metrics that MLflow takes in one call."""

MOST_PARAMETERS = 100

LONGEST_TEXT = 5000


class MlflowTracker:
    """Shows a run as a run of MLflow; a continued run goes on in the same one."""

    def __init__(self, run: TrackedRun) -> None:
        # MLflow waits minutes for a server by default.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        for name in ("mlflow", "alembic"):  # which say how they make their tables
            logging.getLogger(name).setLevel(logging.WARNING)
        self._waiting: list[Metric] = []
        self._written = time.monotonic()
        uri, store = os.environ.get("MLFLOW_TRACKING_URI"), run.folder.parent / STORE
        if uri:
            self._begin(run, uri, None)
            return
        store.mkdir(parents=True, exist_ok=True)
        # Several runs of a comparison begin at once, and MLflow cannot make its tables in two processes at a time.
        with exclusive_lock(store / ".lock", seconds=60.0):
            self._begin(run, f"sqlite:///{store / 'mlflow.db'}", (store / "artifacts").as_uri())

    def _begin(self, run: TrackedRun, uri: str, artifacts: str | None) -> None:
        """Continue the run in a store, or make it there; `artifacts` is where attached files lie, None by default."""
        self._client = MlflowClient(tracking_uri=uri)
        self._id, self._last = self._continue(run) or (self._create(run, artifacts), 0)

    def _continue(self, run: TrackedRun) -> tuple[str, int] | None:
        """Return the id of this run at MLflow and the last round that it has, None where it is not there yet."""
        run_id = run.read_id(STORE)
        if run_id is None:
            return None
        try:
            there = self._client.get_run(run_id).data
        except MlflowException:  # another store than before
            return None
        self._client.update_run(run_id, status="RUNNING")
        for key, value in run.settings.items():  # a parameter cannot be changed there, as when a run is extended
            if there.params.get(_safe(key)) != _text(value):
                self._client.set_tag(run_id, _safe(key), _text(value))
        seconds = self._client.get_metric_history(run_id, "round/seconds")
        return run_id, max((metric.step for metric in seconds), default=0)

    def _create(self, run: TrackedRun, artifacts: str | None) -> str:
        experiment = self._find_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.experiment, artifacts)
        created = self._client.create_run(experiment, run_name=run.name, tags={"run-folder": str(run.folder)})
        run_id: str = created.info.run_id
        parameters = [Param(_safe(key), _text(value)) for key, value in run.settings.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(run_id, params=parameters[first : first + MOST_PARAMETERS])
        run.write_id(STORE, run_id)
        return run_id

    def _find_experiment(self, name: str, artifacts: str | None) -> str:
        """Return the id of the experiment of this name, which another process may be making meanwhile."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                created: str = self._client.create_experiment(name, artifact_location=artifacts)
                return created
            except MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        experiment_id: str = found.experiment_id
        return experiment_id

    def log(self, number: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a round; one that was run again has the same ones, and is not added twice."""
        if number <= self._last:
            return
        now = int(time.time() * 1000)
        self._waiting += [Metric(_safe(name), value, now, number) for name, value in metrics.items()]
        if time.monotonic() - self._written >= 1.0:  # rounds of one second are written together
            self._write()

    def end(self, files: Sequence[Path], *, finished: bool) -> None:
        """Attach these files, and end."""
        self._write()
        for path in files if finished else ():
            self._client.log_artifact(self._id, str(path))
        self._client.log_batch(self._id, tags=[RunTag("state", "finished" if finished else "interrupted")])
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _write(self) -> None:
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:MOST_AT_ONCE])
            del self._waiting[:MOST_AT_ONCE]
        self._written = time.monotonic()


def _text(value: object) -> str:
    """Return a setting as MLflow takes it: a long list of clients is cut off."""
    return str(value)[:LONGEST_TEXT]


def _safe(name: str) -> str:
    """Return a name as MLflow takes it: other characters than letters, digits and a few signs become underscores."""
    return re.sub(r"[^\w\-./ ]", "_", name)
