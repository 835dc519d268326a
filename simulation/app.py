"""A run of a user's Flower app in this process."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fairbloom.client.generators import all_seeded
from fairbloom.errors import FairbloomError, failure_reason
from fairbloom.imports import imported
from fairbloom.protocol.settings import Value
from fairbloom.server.run_folder.files import CONFIG, is_finished
from fairbloom.server.run_folder.flower import collect_options
from fairbloom.strategies import from_config
from fairbloom.strategies.named import parse_method, short_key

from .grid import SERVER, InProcessGrid
from .run import one_thread


def run_app(
    folder: str,
    server: str,
    client: str,
    clients: int,
    config: Mapping[str, Value],
    rounds: str,
) -> None:
    """Run a ServerApp with the clients of a ClientApp in this process, from the app's folder.

    The process should do nothing else: the app may change its state. `config` is the run config,
    `rounds` the key of the number of rounds in it. Raise FairbloomError if the app fails, or does
    not do what the run config says.
    """
    os.chdir(folder)
    try:
        server_app = imported("serverapp", server)
        grid = CheckedGrid(imported("clientapp", client), config, clients)
        context = Context(SERVER, SERVER, {}, RecordDict(), dict(config))
        # an app that seeds nothing begins with the same model under every method
        with one_thread(), all_seeded(int(config["seed"])):
            server_app(grid, context)
    except (Exception, SystemExit) as error:  # any failure of the app ends only its own run
        raise FairbloomError(failure_reason(error)) from error
    out = Path(str(config["out"]))
    if not is_finished(out):
        raise FairbloomError(
            f"the ServerApp has ended, and {out} holds no finished run: start its strategy by"
            ' RunFolder(context.run_config["out"]).start'
        )
    if CONFIG.read(out).num_rounds != config[rounds]:
        raise FairbloomError(
            f"the ServerApp ran num_rounds = {CONFIG.read(out).num_rounds}, and not {rounds} ="
            f' {config[rounds]}: start its strategy with num_rounds=context.run_config["{rounds}"]'
        )


class CheckedGrid(InProcessGrid):
    """Checks before clients work that the strategy is the one that the run config names."""

    def __init__(self, client_app: ClientApp, config: Mapping[str, Value], clients: int) -> None:
        super().__init__(client_app, dict(config), clients)
        _, own = parse_method(str(config["method"]))
        compared = {"method", "seed", *map(short_key, own)}
        options = collect_options(from_config(config))
        self._folder = Path(str(config["out"]))
        self._expected = {key: value for key, value in options.items() if key in compared}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Check the recorded settings, and call the ClientApp; see InProcessGrid."""
        recorded = CONFIG.read(self._folder).settings
        for key, value in self._expected.items():
            if recorded and recorded.get(key) != value:
                raise FairbloomError(
                    f"the ServerApp trains with {key} = {recorded.get(key)!r}, and not {value!r} as"
                    " its run config says: make its strategy by"
                    " strategies.from_config(context.run_config)"
                )
        return super().push_messages(messages)
