"""Make a process end with the process that started it.

`python -m fairbloom.system.parents PARENT MODULE WORDS…` runs `python -m MODULE WORDS…` so.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

PARENT_POLL_SECONDS = 0.5


def end_with_parent(parent: int) -> None:
    """Kill this process when its parent ends: by the kernel on Linux, otherwise by a thread.

    The parent passes its process id, because it may end before this process can ask for the id.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True, name="watch-parent").start()
    if os.getppid() != parent:  # the parent ended before the lines above
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
