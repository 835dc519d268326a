"""The ServerApp, where Flower looks for it.

Flower's simulation looks for both apps at once, in two threads. Python does not wait for a package
that another thread is still importing when it looks for `fairbloom.server.app`, and would not find
it; for this module, and by the first import here, it does. Then the lock has one app imported after
the other.
"""

from fairbloom.imports import IMPORTS

with IMPORTS:
    from fairbloom.server import app as module

app = module.app  # Flower looks for an assignment
