"""What leaves a site, in sentences and as JSON, for those who have to agree to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairbloom.protocol.names import (
    ABOUT,
    ARRAYS,
    ARRAYS_DISPARITY,
    CLIENT,
    KEEP,
    KEPT,
    METRICS,
    NAME,
    NUM_EXAMPLES,
    SNAPSHOT,
    VALIDATION,
)
from fairbloom.simulation.rehearsal import SentReply

WHEN = {
    "query": "When it is asked who it is",
    ABOUT: "Before the first round",
    "train": "In each round that it trains in",
    "evaluate": "In each round that it is tested in",
    KEEP: "When the run is over",
}

MODELS = {
    ARRAYS: "the trained model",
    SNAPSHOT: "the model in the midst of its training",
    ARRAYS_DISPARITY: "the received model one step further down the disparity between its groups",
}

INSTEAD = (
    "No row is sent. Where it cannot work, it sends in place of these things one sentence of a fixed list, or the kind "
    "of an error and its place in the code."
)


def as_json(sent: Sequence[SentReply]) -> list[dict[str, Any]]:
    """Return what clients send, a list of messages for each."""
    clients = dict.fromkeys(each.client for each in sent)
    return [
        {
            "client": client,
            "messages": [
                {"asked": each.asked, "sends": each.content}
                | ({"holds-back": list(each.held_back)} if each.held_back else {})
                for each in sent
                if each.client == client
            ],
        }
        for client in clients
    ]


def sentences(sent: Sequence[SentReply], smallest_category: int) -> Iterator[str]:
    """Yield what one client sends, a sentence a thing; the same message once."""
    said = set[str]()
    for each in sent:
        when = WHEN[each.asked]
        sends = [f"{when}, it sends {what}." for what in _things(each.content, smallest_category)]
        for sentence in (*sends, *(f"{when}, it does not send {what}." for what in each.held_back)):
            if sentence not in said:
                said.add(sentence)
                yield sentence
    yield INSTEAD


def _things(content: Mapping[str, Any], smallest_category: int) -> Iterator[str]:
    """Yield the things that a message's content has."""
    if "error" in content:
        yield f"the error {content['error']!r}"
        return
    if "private" in content:
        yield content["private"]
        return
    about = content.get(CLIENT, {})
    if NAME in about and ABOUT not in about:
        counted = f", and how many examples it trains on, {about[NUM_EXAMPLES]}" if NUM_EXAMPLES in about else ""
        yield f"its name, {about[NAME]}{counted}"
    if about.get(KEPT):
        yield "the checksum of the final model, which it keeps"
    if ABOUT in about:
        yield from _of_data(about[ABOUT], smallest_category)
    for record, model in MODELS.items():
        if record in content:
            yield f"{model}: {', '.join(f'{name} ({kind})' for name, kind in content[record].items())}"
    if METRICS in content:
        numbers: dict[str, list[str]] = {}
        for name, value in content[METRICS].items():
            examples = "validation" if f"]-{VALIDATION}" in name else "test"
            what = f"of groups of its {examples} examples these numbers" if "[" in name else "these numbers"
            numbers.setdefault(what, []).append(f"{name} = {value:.6g}")
        yield from (f"{what}: {', '.join(each)}" for what, each in numbers.items())


def _of_data(about: Mapping[str, Any], smallest_category: int) -> Iterator[str]:
    """Yield what is sent about data that clients agree on."""
    if "columns" in about:
        kinds = zip(about["columns"], about["kinds"], strict=True)
        yield f"the names of its columns and what they hold: {', '.join(f'{name} ({kind})' for name, kind in kinds)}"
    for column, categories in about.get("categories", {}).items():
        rest = f", where other stands for those of fewer than {smallest_category} training rows"
        hidden = rest if column in about["others"] else ""
        yield f"the categories of its column {column}: {', '.join(categories)}{hidden}"
    for column, (mean, deviation) in about.get("moments", {}).items():
        yield f"the mean, {mean:.6g}, and the standard deviation, {deviation:.6g}, of its column {column}"
    for grouping, groups in about.get("groups", {}).items():
        yield f"the values of its column {grouping} by which examples are grouped: {', '.join(groups)}"
    if "shape" in about:
        yield f"the shape of its examples: {'×'.join(map(str, about['shape']))}"
    target = about.get("target", {})
    if target.get("classes"):
        yield f"the classes of its target: {', '.join(target['classes'])}"
    if target.get("moments"):
        mean, deviation = target["moments"]
        yield f"the mean, {mean:.6g}, and the standard deviation, {deviation:.6g}, of its target"
    if "examples" in about:
        yield f"how many examples it trains on, {about['examples']}"
