"""A SuperNode that keeps its ClientApp warm: the one file that replaces names inside Flower.

Flower starts a new Python process for every message and waits in polls of 3 seconds. Here the app stays in the
SuperNode's own process, or, isolated, each message is answered by a child of a fork server that has the libraries
loaded; and a node that is busy asks for work often. Everything else is Flower's: connection, keys, heartbeat, transfer.

Started by `fairbloom client`, with `[--isolated] [--any-bundle] -- FLOWER_SUPERNODE_ARGUMENTS`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from zipfile import ZipFile

if TYPE_CHECKING:
    from flwr.app import Context, Message

LOOP = "flwr.supernode.start_client_internal"
OBJECTS = "flwr.supercore.inflatable.inflatable_utils"
STATE = "flwr.supernode.nodestate.in_memory_nodestate"

REPLACED: Mapping[str, Iterable[str]] = {
    f"{LOOP}:_push_messages": ("state", "object_store", "send", "push_object"),
    f"{LOOP}:time.sleep": (),
    f"{LOOP}:make_simple_grpc_retry_invoker": (),
    f"{OBJECTS}:pull_objects": ("initial_backoff",),
    f"{OBJECTS}:pull_and_inflate_object_from_tree": ("initial_backoff",),
}
USED: Mapping[str, Iterable[str]] = {
    f"{LOOP}:_insert_message": ("msg", "state", "store"),
    f"{OBJECTS}:inflate_object_from_contents": ("object_id", "object_contents"),
    f"{OBJECTS}:ObjectPushError": (),
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": ("tree",),
    "flwr.clientapp.utils:get_load_client_app_fn": ("default_app_ref", "app_path", "multi_app"),
    "flwr.cli.install:install_from_fab": ("fab_file", "skip_prompt"),
    "flwr.common.config:get_project_dir": ("fab_id", "fab_version", "fab_hash"),
    "flwr.supercore.exit:add_exit_handler": ("exit_handler",),
    "flwr.supercore.task_identity:TaskIdentity": (),
    f"{STATE}:InMemoryNodeState.get_messages": ("is_reply",),
    f"{STATE}:InMemoryNodeState.delete_messages": ("message_ids",),
    f"{STATE}:InMemoryNodeState.get_tasks": ("statuses",),
    f"{STATE}:InMemoryNodeState.finish_task": ("task_id", "sub_status", "details"),
    f"{STATE}:InMemoryNodeState.get_run": ("run_id",),
    f"{STATE}:InMemoryNodeState.get_fab": ("fab_hash",),
    f"{STATE}:InMemoryNodeState.get_run_series_context": ("series_id",),
    f"{STATE}:InMemoryNodeState.set_run_series_context": ("series_id", "context"),
    f"{STATE}:InMemoryNodeState.record_message_processing_start": ("message_id",),
    f"{STATE}:InMemoryNodeState.record_message_processing_end": ("message_id",),
    "flwr.supercore.object_store.object_store:ObjectStore.get_object_tree": ("object_id",),
    "flwr.supercore.object_store.object_store:ObjectStore.delete": ("object_id",),
    "flwr.supernode.cli.flower_supernode:flower_supernode": (),
}
"""Names inside Flower, as module:attribute, with the parameters that are relied on."""

BACKOFF_SECONDS = 0.05
"""First wait for an object that is announced and not there yet; Flower's is 1 s, and doubles."""

SHORTEST_SECONDS, LONGEST_SECONDS = 0.1, 1.0
"""Between two questions for work."""

PRELOADED = ("numpy", "torch")
"""Before the node connects. Never the app's own modules, which would win over the bundle's."""

SHARED = ("deploy.warm", "flwr.clientapp.utils", "flwr.cli.install", "torch._dynamo", "sklearn.datasets", *PRELOADED)
"""By the fork server, for all its children. Nothing here starts CUDA."""

SERVER_SIDE = (("server",), ("strategies",), (".info",))
DATA = ("", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
"""What of a bundle a client never imports: top-level folders, and endings of names."""

OWN_PLACES = ("state-dir", "data-dir")
"""Settings of a run that this device's operator overrides by the node config: they are about its own disk."""

log = logging.getLogger("flwr")


class BundleRefusedError(Exception):
    """An app bundle with other code than is installed here."""


class CrashedError(Exception):
    """The process that answered a message ended without a reply."""


class AppError(Exception):
    """What the app raised, in words: the exception itself may not travel, or would end this process."""


class Answer(Protocol):
    """Calls a bundle's ClientApp; returns its reply and the context after it."""

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message."""


# The app in this process --------------------------------------------------------------------------------------------


class Resident:
    """Calls the app in this process and keeps it loaded until another bundle comes.

    Parameters
    ----------
    any_bundle
        Whether to run whatever bundle the server sends; else only code that is installed here.
    """

    def __init__(self, *, any_bundle: bool = False) -> None:
        from flwr.supercore.exit import add_exit_handler

        self._any_bundle = any_bundle
        self._loaded: tuple[str, Path, Any] | None = None
        self._ending = threading.Event()
        add_exit_handler(self._ending.set)
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message; what the app changes of its context is lost where it raises."""
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, context.node_id, task_id
        own = {key: value for key, value in context.node_config.items() if key in OWN_PLACES}
        working = copy.deepcopy(context)
        working.run_config = {**context.run_config, **own}
        reply = self._call(self._app(fab, run), message, working)
        working.run_config = context.run_config
        return reply, working

    def _call(self, app: Any, message: Message, context: Context) -> Message:
        try:
            reply: Message = app(message=message, context=context)
        except SystemExit as end:
            if self._ending.is_set():  # SIGTERM in the midst of the app: the node's end, not the app's
                raise
            raise AppError(f"SystemExit: {end}") from end
        return reply

    def _app(self, fab: Any, run: Any) -> Any:
        if self._loaded is None or self._loaded[0] != fab.hash_str:
            from flwr.cli.install import install_from_fab
            from flwr.clientapp.utils import get_load_client_app_fn
            from flwr.common.config import get_project_dir

            if not self._any_bundle:
                check_bundle(fab.content)
            if self._loaded is not None:
                _, folder, _ = self._loaded
                self._loaded = None
                forget(folder)
            install_from_fab(fab.content, skip_prompt=True)
            folder = get_project_dir(run.fab_id, run.fab_version, fab.hash_str)
            app = get_load_client_app_fn("", None, multi_app=True)(run.fab_id, run.fab_version, fab.hash_str)
            self._loaded = (fab.hash_str, folder, app)
        return self._loaded[2]


def forget(folder: Path) -> None:
    """Drop what was imported from a bundle that is replaced: Flower would go on with it."""
    inside = str(folder) + os.sep
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(inside):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != str(folder)]
    importlib.invalidate_caches()
    gc.collect()  # models and data of the old bundle, before the new one loads its own


def check_bundle(content: bytes) -> None:
    """Raise BundleRefusedError unless all code of a bundle that a client could import is installed here, to the byte.

    Whoever reaches the SuperLink's control API can submit a bundle. This keeps its code off the device, modules that
    would hide a library included. Server-side packages are free: nothing that runs here imports them.
    """
    installed = Path(__file__).parents[1]
    with ZipFile(BytesIO(content)) as bundle:
        for entry in bundle.infolist():
            path = PurePosixPath(entry.filename)
            plain = not path.is_absolute() and ".." not in path.parts
            if plain and (path.parts[:1] in SERVER_SIDE or path.suffix in DATA or entry.is_dir()):
                continue
            here = installed / path
            if not (plain and here.is_file() and here.read_bytes() == bundle.read(entry)):
                raise BundleRefusedError(
                    f"the bundle's {entry.filename} is not what is installed on this client: install the server's "
                    'version there, or let the client run any bundle (bundles = "any")'
                )


# The app in a child a message ---------------------------------------------------------------------------------------


class Isolated:
    """Answers each message in a forked child, for apps that may crash or leak.

    The fork server starts before Flower has threads, has the libraries loaded, and never touches CUDA: a child that
    uses a GPU makes its own context.

    Parameters
    ----------
    any_bundle
        As of Resident.
    """

    def __init__(self, *, any_bundle: bool = False) -> None:
        self._any_bundle = any_bundle
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(SHARED))
        first = self._context.Process(target=int)  # starts the fork server, now
        first.start()
        first.join()

    def __call__(self, fab: Any, run: Any, task_id: int, message: Message, context: Context) -> tuple[Message, Context]:
        """Answer one message; what the app raises is raised here, and a crash is a CrashedError, at once."""
        ours, theirs = self._context.Pipe()
        child = self._context.Process(target=_answer_in_child, args=(theirs, self._any_bundle))
        child.start()
        theirs.close()
        try:
            ours.send((fab, run, task_id, message, context))
            outcome = ours.recv()
            child.join(timeout=5.0)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            child.join()
            raise CrashedError(f"the client app's process ended without a reply: {_ending(child.exitcode)}") from None
        finally:
            ours.close()
            child.kill()
        if isinstance(outcome, Exception):
            raise outcome
        reply, changed = outcome
        return reply, changed


def _answer_in_child(pipe: Connection, any_bundle: bool) -> None:
    _end_with(os.getppid())
    outcome: Any
    try:
        import numpy as np

        np.random.seed()  # children of one fork server share its state
        outcome = Resident(any_bundle=any_bundle)(*pipe.recv())
    except BundleRefusedError as error:
        outcome = error
    except BaseException as error:
        log.exception("the client app raised")
        outcome = AppError(f"{type(error).__name__}: {error}")
    pipe.send(outcome)


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"


# In Flower's loop ---------------------------------------------------------------------------------------------------


class Pace:
    """How long a node waits before it asks for work again: a tenth of the time it has been idle.

    Busy nodes answer within hundredths of a second; the polls of a node that waits for hours cost next to nothing.
    """

    def __init__(self) -> None:
        self._idle_since = time.monotonic()

    def worked(self) -> None:
        """Note that a message was answered just now."""
        self._idle_since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, at most `seconds`."""
        tenth = (time.monotonic() - self._idle_since) / 10
        time.sleep(min(seconds, LONGEST_SECONDS, max(SHORTEST_SECONDS, tenth)))


def keep_warm(answer: Answer) -> None:
    """Let Flower's loop answer messages by `answer`, in this process, and wait less."""
    loop, objects = importlib.import_module(LOOP), importlib.import_module(OBJECTS)
    pace, push = Pace(), loop._push_messages

    def answer_and_push(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        def push_part(*part: Any) -> None:
            # Refused where the SuperLink has it already and only the receipt was lost: Flower then gives up the reply.
            with contextlib.suppress(objects.ObjectPushError):
                push_object(*part)

        answer_next(state, object_store, answer)
        push(state=state, object_store=object_store, send=send, push_object=push_part)
        pace.worked()

    make_invoker = loop.make_simple_grpc_retry_invoker
    loop.make_simple_grpc_retry_invoker = lambda: patient(make_invoker())  # type: ignore[attr-defined]
    loop._push_messages = answer_and_push  # type: ignore[attr-defined]
    loop.time = SimpleNamespace(sleep=pace.sleep)  # type: ignore[attr-defined]
    for function in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        function.__kwdefaults__["initial_backoff"] = BACKOFF_SECONDS


def patient(invoker: Any) -> Any:
    """Let a call be tried again as well when the SuperLink had a fault of its own, as when its database is busy.

    Flower gives up then: the message, the reply or the node's heartbeat is lost.
    """
    from grpc import StatusCode

    gives_up = invoker.should_giveup
    invoker.should_giveup = lambda error: error.code() != StatusCode.INTERNAL and gives_up(error)
    return invoker


def answer_next(state: Any, store: Any, answer: Answer) -> None:
    """Take the message that came, let it be answered, and lay the reply and the context where Flower looks for them."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    received = [message.metadata.message_id for message in state.get_messages(is_reply=False)]
    if not received:  # Flower itself has answered, because it trusts the bundle's signature not
        return
    *torn, message_id = received
    state.delete_messages(message_ids=torn)  # of runs that ended while their message came: Flower leaves them behind
    for left in torn:
        store.delete(left)
    tree = store.get_object_tree(message_id)
    contents = {part.object_id: store.get(part.object_id) for part in iterate_object_tree(tree)}
    message: Any = inflate_object_from_contents(message_id, contents)
    message.metadata.__dict__["_message_id"] = message_id
    store.delete(message_id)
    run = state.get_run(message.metadata.run_id)
    state.record_message_processing_start(message_id)
    task_id = _drop_tasks(state)
    reply, context = _answered(answer, state, run, task_id, message)
    state.record_message_processing_end(message_id)
    importlib.import_module(LOOP)._insert_message(reply, state, store)
    if context is not None:
        state.set_run_series_context(run.series_id, context)


def _answered(answer: Answer, state: Any, run: Any, task_id: int, message: Message) -> tuple[Message, Context | None]:
    from flwr.app import Message
    from flwr.app.error import Error
    from flwr.common.constant import ErrorCode
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, state.get_node_id(), task_id
    context = state.get_run_series_context(run.series_id)
    try:
        return answer(state.get_fab(run.fab_hash), run, task_id, message, context)
    except BundleRefusedError as error:
        code, reason = ErrorCode.INVALID_FAB, str(error)
    except CrashedError as error:
        code, reason = ErrorCode.CLIENT_APP_CRASHED, str(error)
    except AppError as error:
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)
    except Exception as error:  # one message's failure is one error reply
        log.exception("the client app raised")
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"
    log.error("answered with error %d: %s", code, reason)
    return Message(Error(code, reason), reply_to=message), None


def _drop_tasks(state: Any) -> int:
    """Take the message's task off the node's list, which is for processes beside it, and return its id."""
    from flwr.common.constant import Status, SubStatus

    task_id = 0
    for task in state.get_tasks(statuses=[Status.PENDING]):
        task_id = int(task.task_id)
        state.finish_task(task_id, SubStatus.STOPPED, "answered in the SuperNode's process")
        getattr(state, "task_store", {}).pop(task_id, None)  # it would grow by one a message
    return task_id


# Start --------------------------------------------------------------------------------------------------------------


def missing_names(names: Mapping[str, Iterable[str]] = {**REPLACED, **USED}) -> list[str]:
    """Return which of Flower's names are not what this file relies on; none in the version that is pinned."""
    return [f"{name}({', '.join(parameters)})" for name, parameters in names.items() if not _is_there(name, parameters)]


def _is_there(name: str, parameters: Iterable[str]) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
        return set(parameters) <= set(inspect.signature(found).parameters) if parameters else callable(found)
    except (ImportError, AttributeError, ValueError):
        return False


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, killed or not: nobody would stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


class Remedies(logging.Handler):
    """Says, under Flower's own words, what would help."""

    SAID: Mapping[str, str] = {
        "[code: 2004]": "the SuperLink does not admit this key. It is not registered (fairbloom deploy enroll), or was "
        "revoked (enroll the client anew), or a node with it is connected already: one that was killed counts as "
        "connected for a minute",
        "UNAUTHENTICATED": "the SuperLink refuses this node's signature: the key was revoked, or this device's clock "
        "is more than 5 s ahead or 5 min behind (timedatectl)",
    }

    def emit(self, record: logging.LogRecord) -> None:
        """Print the remedy of a known fault."""
        message = record.getMessage()
        for sign, remedy in self.SAID.items():
            if sign in message:
                print(f"fairbloom client: {remedy}", file=sys.stderr, flush=True)


def main() -> None:
    """Run a SuperNode, warm where this version of Flower allows."""
    parser = argparse.ArgumentParser(prog="deploy.warm")
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--any-bundle", action="store_true")
    parser.add_argument("supernode", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    _end_with(os.getppid())
    arguments = [word for word in chosen.supernode if word != "--"]
    missing = missing_names()
    if missing:
        print(
            f"fairbloom client: this version of Flower has no {'; '.join(missing)}: going on in Flower's own way, with "
            "a new process a message and its own waits; install the pinned version for rounds of less than a second",
            file=sys.stderr,
            flush=True,
        )
    else:
        answer = (Isolated if chosen.isolated else Resident)(any_bundle=chosen.any_bundle)
        keep_warm(answer)
        arguments += ["--isolation", "process"]  # no app processes of Flower's beside ours
    from flwr.supernode.cli.flower_supernode import flower_supernode

    logging.getLogger("flwr").addHandler(Remedies())
    sys.argv = ["flower-supernode", *arguments]
    try:
        flower_supernode()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else 1)
    leave(1)  # Flower's loop ends only by a fault, which it has logged


def leave(code: int) -> NoReturn:
    """End this process at once: Flower's server of the node's own API would go on without the loop."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
