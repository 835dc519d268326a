"""A whole run in this process."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from fairbloom.client.capture import NO_CAPTURE
from fairbloom.client.device import choose_device, computing_in
from fairbloom.logs import log
from fairbloom.protocol.scores import LOSS_SCORE
from fairbloom.protocol.settings import RunSettings, SettingsError
from fairbloom.protocol.terms import Terms
from fairbloom.rounds.arrays import Model
from fairbloom.rounds.clients import ModelMakers
from fairbloom.rounds.method import Method
from fairbloom.server.app import federate
from fairbloom.server.plan import choose_run_folder, keep_schema
from fairbloom.server.run_folder.csv_rows import ENDINGS
from fairbloom.server.run_folder.errors import check_place, explain_read_errors
from fairbloom.server.run_folder.files import ENGINE, HELD_OUT, NOT_IN_TRAINING, PERSONAL
from fairbloom.server.run_folder.recorded import OnRound, RecordedRound, ignore
from fairbloom.server.settings import Settings
from fairbloom.system.values import decode_as
from fairbloom.tasks import check_data, load_task

from .choice import Choice, choose
from .clients import DebuggedClients, HeldOutClients, LocalClients

# The training rows of clients that are not in training on which the final model is fine-tuned; all
# of a client that has fewer.
FEW_ROWS = (5, 20)


def simulate(
    settings: Settings,
    on_round: OnRound = ignore,
    *,
    debug: bool = False,
) -> Path:
    """Run or continue the settings' run with all clients on this machine; return the run folder.

    The process computes with `threads` threads, by default one: small models gain nothing from
    more, and with one the sums are equal on any number of cores.

    Parameters
    ----------
    on_round
        Called with each round once it is recorded; an exception ends the run.
    debug
        Whether clients are computed one by one in this process, regardless of the engine, and a
        client's first error ends the run with its traceback.
    """
    device = choose_device(settings.device)
    if settings.threads > 1 and device.type != "cpu":
        raise SettingsError(
            f"threads = {settings.threads} has no effect on the device {device}: leave it out, or"
            " set device=cpu"
        )
    folder = choose_run_folder(settings)
    check_place(folder)
    check_data(settings)
    # Only the clients get this folder: config.toml has the state-dir that the user gave.
    state_dir = settings.state_dir or str(PERSONAL.path_in(folder))
    with_states = keep_schema(settings, folder).model_copy(update={"state_dir": state_dir})
    watched: list[tuple[LocalClients, Choice]] = []
    with (
        computing_with(settings.threads),
        computing_in(settings.precision, device),
        ExitStack() as ending,
    ):

        def engine(method: Method) -> tuple[ModelMakers, Mapping[str, object]]:
            of_method = with_states.model_copy(update={"fraction": method.fraction_train})
            if debug:
                return DebuggedClients(method, of_method), ENGINE.read(folder) or {}
            choice = _read_choice(folder) or choose(of_method)
            clients = ending.enter_context(closing(choice.clients(method, of_method)))
            watched.append((clients, choice))
            return clients, asdict(choice)

        def note(recorded: RecordedRound) -> None:
            for clients, choice in watched:
                _note_end_of_recording(folder, choice, clients)
            on_round(recorded)

        first = DebuggedClients if debug else LocalClients
        return federate(
            settings,
            lambda method: first(method, with_states),
            note,
            engine=engine,
            score_held_out=partial(_score_held_out, folder, with_states),
        )


def _score_held_out(folder: Path, settings: RunSettings, method: Method, model: Model) -> None:
    """Write the scores of the clients that are not in training under the final common model.

    With `fine-tune-epochs`, also the scores after fine-tuning on their first training rows.
    """
    epochs = method.terms(1).fine_tune_epochs
    kinds = {NOT_IN_TRAINING: (1, "global", 0)}
    if epochs:
        for few in FEW_ROWS:
            kinds[f"{NOT_IN_TRAINING}, {few} rows"] = (few, "personal", epochs)
    task = load_task(settings)
    found = {}
    said = Counter[tuple[str, str]]()
    for title, (few, kind, fine_tune_epochs) in kinds.items():
        terms = Terms(
            server_round=method.run_state.finished_rounds,
            fine_tune_epochs=fine_tune_epochs,
            wire_dtype=method.wire_dtype,
        )
        replies = HeldOutClients(method, settings, few).evaluate(task.held_out, model, terms, ())
        replies.refused.log(said)
        of_clients = {}
        for name in task.held_out:
            metrics = replies.metrics.get(name, {})
            cells: dict[str, float | None] = {}
            for score in (*task.scores, LOSS_SCORE):
                (cells[score.name],) = score.cells([metrics.get(score.name + ENDINGS[kind])])
            of_clients[name] = cells
        found[title] = of_clients
    HELD_OUT.write(folder, found)


def _read_choice(folder: Path) -> Choice | None:
    """Return how an interrupted run was computed; raise RunFolderError for a damaged file."""
    recorded = ENGINE.read(folder)
    with explain_read_errors(ENGINE.path_in(folder), ENGINE.remedy):
        return decode_as(Choice, recorded) if recorded else None


def _note_end_of_recording(folder: Path, choice: Choice, clients: LocalClients) -> None:
    """Write and log once why local steps are not recorded any more; a continued run keeps to it."""
    why_not = clients.capture.why_not
    if why_not:
        log.warning("local steps run without CUDA graphs: %s", why_not)
        ENGINE.write(folder, asdict(replace(choice, recorded=why_not)))
        clients.capture.release()
        clients.capture = NO_CAPTURE


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let PyTorch compute with this many threads in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
