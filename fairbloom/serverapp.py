"""The ServerApp, where Flower looks for it.

Flower's simulation looks for both apps at once, in two threads. Python does not wait for a package
that another thread is still importing when it looks for `fairbloom.server.app`, and would not find
it; for this module, and by the first import here, it does.
"""

import fairbloom  # noqa: F401 (waits until the package knows where its parts are)
from fairbloom.server import app as module

app = module.app  # Flower looks for an assignment
