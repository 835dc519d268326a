"""The only door of this package to the ClientApp: a mod that finds a device's account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from flwr.app import Context, Message

from fairbloom.protocol.names import PRIVACY_LIMIT

from .account import AccountError, find_account, one_sentence

if TYPE_CHECKING:
    from fairbloom.flower import ClientAppCallable


def answer_by_account(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Answer a message by the account of a device's data, if they have one; a mod of Flower's."""
    node = context.node_config
    limits = json.loads(str(node.get(PRIVACY_LIMIT) or "{}"))
    with one_sentence():
        # a node that names no folder of data reads the one that the run's settings name
        data_dir = str(node.get("data-dir") or context.run_config.get("data-dir") or "")
        account = find_account(data_dir, str(limits.get("ledger", "")))
    if account is None:
        if limits:
            raise AccountError(
                "this device's owner has set a privacy budget (limits.privacy), and no account is"
                " open for its data: fairbloom client account open, on the device"
            )
        return answer(message, context)
    from .serving import reply_by  # imported late: it needs PyTorch

    return Message(reply_by(account, message, context), reply_to=message)
