"""The command `fairbloom tune`."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from fairbloom.command import errors
from fairbloom.protocol.settings import SettingsError, Value
from fairbloom.server.settings import Settings, check_used
from fairbloom.simulation.tune import tune as measure

from ..options import merge_settings
from ..recipes.variants import settings_of_method
from ..views import progress
from ..views.lists import show_tuned
from .options import (
    ClientsOption,
    DataOption,
    DeviceOption,
    FractionOption,
    JsonOption,
    MethodOption,
    ModelOption,
    PartitionOption,
    SetOption,
    TaskOption,
    settings_of,
)


def tune(
    task: TaskOption = None,
    data_dir: DataOption = None,
    method: MethodOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    partition: PartitionOption = None,
    fraction: FractionOption = None,
    device: DeviceOption = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="How long each engine is measured, for at least three rounds.")
    ] = 3.0,
    ray: Annotated[bool, typer.Option("--ray", help="Measure Ray too, which takes ten seconds to start.")] = False,
    settings: SetOption = [],  # noqa: B006 (typer reads it, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Measure the speed of each engine on this machine, and recommend one.

    Each engine trains a few rounds on the task's data. Nothing is written.
    """
    options: dict[str, Value | None] = {"task": task, "data-dir": data_dir, "model": model}
    options |= {"clients": clients, "partition": partition, "fraction": fraction, "device": device}
    config = merge_settings(options, settings_of(settings))
    config = merge_settings(settings_of_method(method, config), config)
    if "engine" in config:
        raise SettingsError(f"engine = {config['engine']!r}: fairbloom tune measures all engines: leave it out")
    chosen = Settings.of(config)
    check_used(config, [chosen.method], chosen.task)
    with progress.quiet_log(), errors.status("measuring rounds"):
        tuned = measure(chosen, ("loop", "stacked", "workers", *(("ray",) if ray else ())), seconds)
    if as_json:
        engines = [{**asdict(timing), "times_as_fast_as_loop": tuned.speed(timing)} for timing in tuned.timings]
        print(json.dumps({"engines": engines, "auto": asdict(tuned.auto), "set": tuned.better or "auto"}, indent=2))
    else:
        show_tuned(tuned)
