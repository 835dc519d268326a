"""What a run may set of a client's work: a short list, without paths or code.

A deployed client takes these settings of a run and drops the rest, which concern the server alone. In process and
under `flwr run` a client sees all of them.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

WORK: Mapping[str, type] = {
    "task": str,
    "model": str,
    "clients": int,
    "partition": str,
    "shards-per-client": int,
    "dirichlet-alpha": float,
    "rotated-clients": int,
    "seed": int,
    "local-epochs": int,
    "batch-size": int,
    "learning-rate": float,
    "momentum": float,
    "weight-decay": float,
    "stragglers": float,
    "drop-stragglers": bool,
    "time-budget": float,
    "device": str,
}
"""Every setting that tasks/ and client/ read of a run, with its type."""

PLAIN = re.compile(r"[A-Za-z0-9_-]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?")
"""Words that are neither paths nor import strings: no colon, no separator, no dot at either end."""

DEVICE = re.compile(r"auto|cpu|mps|cuda(:[0-9]{1,3})?")

NOT_THE_RUNS = (
    *("state-dir", "data-dir", "out", "device", "log-format", "metrics-port"),
    *("enrolled-sizes", "max-growth", "loss-limit"),
)
"""Settings that may differ when a run is continued: it finds its personal models again."""

FINGERPRINT = "fingerprint"
"""Key under which a deployed client knows which run it is in, the dropped settings included."""


class SettingRefusedError(ValueError):
    """A setting of a run that this device does not allow; the message names it and its value."""


def taken(config: Mapping[str, Any], allow: Collection[str] = ()) -> dict[str, Any]:
    """Return what a device takes of a run's settings, and the run's fingerprint.

    Parameters
    ----------
    config
        All settings of the run.
    allow
        Values that the device's owner allows although they are no plain words, such as import strings.

    Raises
    ------
    SettingRefusedError
        When a setting that is taken has a value of another type, or one that is no plain word and not allowed.
    """
    chosen = {key: value for key, value in config.items() if key in WORK}
    for key, value in chosen.items():
        if not _fits(value, WORK[key]):
            raise SettingRefusedError(
                f"the run sets {key} = {shortened(value)}: it must be of type {WORK[key].__name__}"
            )
        if isinstance(value, str) and value not in allow:
            _check_word(key, value)
    return chosen | {FINGERPRINT: fingerprint(config)}


def fingerprint(config: Mapping[str, Any]) -> str:
    """Return eight letters that stand for all settings that make a run what it is."""
    about = {key: value for key, value in config.items() if key not in NOT_THE_RUNS}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]


def shortened(value: object) -> str:
    """Return a value as it is written, without its end where it is long."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"


def _fits(value: object, kind: type) -> bool:
    return type(value) is kind or (kind is float and type(value) is int)


def _check_word(key: str, value: str) -> None:
    if key == "device":
        if not DEVICE.fullmatch(value):
            raise SettingRefusedError(
                f"the run sets device = {shortened(value)}: auto, cpu, cuda, cuda:1 or mps would do"
            )
    elif not PLAIN.fullmatch(value):
        raise SettingRefusedError(
            f"the run sets {key} = {shortened(value)}, and this client allows no path and no import string there: the "
            "device's owner may allow this value (allow, in client.toml)"
        )
