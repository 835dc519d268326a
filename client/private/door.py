"""The only door of this package to the ClientApp: a mod that finds a device's account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import Context, Message

from .account import find_account, one_sentence

if TYPE_CHECKING:
    from fairbloom.flower import ClientAppCallable


def answer_by_account(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """Answer a message by the account of a device's data, if they have one; a mod of Flower's."""
    node = context.node_config
    # a node that names no folder of data reads the one that the run's settings name
    data_dir = node.get("data-dir") or context.run_config.get("data-dir") or ""
    with one_sentence():
        account = find_account(node, str(data_dir))
    if account is None:
        return answer(message, context)
    from .serving import reply_by  # imported late: it needs PyTorch

    return Message(reply_by(account, message, context), reply_to=message)
