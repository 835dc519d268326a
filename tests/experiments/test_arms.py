"""Methods with parameters of their own: how they are written, told apart, and called."""

import re
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import (
    COMMON,
    baseline_of,
    parse_arm,
    parse_arms,
    settings_of_method,
)
from fairbloom.protocol.settings import Value
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS
from tests.docs.pages import ROOT

OWN = """\
from fairbloom.strategies import FairStrategy


class Mine(FairStrategy):
    def __init__(self, *, share: float = 0.5, name: str = "a", **options):
        super().__init__(**options)


class mine(Mine):
    pass
"""


def labels(words: str) -> list[str]:
    return [arm.label for arm in parse_arms(words)]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two modules with methods of the same name in the current directory."""
    for name in ("own_first", "own_second"):
        (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)


def test_the_page_names_what_methods_of_a_comparison_may_differ_in() -> None:
    text = (ROOT / "docs/comparing.md").read_text()
    section = text[text.index("## Methods and variants") : text.index("| `--set learning-rate=0.05`")]
    shared = {key for key in COMMON if not key.startswith("server-optimizer")}
    assert shared - set(re.findall(r"`([\w-]+)`", section)) == set()


def test_commas_separate_methods_where_they_are_outside_parentheses_and_quotes() -> None:
    written = " fedavg ,qfedavg(q=1), fedfv(alpha=0.2, tau=3),, torchjd:upgrad,fedfv(order='random'),"
    assert labels(written) == [
        "FedAvg",
        "QFedAvg (q=1)",
        "FedFV (alpha=0.2, tau=3)",
        "torchjd:upgrad",
        "FedFV (order=random)",
    ]


def test_a_list_of_words_is_read_as_well() -> None:
    assert [arm.label for arm in parse_arms(["fedavg", "qfedavg(q=1),fedfv"])] == ["FedAvg", "QFedAvg (q=1)", "FedFV"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_understood_as_tables_print_it_and_in_any_case(name: str) -> None:
    (arm,) = parse_arms(name)
    for written in (arm.label, name.upper()):
        assert parse_arm(written).is_same(arm)


@pytest.mark.parametrize("label", ["QFedAvg (q=1)", "FedFV (alpha=0.2, order=random)", "FedAvg (proximal-mu=0.1)"])
def test_a_label_is_read_as_what_it_was_made_of(label: str) -> None:
    assert labels(label) == [label]


def test_parameters_are_settings_of_their_type() -> None:
    arm = parse_arm("fedavgn(server_lr=2, proximal_mu=1)")
    assert arm.config == {"method": "fedavgn", "fedavgn.server-lr": 2.0, "proximal-mu": 1.0}
    assert [type(value) for value in arm.settings.values()] == [float, float]


def test_methods_may_differ_in_how_their_clients_train() -> None:
    first, second = parse_arms("fedavg(learning-rate=0.05),qfedavg(q=1,learning_rate=0.2,local-epochs=3)")
    assert first.config == {"method": "fedavg", "learning-rate": 0.05}
    assert second.config == {"method": "qfedavg", "qfedavg.q": 1.0, "local-epochs": 3, "learning-rate": 0.2}
    assert [first.folder, second.folder] == [
        "fedavg-learning-rate=0.05",
        "qfedavg-q=1-local-epochs=3-learning-rate=0.2",
    ]


def test_what_says_the_same_is_one_however_it_is_written() -> None:
    assert labels("qfedavg,QFedAvg,qfedavg(q=5),QFedAvg (q=5.0),qfedavg( lipschitz = 1 ),fedavg(proximal-mu=0)") == [
        "QFedAvg",
        "FedAvg (proximal-mu=0)",
    ]


WRONG = {
    "qfedavg(r=1)": "qfedavg(r=1): QFedAvg has no parameter r; there are q, lipschitz, and for all ",
    "fedavg(q=1)": "FedAvg has no parameter q; there are none of its own, and for all ",
    "qfedavg(q=much)": "qfedavg.q = 'much': allowed is float at least 0",
    "fedfv(tau=1.5)": "fedfv.tau = 1.5: allowed is int at least 0",
    "fedavg(proximal-mu=much)": "proximal-mu = 'much': allowed is float at least 0",
    "qfedavg(q=1,q=2)": "qfedavg(q=1,q=2): q is given twice: give it once",
    "qfedavg(q)": "qfedavg(q): write 'q' as a parameter with its value, as in qfedavg(q=1)",
    "qfedavg(q=1,2)": "'2' has no name: write each parameter with its value, as in qfedavg(q=1); fairbloom search "
    "--methods qfedavg --grid q=1,2 tries several",
    "qfedavg(q=)": "qfedavg(q=): write 'q=' as a parameter with its value",
    "qfedavg(q=1": "a parenthesis or quote is open at one end",
    "qfedavg)q=1(": "a parenthesis or quote is open at one end",
    "fedfv(order='random)": "a parenthesis or quote is open at one end",
    "(q=1)": "methods: '(q=1)' is no method with parameters: write it as in qfedavg(q=1)",
    "fedavg fedfv": "methods: 'fedavg fedfv' is no method with parameters",
    "fedavg(fraction=0.5)": "fraction is the same for all methods of a comparison, as clients and draws are then: "
    "set it for all by --set fraction=…; methods may differ in ",
    "fedavg(learning-rate=0)": "learning-rate = 0: allowed is float above 0",
    "fedfvv": "method = 'fedfvv': unknown method: did you mean FedFV?",
    " , ": "methods = ' , ' names no method",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_mistake_is_told_in_one_line_that_names_it(words: str) -> None:
    with pytest.raises(FairbloomError, match=re.escape(WRONG[words])) as raised:
        parse_arms(words)
    assert "\n" not in str(raised.value)


def test_what_is_set_for_all_no_arm_may_set() -> None:
    with pytest.raises(FairbloomError, match=re.escape("qfedavg.q is given twice, in qfedavg(q=1) and for all")):
        parse_arms("fedavg,qfedavg(q=1)", {"qfedavg.q": 1.0})
    assert len(parse_arms("fedavg,qfedavg(q=1)", {"qfedavg.lipschitz": 2.0})) == 2


# Names of run folders -----------------------------------------------------------------------------------------------


def names(words: str) -> list[str]:
    return [arm.folder for arm in parse_arms(words)]


def test_run_folders_are_named_by_method_and_parameters() -> None:
    assert names("fedavg,qfedavg(q=1),fedfv(alpha=0.2, tau=3),torchjd:upgrad,term(tilt=-1)") == [
        "fedavg",
        "qfedavg-q=1",
        "fedfv-alpha=0.2-tau=3",
        "torchjd-upgrad",
        "term-tilt=-1",
    ]


def test_the_name_of_a_run_folder_depends_on_its_arm_alone() -> None:
    assert names("fedfv(tau=3,alpha=0.2)") == names("fedavg,fedfv(tau=2),fedfv(alpha=0.2,tau=3)")[2:]


@pytest.mark.usefixtures("own")
def test_any_arm_has_a_name_that_every_file_system_takes_and_no_other_has() -> None:
    values = [
        "a",
        "A",
        "b c",
        "b-c",
        "b:c",
        "b/c",
        "../b",
        "ä",
        "x" * 300,
        "x" * 301,
        "a-share=1",
        "CON",
        "a.",
        "'a b'",
    ]
    written = [f'own_first:Mine(name="{value}")' for value in values]
    written += ["own_first:Mine", "own_first:mine", "own_second:Mine", "own_first:Mine(share=1,name=b)"]
    among = parse_arms(written)
    assert len(among) == len(written) - 1  # name="a" is the default
    found = names(",".join(written))
    assert len({name.casefold() for name in found}) == len(among)
    for name in found:
        assert re.fullmatch(r"[A-Za-z0-9_.=+-]{1,150}", name)
        assert not name.startswith(".")


@pytest.mark.usefixtures("own")
def test_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    assert labels("fedavg,own_first:Mine(share=0.3),own_second:Mine(share=0.3)") == [
        "FedAvg",
        "own_first:Mine (share=0.3)",
        "own_second:Mine (share=0.3)",
    ]
    assert labels("fedavg,own_first:Mine(share=0.3)")[1] == "Mine (share=0.3)"


# The baseline -------------------------------------------------------------------------------------------------------


def test_the_baseline_is_fedavg_or_else_the_first() -> None:
    assert baseline_of("", parse_arms("fedfv,fedavg(proximal-mu=1),fedavg")) == "FedAvg"
    assert baseline_of("", parse_arms("fedfv,fedavg(proximal-mu=1)")) == "FedAvg (proximal-mu=1)"
    assert baseline_of("", parse_arms("fedfv,term")) == "FedFV"


@pytest.mark.parametrize("name", ["qfedavg(q=1)", "QFedAvg (q=1)", "qfedavg (Q=1)", "qfedavg(q=1.0, lipschitz=1)"])
def test_a_baseline_is_named_as_it_is_written_or_printed(name: str) -> None:
    assert baseline_of(name, parse_arms("fedavg,qfedavg(q=2),qfedavg(q=1)")) == "QFedAvg (q=1)"


def test_a_baseline_that_is_not_compared_is_refused_with_those_that_are() -> None:
    expected = "baseline = 'qfedavg' is not among the methods: there are FedAvg, QFedAvg (q=1)"
    with pytest.raises(FairbloomError, match=re.escape(expected)):
        baseline_of("qfedavg", parse_arms("fedavg,qfedavg(q=1)"))


def test_methods_may_differ_in_optimizer_and_schedule() -> None:
    adamw, cosine = parse_arms("fedavg(optimizer=adamw, learning-rate=0.01),fedavg(schedule=cosine, warmup=2)")
    assert adamw.config["optimizer"] == "adamw"
    assert (cosine.config["schedule"], cosine.config["warmup"]) == ("cosine", 2)
    for arm in (adamw, cosine):
        Settings.of(arm.config)


def test_a_run_takes_a_method_with_parameters_in_parentheses() -> None:
    expected = {"method": "fedfv", "fedfv.alpha": 0.2}
    assert settings_of_method("FedFV(alpha=0.2)", {"seed": 3}) == expected
    assert settings_of_method("fedfv", {"fedfv.alpha": 0.2}) == {"method": "fedfv"}
    assert settings_of_method(None, {"method": "fedfv"}) == {}
    assert Settings.of(expected).strategy().alpha == 0.2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "config", "words"),
    [
        ("fedfv(alpha=0.2)", {"fedfv.alpha": 0.3}, "fedfv.alpha is given twice"),
        ("fedavg,fedfv", {}, "method = 'fedavg,fedfv': a run has one method; fairbloom compare --methods"),
        ("fedvf(alpha=0.2)", {}, "unknown method: did you mean FedFV?"),
        ("fedfv(alpha=2)", {}, "fedfv.alpha = 2: allowed is float in"),
    ],
)
def test_a_run_refuses_a_method_that_it_cannot_take(method: str, config: dict[str, Value], words: str) -> None:
    with pytest.raises(FairbloomError, match=re.escape(words)):
        settings_of_method(method, config)
