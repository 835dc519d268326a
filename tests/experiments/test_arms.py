"""Methods with parameters: how they are written, distinguished and labelled."""

import re
from pathlib import Path

import pytest

from fairbloom.errors import FairbloomError
from fairbloom.experiments.arms import (
    Arm,
    baseline_of,
    make_arm,
    parse_arms,
    settings_of_method,
)
from fairbloom.server.settings import Settings
from fairbloom.strategies import METHODS
from fairbloom.strategies.named import COMMON, parse_method
from tests.docs.pages import ROOT

OWN = """\
from fairbloom.strategies import FairStrategy


class Mine(FairStrategy):
    def __init__(self, *, share: float = 0.5, name: str = "a", **options):
        super().__init__(**options)


class mine(Mine):
    pass
"""


def parse(text: str) -> Arm:
    return make_arm(*parse_method(text))


def labels(words: str | list[str]) -> list[str]:
    return [arm.label for arm in parse_arms(words)]


def folders(words: str) -> list[str]:
    return [arm.folder for arm in parse_arms(words)]


@pytest.fixture
def own(here: Path) -> None:
    """Two modules with methods of the same name in the current directory."""
    for name in ("own_first", "own_second"):
        (here / f"{name}.py").write_text(OWN)


def test_the_page_names_what_methods_may_differ_in() -> None:
    text = (ROOT / "docs/comparing.md").read_text()
    section = text[
        text.index("## Methods and variants") : text.index("| `--set learning-rate=0.05`")
    ]
    assert {key for key in COMMON if not key.startswith("server-optimizer")} - set(
        re.findall(r"`([\w.-]+)`", section)
    ) == set()


@pytest.mark.parametrize("name", METHODS)
def test_labels_are_what_was_written_each_once(name: str) -> None:
    """Commas separate methods outside parentheses and quotes; equal methods are one."""
    written = (
        " fedavg ,qfedavg(q=1), fedfv(alpha=0.2, tau=3),, torchjd:upgrad,fedfv(order='random'),"
    )
    expected = [
        "FedAvg",
        "QFedAvg (q=1)",
        "FedFV (alpha=0.2, tau=3)",
        "torchjd:upgrad",
        "FedFV (order=random)",
    ]
    assert labels(written) == labels(written.split(",,")) == labels(",".join(expected)) == expected
    assert labels(
        "qfedavg,QFedAvg,qfedavg(q=5),QFedAvg (q=5.0),qfedavg( lipschitz = 1"
        " ),fedavg(proximal-mu=0)"
    ) == ["QFedAvg", "FedAvg (proximal-mu=0)"]
    (arm,) = parse_arms(name)
    assert parse(arm.label).is_same(arm), name
    assert parse(name.upper()).is_same(arm), name


@pytest.mark.parametrize(
    ("words", "config", "folder"),
    [
        ("fedavgn(server_lr=2, proximal_mu=1)", {"fedavgn.server-lr": 2.0, "proximal-mu": 1.0}, ""),
        ("fedavg(learning-rate=0.05)", {"learning-rate": 0.05}, "fedavg-learning-rate=0.05"),
        (
            "qfedavg(learning_rate=0.2,local-epochs=3,q=1)",
            {"qfedavg.q": 1.0, "local-epochs": 3, "learning-rate": 0.2},
            "qfedavg-q=1-local-epochs=3-learning-rate=0.2",
        ),
        (
            "fedavg(optimizer=adamw, learning-rate=0.01)",
            {"optimizer": "adamw", "learning-rate": 0.01},
            "",
        ),
        ("fedavg(schedule=cosine, warmup=2)", {"schedule": "cosine", "warmup": 2}, ""),
        ("torchjd:upgrad", {}, "torchjd-upgrad"),
        ("term(tilt=-1)", {"term.tilt": -1.0}, "term-tilt=-1"),
    ],
)
def test_parameters_have_their_type_and_name_the_folder(
    words: str, config: object, folder: str
) -> None:
    arm = parse(words)
    assert arm.settings == config
    assert [*map(type, arm.settings.values())] == [type(config[key]) for key in arm.settings]
    assert arm.folder == (folder or arm.folder)
    Settings.of(arm.config)


WRONG = {
    "qfedavg(r=1)": "no parameter r; there are q, lipschitz",
    "fedavg(q=1)": "no parameter q",
    "qfedavg(q=much)": "qfedavg.q = 'much'",
    "fedfv(tau=1.5)": "fedfv.tau = 1.5",
    "fedavg(proximal-mu=much)": "proximal-mu = 'much'",
    "qfedavg(q=1,q=2)": "q is given twice",
    "qfedavg(q)": "'q'",
    "qfedavg(q=1,2)": "--grid q=1,2",
    "qfedavg(q=)": "'q='",
    "qfedavg(q=1": "a parenthesis or quote is open",
    "qfedavg)q=1(": "a parenthesis or quote is open",
    "fedfv(order='random)": "a parenthesis or quote is open",
    "(q=1)": "method = '(q=1)': write one method",
    "fedavg fedfv": "method = 'fedavg fedfv': write one method",
    "fedavg(fraction=0.5)": "--set fraction",
    "fedavg(learning-rate=0)": "learning-rate = 0",
    "fedfvv": "did you mean FedFV?",
    " , ": "' , ' names no method",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items())
def test_a_mistake_is_told_in_one_line_that_names_it(words: str, message: str) -> None:
    with pytest.raises(FairbloomError, match=re.escape(message)) as raised:
        parse_arms(words)
    assert "\n" not in str(raised.value)
    with pytest.raises(FairbloomError, match=re.escape("qfedavg.q is given twice")):
        parse_arms("fedavg,qfedavg(q=1)", {"qfedavg.q": 1.0})
    assert len(parse_arms("fedavg,qfedavg(q=1)", {"qfedavg.lipschitz": 2.0})) == 2


def test_the_name_of_a_run_folder_depends_on_its_arm_alone() -> None:
    assert (
        folders("fedfv(tau=3,alpha=0.2)")
        == folders("fedavg,fedfv(tau=2),fedfv(alpha=0.2,tau=3)")[2:]
    )


@pytest.mark.usefixtures("own")
def test_any_arm_has_a_folder_name_of_its_own_for_any_system(subtests: pytest.Subtests) -> None:
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
        "'a'",
    ]
    written = [f'own_first:Mine(name="{value}")' for value in values]
    written += [
        "own_first:Mine",
        "own_first:mine",
        "own_second:Mine",
        "own_first:Mine(share=1,name=b)",
    ]
    found = folders(",".join(written))
    # name="a" is the default
    assert len({name.casefold() for name in found}) == len(found) == len(written) - 1
    for name in found:
        with subtests.test(name=name):
            assert re.fullmatch(r"[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]{1,149}", name)


@pytest.mark.usefixtures("own")
def test_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    both = "fedavg,own_first:Mine(share=0.3),own_second:Mine(share=0.3)"
    assert labels(both)[1:] == ["own_first:Mine (share=0.3)", "own_second:Mine (share=0.3)"]
    assert labels("fedavg,own_first:Mine(share=0.3)")[1] == "Mine (share=0.3)"


@pytest.mark.parametrize(
    ("name", "words", "label"),
    [
        ("", "fedfv,fedavg(proximal-mu=1),fedavg", "FedAvg"),
        ("", "fedfv,fedavg(proximal-mu=1)", "FedAvg (proximal-mu=1)"),
        ("", "fedfv,term", "FedFV"),
        *(
            (name, "fedavg,qfedavg(q=2),qfedavg(q=1)", "QFedAvg (q=1)")
            for name in (
                "qfedavg(q=1)",
                "QFedAvg (q=1)",
                "qfedavg (Q=1)",
                "qfedavg(q=1.0, lipschitz=1)",
            )
        ),
    ],
)
def test_the_baseline_is_fedavg_or_the_first_or_as_named(name: str, words: str, label: str) -> None:
    assert baseline_of(name, parse_arms(words)) == label
    with pytest.raises(
        FairbloomError,
        match=re.escape("'qfedavg' is not among the methods: there are FedAvg, QFed"),
    ):
        baseline_of("qfedavg", parse_arms("fedavg,qfedavg(q=1)"))


def test_a_run_takes_one_method_with_parameters_in_parentheses() -> None:
    expected = {"method": "fedfv", "fedfv.alpha": 0.2}
    assert settings_of_method("FedFV(alpha=0.2)", {"seed": 3}) == expected
    assert settings_of_method("fedfv", {"fedfv.alpha": 0.2}) == {"method": "fedfv"}
    assert settings_of_method(None, {"method": "fedfv"}) == {}
    assert Settings.of(expected).strategy().alpha == 0.2  # type: ignore[attr-defined]
    with pytest.raises(FairbloomError, match="'fedavg,fedfv': a run has one method"):
        settings_of_method("fedavg,fedfv", {})
    with pytest.raises(FairbloomError, match="alpha is given twice"):
        settings_of_method("fedfv(alpha=0.2)", {"fedfv.alpha": 0.3})
