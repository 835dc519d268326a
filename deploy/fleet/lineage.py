"""Whether a client's calls come from one process after another, or from two machines at once."""

from collections import deque
from enum import Enum, auto

# How many of the processes that called before, and of those that wait, are known.
KNOWN = 8

# Random bytes that distinguish the processes of a client.
PROCESS_BYTES = 8


class Verdict(Enum):
    """What a call says of its client, and whether it is admitted."""

    USUAL = auto()  # admitted: by the process that called before, or by one started after it
    COPIED = auto()  # admitted, though another process has the same key and state folder
    WAITS = auto()  # not admitted while the other process is online


class Lineage:
    """The processes that have called with one state folder, as far as their order matters.

    A lock keeps a state folder to one process, and each start raises a number in the folder. So
    where a process follows another one, its number is higher, and the other one does not call
    again. Otherwise two machines have copies of the folder, or a backup was restored. Then the
    process that called first goes on, and the other waits.
    """

    def __init__(self) -> None:
        self._current = b""
        self._number = 0
        self._before = deque[bytes](maxlen=KNOWN)
        self._waiting = deque[bytes](maxlen=KNOWN)

    def judge(self, process: bytes, number: int, *, online: bool) -> Verdict:
        """Return what a call by a process, which is b"" if it is unknown, says of its client.

        `number` is that of the process's start, and `online` whether the process that called last
        still is.
        """
        if process in (b"", self._current):
            return Verdict.USUAL
        if process in self._before:  # another process took its place, and it still runs
            self._before.remove(process)
            self._waiting.append(self._current)
            self._current = process
            self._number = number
            return Verdict.COPIED
        is_next = not self._current or number > self._number
        if online and (process in self._waiting or not is_next):
            if process not in self._waiting:
                self._waiting.append(process)
            return Verdict.WAITS
        if self._current:
            self._before.append(self._current)
        self._current = process
        self._number = number
        return Verdict.USUAL if is_next else Verdict.COPIED
