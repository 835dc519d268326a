"""Environment variables of Flower's programs."""

HOME = "FLWR_HOME"
"""The folder of Flower's own files: what is unpacked, and the operator's connection and credential."""

LOG_LEVEL = "FLWR_LOG_LEVEL"

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower's programs talk to nobody but the federation."""
