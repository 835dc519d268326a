"""A model card says what clients have reported, in a form that the hub reads, whatever others have called things."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

import fairbloom
from fairbloom.experiments.views.markdown import escaped, fenced
from fairbloom.server.run_folder.files import CLIENTS, GROUPS, SPLIT
from tests.tasks.test_groups import patients

EVIL = ("a|b](http:x) <img src=x onerror=1>", "`code` **bold** _it_ &amp; $x$", "www.example.com #1 ~~no~~ \u2028 ---")
"""Names of clients with markup of Markdown, HTML and YAML in them; the last has a line separator."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two methods on sites with odd names, one of which has few patients."""
    folder = tmp_path_factory.mktemp("card")
    (folder / "sites").mkdir()
    ill = {"target": lambda k: "1" if k % 10 in (0, 4) or k % 4 == 1 else "0"}
    for name, rows in zip(EVIL, (140, 90, 40), strict=True):
        (folder / "sites" / f"{name.replace('/', '')}.csv").write_text(patients(rows, **ill))
    settings = {"csv.group": "sex", "csv.target": "target", "personal-lambda": 0.1}
    fairbloom.compare(
        "csv",
        data_dir=folder / "sites",
        methods="fedavg,qfedavg(q=1)",
        seeds=1,
        rounds=2,
        device="cpu",
        jobs=1,
        out=folder / "out",
        settings=settings,
        progress=False,
    )
    return folder / "out" / "runs"


@pytest.fixture(scope="module")
def run(folder: Path) -> fairbloom.Run:
    (found,) = folder.glob("qfedavg*")
    return fairbloom.load(found)


def tables_of(card: str) -> dict[str, list[list[str]]]:
    """Return the tables of a card as a reader sees them, by the heading above."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body(card))
    found: dict[str, list[list[str]]] = {}
    heading, row = "", None
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = text(tokens[at + 1])
        elif token.type == "tr_open":
            row = []
            found.setdefault(heading, []).append(row)
        elif token.type in ("th_open", "td_open") and row is not None:
            row.append(text(tokens[at + 1]))
    return found


def text(token: object) -> str:
    """Return an inline token's text; fail where it has anything but text."""
    children = getattr(token, "children", None) or []
    assert {each.type for each in children} <= {"text", "text_special"}, [each.type for each in children]
    return "".join(each.content for each in children)


def body(card: str) -> str:
    return card.split("\n---\n", 1)[1]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    last = max(int(row["round"]) for row in rows)
    return [row for row in rows if int(row["round"]) == last]


@pytest.mark.slow
def test_the_hub_reads_its_front_matter(run: fairbloom.Run, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    file = tmp_path / "README.md"
    file.write_text(run.card(), encoding="utf-8")
    data = hub.ModelCard.load(file).data
    assert data.library_name == "fairbloom"
    assert data.pipeline_tag == "tabular-classification"
    assert "federated-learning" in data.tags
    by_name = {each.metric_name: each.metric_value for each in data.eval_results}
    summary = run.summary
    assert by_name["test accuracy, %, mean of 3 clients"] == pytest.approx(summary["mean"], abs=1e-3)
    assert by_name["test accuracy, %, worst"] == pytest.approx(summary["worst"], abs=1e-3)
    assert {each.task_type for each in data.eval_results} == {"tabular-classification"}


def test_clients_counts_and_scores_are_those_that_were_reported(run: fairbloom.Run) -> None:
    found = tables_of(run.card())
    rows = {row["client"].replace("\u2028", "\ufffd"): row for row in rows_of(CLIENTS.path_in(run.folder))}
    examples = {(int(trained), int(tested)) for _, trained, tested in found["Data"][1:]}
    assert {int(tested) for _, _, tested in found["Data"][1:]} == {int(row["test_examples"]) for row in rows.values()}
    assert {sum(each) for each in examples} == {140, 90, 40}
    assert {client for client, *_ in found["Data"][1:]} == rows.keys()
    total = sum(trained for trained, _ in examples)
    assert f"{total:,} training examples of 3 clients. {270 - total} test examples of 3 clients." in run.card()
    heading, *served = [row for row in found["How each client is served"] if len(row) == 6]
    assert heading == ["client", "global model", "personal model", "under FedAvg", "test examples", "larger class, %"]
    baseline = fairbloom.load(next(run.folder.parent.glob("fedavg*"))).final()
    for client, of_global, of_personal, under, count, larger in served:
        row = rows[client]
        assert float(larger) == pytest.approx(float(row["test_share_of_larger_class"]), abs=0.5)
        assert float(of_global) == pytest.approx(float(row["test_accuracy_of_global_model"]), abs=0.05)
        assert float(of_personal) == pytest.approx(float(row["test_accuracy_of_personal_model"]), abs=0.05)
        assert float(under) == pytest.approx(baseline[row["client"]], abs=0.05)
        assert count == row["test_examples"]
    scores = [float(row[1]) for row in served]
    assert scores == sorted(scores)  # the worst served first


@pytest.mark.parametrize("settings", [{"fraction": 0.4}, {"pooled": True}])
def test_card_counts_training_rows_of_dealt_clients(tmp_path: Path, settings: dict[str, Any]) -> None:
    given = {"clients": 5, "partition": "iid", "device": "cpu", **settings}
    run = fairbloom.run("digits", rounds=1, out=tmp_path / "run", settings=given, progress=False)
    split = SPLIT.read(run.folder)
    assert split is not None
    dealt = {name: int(((split.client == k) & (split.part == 0)).sum()) for k, name in enumerate(split.clients)}
    drawn = {row["client"] for row in rows_of(CLIENTS.path_in(run.folder)) if row["participated"] == "1"}
    card, total = run.card(), sum(dealt.values())
    listed = {client: trained for client, trained, _ in tables_of(card)["Data"][1:]}
    if "pooled" in settings:
        assert f"Each client has trained on the {total:,} training examples of all." in card
        assert set(listed.values()) <= {str(total), "–"}
    else:
        assert len(drawn) == 2
        assert listed == {name: str(count) if name in drawn else "–" for name, count in dealt.items()}


def test_card_says_where_training_rows_are_not_known(run: fairbloom.Run, tmp_path: Path) -> None:
    copied = shutil.copytree(run.folder, tmp_path / "run")
    for path in (copied / "checkpoint").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    assert fairbloom.load(copied).training_examples() == {}
    assert "How many examples the clients have trained on is not in the run folder." in fairbloom.load(copied).card()
    weighed = replace(run, settings={**run.settings, "weighted-by-key": "num-patients"})
    assert weighed.training_examples() == {} != run.training_examples()


def test_groups_that_no_client_reports_are_not_there(run: fairbloom.Run) -> None:
    found = tables_of(run.card())["By sex"]
    reported = [row for row in rows_of(GROUPS.path_in(run.folder)) if row["model"] == "global"]
    shown = {(client, group): int(count) for client, group, count, *_ in found[1:] if client != "all clients"}
    assert shown == {(row["client"].replace("\u2028", "\ufffd"), row["group"]): int(row["count"]) for row in reported}
    assert min(shown.values()) >= 5
    assert "left out, in groups that are too small" in run.card()


def test_names_are_shown_and_nothing_else_comes_of_them(run: fairbloom.Run) -> None:
    card = run.card()
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body(card))
    inline = [child for token in tokens for child in token.children or []]
    assert not [
        each for each in (*tokens, *inline) if each.type.startswith(("html", "image", "em", "strong", "s_open"))
    ]
    links = [each.attrGet("href") for each in inline if each.type == "link_open"]
    assert set(links) == {"https://github.com/fairbloom/fairbloom"}
    clients = [row[0] for row in tables_of(card)["Data"][1:]]
    assert sorted(clients) == sorted(name.replace("\u2028", "\ufffd") for name in EVIL)
    assert "www\\.example" in card  # which GitHub would make a link


@pytest.mark.parametrize("name", ["---", "# x", "a\nb", "\r", "\\", "\ud800", "${x}", "@team", "x:y", "```"])
def test_any_text_stays_one_line_that_is_shown_as_it_is(name: str) -> None:
    (paragraph,) = [each for each in MarkdownIt("commonmark").parse(f"It is {escaped(name)}.") if each.type == "inline"]
    shown = "".join(each if each.isprintable() else "\ufffd" for each in name)
    assert text(paragraph) == f"It is {shown}."


def test_a_fence_is_longer_than_what_is_in_the_code() -> None:
    (code,) = MarkdownIt("commonmark").parse(fenced("a = '````'\n```", "python"))
    assert code.type == "fence"
    assert code.content == "a = '````'\n```\n"


def test_no_path_of_this_machine_is_in_it(run: fairbloom.Run) -> None:
    card = run.card()
    assert str(run.folder.parent) not in card
    assert "data-dir" not in card
    assert "| csv.group | sex |" in card
    assert re.search(r"\| torch \| \d", card)


def test_the_best_model_has_the_scores_of_its_round_and_says_by_what_it_was_chosen(run: fairbloom.Run) -> None:
    card = run.card(model="best")
    assert "was chosen by the test examples" in card
    assert "was chosen by the test examples" not in run.card()
    assert re.search(r"It is the model after round \d, which had the best mean score", card)


def test_a_personal_model_is_that_of_its_client(run: fairbloom.Run) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = run.card(client=EVIL[0], model="personal")
    (first, *_) = hub.ModelCard(card).data.eval_results
    assert first.metric_name == f"test accuracy, %, {EVIL[0]}"
    assert first.metric_value == pytest.approx(run.final(model="personal")[EVIL[0]], abs=1e-3)
    assert "nothing is known of others" in card


def test_few_test_rows_and_a_single_seed_are_limits(run: fairbloom.Run) -> None:
    limits = body(run.card()).partition("## Limits")[2]
    assert "one seed" in limits
    assert "tested on fewer than 10 examples" in limits


def test_without_tables_it_says_where_the_scores_are(run: fairbloom.Run, tmp_path: Path) -> None:
    """A deployed client keeps model, settings and preprocessing of a run, and no other client's scores."""
    for name in ("config.toml", "model.safetensors", "preprocessing.json", "agreed.json"):
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    card = replace(run, folder=tmp_path).card()
    assert "in the run folder on the server, and not here" in card
    assert "## How each client is served" not in card
    json.loads(card.split("\ntags: ")[1].splitlines()[0])


def test_card_names_the_score_and_what_others_say(run: fairbloom.Run, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run.folder, copied)
    path = CLIENTS.path_in(copied)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    first, other = run.scores[:2]
    for k, row in enumerate(last):
        row[first.column("global")], row[other.column("global")] = str(50 + 10 * k), str(90 - 10 * k)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    card = fairbloom.load(copied).card()
    assert f"Fairness goes by {first.name}." in card
    assert f"By {other.name}, {escaped(last[-1]['client'])} is served worst: 70.0 %." in card
    assert f"By {other.name}, {escaped(last[0]['client'])}" not in card
