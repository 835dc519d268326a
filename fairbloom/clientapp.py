"""The ClientApp, where Flower looks for it; see serverapp.py for the reason."""

from fairbloom.imports import IMPORTS

with IMPORTS:
    from fairbloom.client import app as module

app = module.app  # Flower looks for an assignment
