"""Who calls the ClientApp for a message: this process, which keeps it warm, or a forked child for each."""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any, Protocol

from flwr.app import Context, Message
from flwr.supercore.exit import add_exit_handler

from fairbloom.errors import ReportableError, is_expected, reportable
from fairbloom.flower import identify
from fairbloom.system.parents import end_with_parent
from fairbloom.system.supervise import exit_reason

from ...device.bundles import BundleRefusedError, Bundles
from ...device.work import DroppedError, Work

PRELOADED = ("numpy", "torch")
"""Libraries that are loaded before the node connects. Never the app's own modules, which would win over a bundle's."""

SHARED = (
    "fairbloom.deploy.flower.device.answers",
    "flwr.clientapp.utils",
    "flwr.cli.install",
    "torch._dynamo",
    "sklearn.datasets",
    *PRELOADED,
)
"""Libraries that the fork server loads for all its children. Nothing here starts CUDA."""

log = logging.getLogger("flwr")


class CrashedError(Exception):
    """The process that answered a message ended without a reply."""


class AppError(ReportableError):
    """What the app raised, in words: the exception itself may not travel, or would end this process."""


class Answer(Protocol):
    """Calls the ClientApp for one message; returns its reply and the context after it."""

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message."""


class Droppable:
    """Lets another Answer work on a message until it is dropped; then the reply is an error that says why."""

    def __init__(self, answer: Answer, work: Work) -> None:
        self._answer, self._work = answer, work

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message, or raise AppError."""
        try:
            with self._work.on(f"{run.run_id}/{message.metadata.message_id}"):
                return self._answer(fab, run, task_id, message, context)
        except DroppedError as dropped:
            words = f"the client has dropped this work: {dropped}"
            raise AppError(words, words) from None


class Resident:
    """Calls the app in this process and keeps it loaded; `bundles` says which app, with which settings."""

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._ending = threading.Event()
        add_exit_handler(self._ending.set)
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message; what the app changes of its context is lost where it raises."""
        identify(run_id=run.run_id, node_id=context.node_id, task_id=task_id)
        app, settings = self._bundles(fab, run, context)
        working = copy.deepcopy(context)
        working.run_config = settings
        reply = self._call(app, message, working)
        working.run_config = context.run_config
        return reply, working

    def _call(self, app: Any, message: Message, context: Context) -> Message:
        try:
            reply: Message = app(message=message, context=context)
        except SystemExit as end:
            if self._ending.is_set():  # SIGTERM in the midst of the app: the node's end, not the app's
                raise
            raise AppError(f"SystemExit: {end}", reportable(end)) from end
        return reply


class Isolated:
    """Answers each message in a forked child, for apps that may crash or leak.

    The fork server starts before Flower has threads, has the libraries loaded, and never touches CUDA: a child that
    uses a GPU makes its own context.
    """

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(SHARED))
        ours, theirs = self._context.Pipe()
        first = self._context.Process(target=_tell_parent, args=(theirs,))  # starts the fork server, now
        first.start()
        theirs.close()
        self._fork_server = int(ours.recv())
        ours.close()
        first.join()

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message; what the app raises is raised here, and a crash is a CrashedError, at once."""
        ours, theirs = self._context.Pipe()
        child = self._context.Process(target=_answer_in_child, args=(theirs, self._bundles, self._fork_server))
        child.start()
        theirs.close()
        try:
            ours.send((fab, run, task_id, message, context))
            outcome = ours.recv()
            child.join(timeout=5.0)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            child.join()
            raise CrashedError(
                f"the client app's process ended without a reply: {exit_reason(child.exitcode or 0)}"
            ) from None
        finally:
            ours.close()
            child.kill()
        if isinstance(outcome, Exception):
            raise outcome
        reply, changed = outcome
        return reply, changed


def _tell_parent(pipe: Connection) -> None:
    pipe.send(os.getppid())


def _answer_in_child(pipe: Connection, bundles: Bundles, fork_server: int) -> None:
    end_with_parent(fork_server)
    outcome: Any
    try:
        import numpy as np

        np.random.seed()  # children of one fork server share its state
        outcome = Resident(bundles)(*pipe.recv())
    except BundleRefusedError as error:
        outcome = error
    except BaseException as error:
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        outcome = AppError(f"{type(error).__name__}: {error}", reportable(error))
    pipe.send(outcome)
