"""The replies of a device by its privacy account.

Under the account's lock, from the charge to the stored reply: a message is checked by public
facts, then charged, then done. From the first read of the data, every error is one constant
sentence; after the charge, it also halts the account.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fairbloom.errors import ReportableError
from fairbloom.protocol import names as wire
from fairbloom.protocol.error_codes import ErrorCode
from fairbloom.protocol.private import TERMS, check_settings
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.terms import WORK, Terms
from fairbloom.protocol.version import check_protocol
from fairbloom.recorddict import deserialize, serialize, view_of
from fairbloom.system.retry import deadline, retry_write, retrying_writes
from fairbloom.system.supervise import finish_first
from fairbloom.system.versions import Versions
from fairbloom.tasks.permit import TASK, permit_reading

from ..gate import NOTED, hold_back
from ..local import LocalClient, Metrics, check_described
from ..messages import (
    PLACES,
    keep_evaluated,
    keep_released,
    own_settings,
    received_model,
    record_of,
    state_of,
    wanted_arrays,
)
from ..states import ClientStates, folder_of
from . import noise
from .account import Account, one_sentence
from .budget import REPORTS, UNITS
from .ledger import SHARE, AccountError
from .mechanism import Testing, Training
from .split import reads_alike, split_by

# Keys in the config of a message that name a run or a folder, or describe its model, and ask for no
# other work.
IDENTIFIERS = frozenset({wire.RUN_FOLDER, wire.CONTEXTS, wire.MODEL_MADE})

IS_HALTED = (
    "the privacy account is halted, as work failed after a charge: its owner can resume it"
    " (fairbloom client account resume, on the device)"
)

# The folder of what a client keeps between rounds, in its account's.
STATES = "states"

TRAIN = "train"
EVALUATE = "evaluate"

# The terms of local work that an account allows, as a client declares them.
HONOURED = [key for key in WORK if key.replace("-", "_") in TERMS]


def reply_by(account: Account, message: Message, context: Context) -> RecordDict:
    """Return the reply to a message; raise AccountError for what no account does."""
    kind = message.metadata.message_type
    run = message.metadata.run_id
    config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
    check_protocol(config)
    if kind == "query":
        name = str(context.node_config.get("name") or account.client)
        with account.ledger.lock():  # work that another device has begun is no halt
            if account.ledger.is_halted:
                raise AccountError(IS_HALTED, code=ErrorCode.ACCOUNT_HALTED)
            status = about_account(account, run, {})
        about = {wire.NAME: name, wire.NUM_EXAMPLES: account.train, **status}
        return RecordDict({wire.CLIENT: ConfigRecord(about)})
    if kind not in (TRAIN, EVALUATE, wire.RELEASE):
        raise AccountError(f"a privacy account answers no messages of type {kind[:50]!r}")
    settings, partition, name_here = own_settings(context, begins=kind != wire.RELEASE)
    check_settings(settings)
    terms = Terms.of(config)
    if settings.task != TASK:
        raise AccountError(
            f"task = {settings.task!r}: a privacy account is for tables: set task = {TASK}"
        )
    if not reads_alike(str(context.run_config.get("schema", "")), account.schema):
        raise AccountError(
            "the run's schema does not read the rows as the one that the privacy account was opened"
            " with: submit it with that schema"
        )
    settings = settings.model_copy(
        update={
            **{"state_dir": str(account.place / STATES), "device": "cpu"},
            # the account keeps the sides of its rows itself, and the server names no folder of them
            **{wire.DEPLOYED: False, wire.SIDES_IN: ""},
        }
    )
    request = Request(account, kind, message, context, settings, terms)
    with retrying_writes(deadline(message.metadata.ttl)):
        if kind == wire.RELEASE:
            with one_sentence():
                client = request.load_client(partition, name_here)
            return keep_released(message, context, client)
        with account.ledger.lock():
            return request.serve(partition, name_here)


def about_account(account: Account, run: int, cost: Mapping[str, float]) -> ConfigRecord:
    """Return what a run's server learns of an account, and of a reply: all of it is public."""
    status = account.status(account.left(run), account.train)._replace(**cost)
    return ConfigRecord({wire.HONOURS: HONOURED, wire.PRIVACY: [*map(float, status)]})


@dataclass(frozen=True)
class Request:
    """A message that asks an account for training or a test report."""

    account: Account
    kind: str
    message: Message
    context: Context
    settings: RunSettings
    terms: Terms

    def serve(self, partition: object, name: str | None) -> RecordDict:
        """Return the reply: a kept one, or a new one that is charged."""
        account = self.account
        ledger = account.ledger
        key = self.digest()
        kept = ledger.find_reply(key)
        if kept:
            return deserialize(kept)
        if ledger.is_halted:
            raise AccountError(IS_HALTED, code=ErrorCode.ACCOUNT_HALTED)
        with one_sentence():
            client = self.load_client(partition, name)
            work = self._check(client)
        reports = int(self.kind == EVALUATE)
        run = self.message.metadata.run_id
        left = account.left(run)
        if reports > left[REPORTS]:
            hold_back("test results: held back by the privacy account")
            return self._reply({wire.NUM_EXAMPLES: account.test}, {})
        try:
            mechanism = work.mechanism(account, noise.draw_noise, left[UNITS])
        except ReportableError as error:
            raise AccountError(str(error)) from error
        cost = work.cost(mechanism)
        units = int(cost["spent"])
        if units > left[UNITS]:
            raise AccountError(
                f"the privacy budget is spent: {units} units are asked for, and {left[UNITS]} of"
                f" {account.limits[UNITS]} are left for this run",
                code=ErrorCode.BUDGET_SPENT,
            )
        released = "test results" if reports else ", ".join([wire.ARRAYS, *self.terms.measure])
        charge = {UNITS: units, REPORTS: reports, "run": run, "released": released}
        if reports:
            charge[SHARE] = account.test_sigma**-2
        with finish_first(), one_sentence():
            retry_write(partial(ledger.charge, key, **charge), account.place)
            update = work.run(mechanism)
            reply = self._reply(update.metrics, cost)
            if update.arrays:
                wanted = wanted_arrays(client, self.message)
                reply[wire.ARRAYS] = record_of(update.arrays, wanted)
            retry_write(partial(ledger.keep_reply, key, serialize(reply)), account.place)
        noted = NOTED.get()
        if noted is not None:
            noted["spent"] = {REPORTS: reports} if reports else {UNITS: units}
            noted["left"] = account.left()
        return reply

    def _check(self, client: LocalClient) -> Training | Testing:
        """Return the work; raise AccountError for what no account does, by public facts."""
        arrays = self.message.content.array_records
        made = str(self.message.content.config_records[wire.CONFIG].get(wire.MODEL_MADE, ""))
        try:
            check_described(client.task, made)
            received = received_model(arrays[wire.ARRAYS], self.terms.codec, client.model)
            if self.kind == EVALUATE:
                testing = Testing(client, received, self.terms)
                keep_evaluated(self.context, client, received, self.terms)
                return testing
            sent = {name: state_of(each) for name, each in arrays.items() if name != wire.ARRAYS}
            return Training(client, received, self.terms, sent)
        except ReportableError as error:
            raise AccountError(str(error), error.reportable) from error

    def _reply(self, metrics: Metrics, cost: Mapping[str, float]) -> RecordDict:
        return RecordDict(
            {
                wire.METRICS: MetricRecord({**metrics}),
                wire.CLIENT: about_account(self.account, self.message.metadata.run_id, cost),
            }
        )

    def load_client(self, partition: object, name: str | None) -> LocalClient:
        """Return the client with the account's split of its rows."""
        account = self.account
        # the order of steps on all rows is no secret: it is the run's
        with permit_reading():
            client = LocalClient.of(self.settings, partition, name)
        return replace(client, splits=split_by(account, client.splits))

    def digest(self) -> str:
        """Return the key of a reply: the kind of message, and a digest of its content.

        It is of content, settings, account and the round of the state that the client resumes from,
        and of no identifier and no time.
        """
        content = self.message.content
        arrays = []
        for name, record in sorted(content.array_records.items()):
            for key, each in record.items():
                digest = sha256(view_of(each)).hexdigest()
                arrays.append([name, key, each.dtype, [*each.shape], each.stype, digest])
        config = content.config_records[wire.CONFIG].items()
        asked = {key: value for key, value in config if key not in IDENTIFIERS}
        states = folder_of(self.settings, self.account.client)
        files = None if states is None else Versions(states)
        resumed = ClientStates(files).of_rule(self.terms).made
        # devices that share an account have folders of their own
        settings = {
            key: value for key, value in self.context.run_config.items() if key not in PLACES
        }
        about = [self.kind, arrays, asked, settings, self.account.number, resumed]
        text = json.dumps(about, sort_keys=True, default=str)
        return f"{self.kind}-{sha256(text.encode()).hexdigest()}"
