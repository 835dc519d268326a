"""One message of a run from Flower's lists to the app, and the app's reply to where Flower looks for it."""

from __future__ import annotations

import logging
import re
from typing import Any

from flwr.app import Context, Error, Message
from flwr.common.constant import Status, SubStatus
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fairbloom.errors import is_expected, reportable
from fairbloom.flower import ErrorCode, address, identify, set_message_id

from ...device.bundles import BundleRefusedError
from ..relied_on import LOOP, look_up
from .answers import Answer, CrashedError

NO_HANDLER = re.compile(
    r"(ValueError: )?(No (train|evaluate|query) function registered with name '\w+'|Invalid message type: [a-z.]+)"
)
"""What Flower raises where an app has no handler for a message; a server that asks by QUERY knows it by these words."""

log = logging.getLogger("flwr")


def answer_next(state: Any, store: Any, answer: Answer) -> None:
    """Take the message that came, let it be answered, and lay the reply and the context where Flower looks for them."""
    received = [message.metadata.message_id for message in state.get_messages(is_reply=False)]
    if not received:  # Flower itself has answered, because it does not trust the bundle's signature
        return
    *torn, message_id = received
    state.delete_messages(message_ids=torn)  # of runs that ended while their message came: Flower leaves them behind
    for left in torn:
        store.delete(left)
    tree = store.get_object_tree(message_id)
    contents = {part.object_id: store.get(part.object_id) for part in iterate_object_tree(tree)}
    message: Any = inflate_object_from_contents(message_id, contents)
    set_message_id(message, message_id)
    store.delete(message_id)
    run = state.get_run(message.metadata.run_id)
    state.record_message_processing_start(message_id)
    task_id = _drop_tasks(state)
    reply, context = _answered(answer, state, run, task_id, message)
    state.record_message_processing_end(message_id)
    look_up(LOOP, "_insert_message")(reply, state, store)
    if context is not None:
        state.set_run_series_context(run.series_id, context)


def _answered(answer: Answer, state: Any, run: Any, task_id: int, message: Message) -> tuple[Message, Context | None]:
    identify(run_id=run.run_id, node_id=state.get_node_id(), task_id=task_id)
    context = state.get_run_series_context(run.series_id)
    try:
        reply, changed = answer(state.get_fab(run.fab_hash), run, task_id, message, context)
        return address(reply, message), changed
    except BundleRefusedError as error:
        code, reason = ErrorCode.INVALID_FAB, str(error)
    except CrashedError as error:
        code, reason = ErrorCode.CLIENT_APP_CRASHED, str(error)
    except Exception as error:  # one message's failure is one error reply
        log.error("the client app raised %s", error, exc_info=not is_expected(error))
        code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason_of(error)
    log.error("answered with error %d: %s", code, reason)
    return Message(Error(code, reason), reply_to=message), None


def reason_of(error: Exception) -> str:
    """Return what the server learns of an app's error: what quotes no data, and that the app has no such handler."""
    said = str(error)
    return said if NO_HANDLER.fullmatch(said) else reportable(error)


def _drop_tasks(state: Any) -> int:
    """Take the message's task off the node's list, which is for processes beside it, and return its id."""
    task_id = 0
    for task in state.get_tasks(statuses=[Status.PENDING]):
        task_id = int(task.task_id)
        state.finish_task(task_id, SubStatus.STOPPED, "answered in the SuperNode's process")
        getattr(state, "task_store", {}).pop(task_id, None)  # it would grow by one a message
    return task_id
