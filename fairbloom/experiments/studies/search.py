"""A search: judge arms on validation examples, then test the best of each method.

The tests are on fresh seeds.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairbloom.errors import FairbloomError, did_you_mean
from fairbloom.logs import log
from fairbloom.protocol.settings import (
    SETTINGS,
    SettingsError,
    Value,
    key_of,
    parsed,
    split_names,
)
from fairbloom.strategies import FairStrategy, find_method
from fairbloom.strategies.named import (
    find_key,
    format_value,
    method_parameters,
    owner_of,
    short_key,
)
from fairbloom.strategies.strategy import Tries

from ..apps import App
from ..arms import (
    METHODS as DEFAULT_METHODS,
    Arm,
    Named,
    label_arms,
    make_arm,
    parse_arms,
)
from ..results.measures import AGAINST_BASELINE, GAP
from ..results.presentation import write_report
from ..results.run import REPORT
from ..results.search import ArmScore, Search, choose, read_search
from ..study import SearchOutcome, Study
from .compare import OPTIONS, prepare, tables_of
from .progress import StudyBar
from .running import carry_out, check_measures, write_tables

# The default share of each client's examples that chooses arms.
VALIDATION_SHARE = 0.2

# The first fresh seed is this far after the first seed of the search.
FRESH_FROM = 1000

# The values to try of each setting.
Grid = Mapping[str, Sequence[Value]]

# Settings that change the examples or the score that judges arms, so that arms with
# different values could not be compared.
OTHER_EXAMPLES = {
    "task",
    "data-dir",
    "clients",
    "partition",
    "pooled",
    "test-share",
    "validation-share",
    "held-out-clients",
    "score",
} | {key for key, setting in SETTINGS.items() if setting.partitions}


# The arms -----------------------------------------------------------------------------------------


def arms_of(
    words: Named | Iterable[Named],
    grid: Grid,
    baseline: Named,
    shared: Mapping[str, Value],
    app: App | None = None,
) -> list[Arm]:
    """Return the arms of a search: each method at each point of the grid, and the baseline's.

    Methods by default that cannot be run are left out. A method tries the axes of the grid that are
    its own or common to all methods. A method that is written without parameters and has no axis of
    its own tries the values that it declares in `tries`, except those that change nothing in the
    rounds. Runs of an app also try values of its run config.
    """
    named = parse_arms(words, shared)
    (base,) = parse_arms([baseline], shared)
    if not any(base.method == arm.method for arm in named):
        named.append(base)
    used: set[str] = set()
    arms = list[Arm]()
    plan = Study("search", [], [], settings=shared, app=app)
    for arm in named:
        tried = _axes(arm, grid, app)
        used |= tried.keys()
        axes = dict(tried.values())
        own = bool(arm.settings) or any(key in method_parameters(arm.method) for key in axes)
        starts: Sequence[Mapping[str, Value]] = [arm.settings] if own else _tries(arm, shared)
        for start, values in itertools.product(starts, itertools.product(*axes.values())):
            point = make_arm(arm.method, {**start, **dict(zip(axes, values, strict=True))})
            if any(point.is_same(other) for other in arms):
                continue
            try:
                run = plan.planned(point, 0, Path())
                strategy = run.strategy()
            except SettingsError as error:
                if words != DEFAULT_METHODS or arm.method == base.method:
                    raise
                log.warning("%s is left out: %s", point.label, error)
                continue
            if own or not strategy.find_idle(run.num_rounds):
                has_personal = strategy.terms(1).has_personal_models
                arms.append(replace(point, evaluated="personal" if has_personal else "global"))
    unused = [name for name in grid if name not in used]
    if unused:
        raise SettingsError(_explain_unused(unused[0], named, _checks(app)))
    if len(arms) < 2:
        raise SettingsError(
            f"there is nothing to choose from but {arms[0].label}: name more --methods, or give"
            " values by --grid, as in alpha=0,0.1,0.5"
        )
    return label_arms(arms)


def parse_grid(words: Iterable[str]) -> dict[str, list[Value]]:
    """Return the settings and values of texts such as alpha=0,0.1,0.5.

    Raise SettingsError for a text of another form.
    """
    grid: dict[str, list[Value]] = {}
    for text in [words] if isinstance(words, str) else words:
        key, equals, listed = (part.strip() for part in text.partition("="))
        if not equals or not key or not all(word.strip() for word in listed.split(",")):
            raise SettingsError(
                f"grid = {text!r}: write it as KEY=VALUE,VALUE, as in alpha=0,0.1,0.5"
            )
        if key in grid:
            raise SettingsError(
                f"grid: {key} is there twice: give all its values at once, as in {key}=0,0.1,0.5"
            )
        grid[key] = [parsed(word) for word in split_names(listed)]
    return grid


def _axes(arm: Arm, grid: Grid, app: App | None) -> dict[str, tuple[str, list[Value]]]:
    """Return the run-config keys and values that an arm tries, by their names in the grid.

    Settings that the arm does not have, or sets itself, are left out. Raise SettingsError for an
    impossible value, or one given twice.
    """
    own = method_parameters(arm.method)
    found = dict[str, tuple[str, list[Value]]]()
    known = _checks(app)
    known |= {key: parameter.checked for key, parameter in own.items()}
    checks = {
        key: check
        for key, check in known.items()
        if key not in OTHER_EXAMPLES and key not in OPTIONS
    }
    for name, values in grid.items():
        key = find_key(name, own) or name
        if key not in checks:
            key = key_of(name)
        if key not in checks or key in arm.settings:
            continue
        checked = [checks[key](value) for value in values]
        twice = [value for value in checked if checked.count(value) > 1]
        if twice:
            raise SettingsError(
                f"grid: {key} = {format_value(twice[0])} is there twice: give each value once"
            )
        found[name] = key, checked
    return found


def _checks(app: App | None) -> dict[str, Callable[[Value], Value]]:
    """Return what a grid may vary in all methods, each with the function that checks a value."""
    if app is not None:
        return app.checks()
    return {key: setting.checked for key, setting in SETTINGS.items()}


def _explain_unused(name: str, named: Sequence[Arm], there: Iterable[str]) -> str:
    """Return why no method tries the values of a setting; `there` are those that runs have."""
    key = key_of(name)
    if key in OTHER_EXAMPLES:
        return (
            f"grid: arms would be judged by other examples with other values of {key}: make a"
            " search for each"
        )
    if key in OPTIONS:
        return f"grid: a search sets {key} run by run: give {OPTIONS[key]} instead"
    if key in there:
        return f"grid: {key} is given twice, here and by the methods: give it in one place"
    parameters = [short_key(key) for arm in named for key in method_parameters(arm.method)]
    methods = ", ".join(dict.fromkeys(arm.label for arm in named))
    return (
        f"grid: {name} is not a parameter of {methods}:"
        f" {did_you_mean(name, [*parameters, *there])}leave it out"
    )


def _tries(arm: Arm, shared: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Return the combinations of parameters that a method declares to try.

    Parameters in the shared settings are not varied.
    """
    declared: Tries = vars(find_method(arm.method)).get("tries", FairStrategy.tries)
    owner = owner_of(arm.method)
    axes = {f"{owner}.{key_of(name)}": values for name, values in declared.items()}
    axes = {key: values for key, values in axes.items() if key not in shared}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# The runs -----------------------------------------------------------------------------------------


def search_arms(study: Study, out: Path, jobs: int, bar: StudyBar) -> Search:
    """Run the missing runs of a search, and write its tables and report into `out`.

    Errors that can be known before are raised before any run starts.
    """
    out = out.absolute()
    study = _prepare_search(study, out)
    count = len(study.runs(out))
    bar.expect(count)
    with carry_out(study, out, jobs, bar) as work:
        work.run(study.runs(out), some=True)
        study = replace(study, failed=work.failed)
        best = choose_arms(read_search(out, study))
        fresh = [study.seeds[0] + FRESH_FROM + k for k in range(study.tests or len(study.seeds))]
        study = replace(study, found=SearchOutcome(best, fresh))
        study.write(out)
        runs = study.of(best, fresh).runs(out)
        bar.expect(count + len(runs))
        work.run(runs)
        study = replace(study, failed=work.failed)
        study.write(out)
        search = read_search(out, study)
        if search.comparison is not None:
            write_tables(out, tables_of(search.comparison))
        write_report(search, out / REPORT)
        return search


def _prepare_search(study: Study, out: Path) -> Study:
    """Return a study with one score; raise SettingsError for a fault."""
    if study.criterion in AGAINST_BASELINE:
        raise SettingsError(
            f"criterion = {study.criterion!r} compares with the baseline, so that it cannot choose"
            " for the baseline itself: take another measure, such as worst_10"
        )
    if study.app is not None and study.criterion.startswith(GAP):
        raise SettingsError(
            f"criterion = {study.criterion!r}: an app's runs have no groups of examples: take a"
            " measure over the clients, such as worst_10"
        )
    if study.settings.get("validation-share") == 0:
        raise SettingsError(
            "validation-share = 0: a search chooses by validation examples, never by test"
            f" examples: set validation-share = {VALIDATION_SHARE:g}, or leave it out"
        )
    study = prepare(study, out)
    if study.app is None:
        first = study.run(study.arms[0], study.seeds[0], out)
        check_measures([study.criterion], first, "criterion")
    return study


def choose_arms(search: Search) -> list[str]:
    """Return the labels of each method's best arm, also the baseline's, best of all first.

    Methods without an arm that `mean_within` allows are left out, but for the baseline, which then
    comes last.
    """
    measure = search.measure
    score = search.score
    near = search.near
    methods: dict[str, list[ArmScore]] = {search.study.baseline: []}
    for arm_score in near:
        methods.setdefault(arm_score.arm.method, []).append(arm_score)
    base = choose(measure, score, methods.pop(search.study.baseline))
    if base is None:
        candidates = [
            arm_score
            for arm_score in search.judged
            if arm_score.arm.method == search.study.baseline
        ]
        base = choose(measure, score, candidates)
    if base is None:
        faults = [f": {arm_score.fault}" for arm_score in candidates if arm_score.fault]
        raise FairbloomError(
            f"no arm of the baseline can be judged{''.join(faults[:1])}: choose another --baseline"
        )
    others = [choose(measure, score, among) for among in methods.values()]
    best = [base, *(other for other in others if other is not None and other is not base)]
    best.sort(
        key=lambda arm_score: (
            arm_score not in near,
            measure.better(0.0, arm_score.mean, score),
        )
    )
    return [arm_score.arm.label for arm_score in best]
