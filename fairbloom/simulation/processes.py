"""Forked processes that answer through a pipe and end silently when this process ends."""

import contextlib
import gc
import mmap
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from fairbloom.errors import FairbloomError
from fairbloom.system.parents import end_with_parent
from fairbloom.system.supervise import hold_signals

# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD: it keeps memory that PyTorch frees for its next
# step, as the process computes nothing else. Otherwise it returns it to the system, and takes it
# page by page again: up to a fifth of a step.
FREED_IS_KEPT = {-3: 1 << 25, -1: 1 << 30}


def can_fork() -> bool:
    """Return whether forked processes can compute here: macOS's own libraries do not survive it."""
    return hasattr(os, "fork") and sys.platform != "darwin"


def shared_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that this process shares with its forks; unused parts are free."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        memory = mmap.mmap(-1, max(1, size))  # not in /dev/shm, which is small in containers
    except (OSError, OverflowError) as error:
        raise FairbloomError(
            f"engine = 'workers': its processes share {size / 1e9:.1f} GB for the models of a"
            " round, more than this machine gives: lower fraction, so that fewer clients train at"
            " a time"
        ) from error
    return np.ndarray(shape, dtype, buffer=memory)


class Forked:
    """A fork of this process that runs `serve` with its end of a pipe.

    `others` were forked earlier: this process closes its copies of their pipes, so that they notice
    when their parent ends.
    """

    def __init__(self, serve: Callable[[Connection], None], others: Iterable["Forked"]) -> None:
        self.pipe, end = Pipe()
        for stream in (sys.stdout, sys.stderr):  # buffered text would be written twice
            stream.flush()
        parent = os.getpid()
        # Ctrl-C goes to all processes of a terminal: hold it until the new process ignores it.
        with contextlib.closing(end), hold_signals(signal.SIGINT, signal.SIGTERM) as before:
            self.pid = _fork()
            if self.pid == 0:
                _live(serve, end, [self.pipe, *(other.pipe for other in others)], parent, before)

    def end(self) -> str:
        """End the process, if it has not ended; return how it ended, as text."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored here, so the system has collected the status
            return "in an unknown way"
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            return "SIGKILL, as when memory runs short"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def can_train_in_fork() -> bool:
    """Return whether a fork of this process computes gradients.

    It does not if autograd has begun its threads for a card, as any earlier training does on a
    machine with one, wherever it computed.
    """

    def serve(pipe: Connection) -> None:
        with contextlib.suppress(RuntimeError):
            torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]
            pipe.send(True)

    process = Forked(serve, ())
    try:
        return bool(process.pipe.recv())
    except EOFError:
        return False
    finally:
        process.end()


def _fork() -> int:
    # Python warns if there are other threads, which do not exist in the fork: it needs none.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        try:
            return os.fork()
        except OSError as error:
            raise FairbloomError(
                f"engine = 'workers': the system starts no more processes ({error.strerror}): set"
                " engine = loop, or free memory and processes"
            ) from error


def _live(
    serve: Callable[[Connection], None],
    pipe: Connection,
    inherited: Iterable[Connection],
    parent: int,
    mask: Iterable[int],
) -> NoReturn:
    """Serve until the pipe ends, and exit without the parent's exit handlers."""
    status = 1
    try:
        for each in inherited:
            each.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        end_with_parent(parent)
        # If memory runs short, the kernel must kill this process rather than its parent.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500")  # of 1000
        gc.freeze()  # a garbage collection would write to shared pages, and so copy them
        serve(pipe)
        status = 0
    except (EOFError, ConnectionError):
        status = 0  # the parent has ended
    except SystemExit as error:
        if isinstance(error.code, int):
            status = error.code
    except BaseException:
        traceback.print_exc()  # a bug
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
