"""A program that gets a signal before it looks for one; its number is the argument."""

import signal
import sys

from fairbloom.system.supervise import STOPPING, StopSignal

signal.raise_signal(int(sys.argv[1]))
stopped = StopSignal()
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOPPING)  # what it starts can be stopped
print("stopped in order" if stopped.came else "not stopped")
