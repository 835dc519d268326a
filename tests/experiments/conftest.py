"""The processes of a comparison start at once: they are forked from one that has imported PyTorch."""

import os
from multiprocessing.context import ForkServerContext
from types import SimpleNamespace
from typing import Any

import pytest

from fairbloom.experiments.studies import pool
from tests.commands import STARTED


class BeginWorker:
    """Prepares a worker as `begin_worker` does, in the environment of the process that starts it."""

    def __call__(self, *arguments: Any) -> None:
        pool.begin_worker(*arguments)

    def __getstate__(self) -> dict[str, str]:
        return dict(os.environ)

    def __setstate__(self, environment: dict[str, str]) -> None:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture(autouse=True)
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_context(method: str) -> ForkServerContext:
        return STARTED

    def executor(*arguments: Any, initializer: Any, **options: Any) -> pool.ProcessPoolExecutor:
        return started(*arguments, initializer=BeginWorker(), **options)

    started = pool.ProcessPoolExecutor
    monkeypatch.setattr(pool, "multiprocessing", SimpleNamespace(get_context=get_context))
    monkeypatch.setattr(pool, "ProcessPoolExecutor", executor)
