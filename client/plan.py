"""The work of a round by a run's settings and the server's terms, for all clients and for one."""

from dataclasses import replace

from fairbloom.errors import ReportableError
from fairbloom.protocol.settings import RunSettings
from fairbloom.protocol.streams import generator
from fairbloom.protocol.terms import Terms

from .rules.registry import Rules, rules_of, transform_of
from .work import LocalWork, batch_order, draws_seed, run_work


def global_work(settings: RunSettings, terms: Terms, rules: Rules | None = None) -> LocalWork:
    """Return the work on the global model by settings, terms and rules, the same for any client."""
    chosen = rules_of(settings, terms) if rules is None else rules
    work = run_work(settings, terms.server_round)
    for rule in chosen:
        work = rule.replace_steps(work)
    if not chosen:
        return work
    return replace(work, pull=sum(rule.pull() for rule in chosen), transform=transform_of(chosen))


def personal_works(settings: RunSettings, terms: Terms, rules: Rules) -> list[LocalWork]:
    """Return the work on models of the clients' own, the same for all clients."""
    return [
        rule.after(run_work(settings, terms.server_round))
        for rule in rules
        if "after" in rule.hooks()
    ]


def work_of_client(
    work: LocalWork,
    settings: RunSettings,
    terms: Terms,
    client: str,
    training: str = "",
    order: int | str | None = None,
) -> LocalWork:
    """Return the work of one client, in its own order, with fewer epochs for a straggler.

    `order` is the seed of the order and of the draws; None: the run's.
    """
    number = terms.server_round
    seed = settings.seed if order is None else order
    return replace(
        work,
        epochs=work.epochs if work.in_full else epochs_in_time(settings, number, client),
        random=batch_order(seed, number, client, training),
        draws=draws_seed(seed, number, client, training),
    )


def epochs_in_time(settings: RunSettings, number: int, client: str) -> int:
    """Return the number of epochs that this client completes in round `number`.

    Raise ReportableError if it is a straggler, and such clients are dropped.

    Source: Li et al., MLSys 2020 (FedProx), section 5.2: systems heterogeneity.
    """
    epochs = settings.local_epochs
    if settings.stragglers == 0.0:
        return epochs
    random = generator(settings.seed, "stragglers", number, client)
    if random.random() >= settings.stragglers:
        return epochs
    if settings.drop_stragglers:
        raise ReportableError(
            f"{client} is a straggler in round {number}, and drop-stragglers is on"
        )
    return int(random.integers(1, epochs + 1))
