"""The arrays that a client of a user's own app keeps for itself, in Flower's context."""

import copy

from flwr.app import ArrayRecord, Context, Message, RecordDict

from fairbloom.protocol.names import PERSONAL
from fairbloom.protocol.terms import Terms

from ..rules.personal import PersonalParameters

# The record of the context that holds them.
RECORD = f"kept:{PERSONAL}"


def give_own(message: Message, context: Context, terms: Terms) -> Message:
    """Return a message whose first arrays have the client's own values, once it has trained."""
    own = context.state.array_records.get(RECORD)
    if not terms.keeps_arrays or own is None:
        return message
    (key, received), *_ = message.content.array_records.items()
    # Only what the reply leaves out, as the server may have changed its terms.
    left_out = {name: own[name] for name in PersonalParameters(terms).match(own)}
    given = copy.copy(message)
    given.content = RecordDict({**message.content, key: ArrayRecord({**received, **left_out})})
    return given


def keep_own(reply: Message, context: Context, terms: Terms) -> None:
    """Move the arrays that the client keeps from a reply into its context."""
    if not terms.keeps_arrays or reply.has_error():
        return
    for key, trained in [*reply.content.array_records.items()]:
        names = PersonalParameters(terms).match(trained)
        context.state[RECORD] = ArrayRecord({name: trained[name] for name in names})
        others = {name: each for name, each in trained.items() if name not in names}
        reply.content[key] = ArrayRecord(others)
