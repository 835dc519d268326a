"""One run of a user's Flower app, in a process of its own."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import tomli_w

from fairbloom.errors import FairbloomError
from fairbloom.rounds.refusals import one_line
from fairbloom.server.run_folder.errors import RunFolderError, explain_write_errors
from fairbloom.server.run_folder.files import CONFIG, SCORES, is_run_folder
from fairbloom.server.run_folder.flower import collect_options, score_called
from fairbloom.strategies.named import format_value, parse_method, short_key
from fairbloom.system.supervise import exit_reason
from fairbloom.text import text_if

from ..apps import AppRun
from ..study import is_done

# The time between two looks at the run folder of an app.
POLL_SECONDS = 1.0


def run_app(run: AppRun) -> None:
    """Start an app with the run config of a run, and wait for its end.

    Its output goes into a file next to the run folder. Raise FairbloomError if it fails, or if the
    run folder is not that of this run; the app is ended as soon as that is known.
    """
    log = Path(f"{run.out}.log")
    with explain_write_errors("the output of the app", log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("wb")
    with output:
        process = subprocess.Popen(  # noqa: S603 (the user's own app)
            [sys.executable, "-m", "fairbloom.system.parents", str(os.getpid()), *_command_of(run)],
            cwd=run.app.folder,
            env=_environment(run),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        code = _wait(process, run)
    if not is_done(run):
        raise FairbloomError(f"{_why(run, code, log)}; all its output is in {log}")
    _check_recorded(run)


def _command_of(run: AppRun) -> list[str]:
    """Return the module that carries out a run, and its words."""
    if not run.app.flwr:
        return [run.app.package, *(f"{k}={format_value(v)}" for k, v in run.changed.items())]
    # a file, as words of Flower's cannot have quotation marks inside
    file = Path(f"{run.out}.toml")
    file.write_text(tomli_w.dumps(run.config))
    command = ["flwr.cli.app", "run", run.app.folder, "local", "--stream"]
    command += ["--run-config", str(file)]
    clients = run.config.get("clients")
    if isinstance(clients, int):
        command += ["--federation-config", f"num-supernodes={clients} client-resources-num-cpus=1"]
    return command


def _environment(run: AppRun) -> dict[str, str]:
    """Return the environment of an app's process."""
    if not run.app.flwr:
        # As runs of tasks, each has one processor core: the bits do not depend on --jobs.
        return {"OMP_NUM_THREADS": "1", **os.environ}
    # The app uses the installed packages, and Flower starts the commands of this Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", **os.environ, "PATH": path}


def _wait(process: subprocess.Popen[bytes], run: AppRun) -> int:
    """Return the exit code of an app; end it if its run folder is not that of the run."""
    with process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(POLL_SECONDS)
                _check_recorded(run)
        except BaseException:  # Ctrl-C, too
            process.kill()
            raise


def _why(run: AppRun, code: int, log: Path) -> str:
    """Return why an app has left no finished run."""
    last = log.read_text(errors="replace").strip().rpartition("\n")[2]
    if code:
        memory = " by the system, as when memory runs short: lower --jobs"
        killed = text_if(code == -signal.SIGKILL, memory)
        return f"{one_line(last)} ({exit_reason(code)}{killed})"
    return (
        f"the app has ended without a finished run of {run.num_rounds} rounds in {run.out}: correct"
        " an error in its output, or start the strategy by"
        ' RunFolder(context.run_config["out"]).start(…,'
        f' num_rounds=context.run_config["{run.app.rounds}"])'
    )


# What a run folder must record --------------------------------------------------------------------


def check_begun(run: AppRun) -> None:
    """Raise RunFolderError if a run cannot continue the run in its folder."""
    other = _find_other(run)
    if other:
        raise RunFolderError(
            f"{run.out} holds a run with {other}: choose another folder (--out), or delete this one"
        )


def _check_recorded(run: AppRun) -> None:
    """Raise FairbloomError if the app records another run; nothing may be recorded yet."""
    other = _find_other(run)
    if other:
        raise FairbloomError(
            f"the ServerApp trains with {other} as its run config says: make its strategy by"
            " from_config(context.run_config), and choose another folder (--out)"
        )
    if run.app.needs_validation and is_run_folder(Path(run.out)):
        _check_validation(Path(run.out))


def _find_other(run: AppRun) -> str:
    """Return in words the first other value that a run folder records: of method and seed.

    It is "" if all agree, also while no run has begun.
    """
    recorded = CONFIG.read(Path(run.out)).settings
    _, own = parse_method(run.method)
    expected = collect_options(run.strategy())
    for key in ("method", "seed", *map(short_key, own)) if recorded else ():
        if key in expected and recorded.get(key) != expected[key]:
            return f"{key} = {recorded.get(key)!r}, and not {expected[key]!r}"
    return ""


def _check_validation(folder: Path) -> None:
    """Raise FairbloomError if a run measures no score of validation examples like its own."""
    recorded = CONFIG.read(folder).settings
    scores = SCORES.read(folder)
    metric = str(recorded.get("validation-metric", ""))
    how = (
        "let its clients reply one of the same kind on examples that they do not train on, and name"
        " it, as in RunFolder(path, score='eval_acc', best_model='val_acc'), and search in another"
        " folder (--out)"
    )
    if not metric or metric in {score.name for score in scores}:
        raise FairbloomError(
            f"a search chooses by validation examples, and the app's {scores[0].name} is of test"
            f" examples: {how}"
        )
    higher = scores[0].higher_is_better
    with contextlib.suppress(FairbloomError):  # a name need not say which values are better
        higher = score_called(metric, str(recorded.get("loss", ""))).higher_is_better
    if higher != scores[0].higher_is_better:
        raise FairbloomError(
            f"best_model = {metric!r} is of another kind than {scores[0].name}, the score of the"
            f" search: {how}"
        )
