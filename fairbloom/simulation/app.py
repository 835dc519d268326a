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
from fairbloom.strategies.named import parse_method, short_key, strategy_of

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
    expected = Expected(config)
    try:
        server_app = imported("serverapp", server)
        grid = CheckedGrid(imported("clientapp", client), config, clients, expected)
        context = Context(SERVER, SERVER, {}, RecordDict(), dict(config))
        # an app that seeds nothing begins with the same model under every method
        with one_thread(), all_seeded(int(config["seed"])):
            server_app(grid, context)
    except (Exception, SystemExit) as error:  # any failure of the app ends only its own run
        raise FairbloomError(failure_reason(error)) from error
    expected.check_end(rounds)


class Expected:
    """What the run folder of a run must record by its run config."""

    def __init__(self, config: Mapping[str, Value]) -> None:
        _, own = parse_method(str(config["method"]))
        compared = {"method", "seed", *map(short_key, own)}
        self._config = config
        self._folder = Path(str(config["out"]))
        self._expected = {
            key: value
            for key, value in collect_options(strategy_of(config)).items()
            if key in compared
        }

    def check_settings(self) -> None:
        """Raise FairbloomError if the folder records other settings."""
        recorded = CONFIG.read(self._folder).settings
        if not recorded:
            return
        for key, value in self._expected.items():
            if recorded.get(key) != value:
                raise FairbloomError(
                    f"the ServerApp trains with {key} = {recorded.get(key)!r}, and not {value!r} as"
                    " its run config says: make its strategy by"
                    " strategies.from_config(context.run_config)"
                )

    def check_end(self, rounds: str) -> None:
        """Raise FairbloomError if the folder holds no finished run with the number of rounds."""
        if not is_finished(self._folder):
            raise FairbloomError(
                f"the ServerApp has ended, and {self._folder} holds no finished run: start its"
                ' strategy by RunFolder(context.run_config["out"]).start'
            )
        self.check_settings()
        if (done := CONFIG.read(self._folder).num_rounds) != self._config[rounds]:
            raise FairbloomError(
                f"the ServerApp ran num_rounds = {done}, and not {rounds} ="
                f" {self._config[rounds]}: start its strategy with"
                f' num_rounds=context.run_config["{rounds}"]'
            )


class CheckedGrid(InProcessGrid):
    """Checks before clients work that the strategy is the one that the run config names."""

    def __init__(
        self,
        client_app: ClientApp,
        config: Mapping[str, Value],
        clients: int,
        expected: Expected,
    ) -> None:
        super().__init__(client_app, dict(config), clients)
        self._expected = expected

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Check the recorded settings, and call the ClientApp; see InProcessGrid."""
        self._expected.check_settings()
        return super().push_messages(messages)
