"""The ClientApp, where Flower looks for it; see serverapp.py for the reason."""

import fairbloom  # noqa: F401 (waits until the package knows where its parts are)
from fairbloom.client import app as module

app = module.app  # Flower looks for an assignment
