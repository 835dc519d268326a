"""A program that receives a signal before it has a handler; the argument is the signal's number."""

import signal
import sys

from fairbloom.system.supervise import STOPPING, release_signals

came = list[int]()
signal.raise_signal(int(sys.argv[1]))
for each in STOPPING:
    signal.signal(each, lambda number, frame: came.append(number))
release_signals(*STOPPING)
# the processes that it starts can be stopped
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOPPING)
print("stopped in order" if came else "not stopped")
