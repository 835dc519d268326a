"""`fairbloom client`: the loop that reconnects a device whenever its connection ends.

This process loads neither Flower nor PyTorch: the worker's process does, during a run.
"""

import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

import grpc

from fairbloom.client.guard.log_files import AuditLog
from fairbloom.errors import FairbloomError
from fairbloom.logs import escape_all_records, log
from fairbloom.system.files import make_folder
from fairbloom.system.lock import LockedError, exclusive_lock
from fairbloom.system.machine import tune_allocator
from fairbloom.system.supervise import STOPPING, become, release_signals

from ..device.client import ClientSettings
from ..device.connectivity import connection_fault
from ..errors import DeployError
from ..processes import ONE_HEAP
from .calls import CHUNK_SECONDS, OPTIONS, Calls, Outage, RefusedError, reason_of
from .messages import SERVICE
from .session import Contexts, KeptReply, Session, count_start
from .wire_pb2 import Kept, Told
from .worker import Worker

# Pause in seconds before a client that the server has refused asks again.
AGAIN_SECONDS = 15.0

# Exit code of a client that cannot run with its settings.
FAILED = 2


def replace_process(client: ClientSettings) -> None:
    """Replace this process by one for the client, without the libraries of the command line."""
    become("fairbloom.deploy.fleet.client", json.dumps(asdict(client)))


def run(client: ClientSettings) -> None:
    """Keep a client connected until SIGTERM or SIGINT."""
    credentials = _credentials_of(client)
    worker = Worker(client)
    outage = Outage()
    contexts = Contexts(client.state_dir)
    kept = KeptReply(client.state_dir)
    start = count_start(client.state_dir)
    audit_log = AuditLog(Path(client.state_dir))
    memory = float(client.limits.get("memory", 0.0))
    try:
        while True:
            calls = Calls(
                client.server,
                credentials,
                start,
                outage,
                lambda: connection_fault(client),
                Path(client.state_dir),
                memory,
            )
            try:
                Session(client.name, calls, worker, contexts, kept, audit_log).serve()
            except RefusedError as error:
                outage.fault(str(error))
            finally:
                calls.close()
            time.sleep(AGAIN_SECONDS)
    finally:
        worker.end()


def _credentials_of(client: ClientSettings) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        *(Path(part).read_bytes() for part in (client.ca, client.key, client.certificate))
    )


def tell(client: ClientSettings, message: Told) -> None:
    """Tell the server once; raise DeployError with its reason if it refuses."""
    with grpc.secure_channel(client.server, _credentials_of(client), options=OPTIONS) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Tell", Told.SerializeToString, Kept.FromString)
        try:
            call(iter([Told(), message]), timeout=CHUNK_SECONDS)
        except grpc.RpcError as error:
            raise DeployError(f"{client.server} refuses it: {reason_of(error)}") from None


def run_alone(client: ClientSettings) -> None:
    """Keep a client connected, as the only process that uses its state folder.

    Raise DeployError if the folder cannot be used.
    """
    folder = Path(client.state_dir)
    try:
        make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise DeployError(
                f"state-dir = {folder}: the account that runs this client may not write there"
            )
        with exclusive_lock(folder / "lock"):
            run(client)
    except LockedError as error:
        raise DeployError(
            f"state-dir = {folder} is used already, by {error.holder}: end that client, or give"
            " this one a folder of its own"
        ) from None
    except OSError as error:
        raise DeployError(
            f"state-dir = {folder}: {error.filename or ''} {error.strerror}"
        ) from error


def _stop(number: int, frame: object) -> None:
    for each in STOPPING:  # a second signal would interrupt the shutdown
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Run a client with the settings in the first argument, as JSON."""
    os.umask(0o077)  # only this account may read the client's files
    logging.basicConfig(format="fairbloom client: %(message)s", level=logging.INFO)
    escape_all_records()
    tune_allocator(ONE_HEAP)
    settings = json.loads(sys.argv[1])
    try:
        for number in STOPPING:
            signal.signal(number, _stop)
        release_signals(*STOPPING)
        # JSON has lists in place of tuples
        lists = {key: tuple(settings[key]) for key in ("allow", "not_persons")}
        run_alone(ClientSettings(**settings | lists))
    except FairbloomError as error:  # for example, a file was removed since the settings were read
        log.error("%s", error)
        return FAILED
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
