"""Whether a federation's server works, for monitoring: it imports few libraries."""

from fairbloom.logs import print_lines

from ..fleet.federation import Federation, read_now

# A certificate that is valid for fewer days, or a smaller free share of the disk, is a fault.
FEWEST_DAYS = 14.0
SMALLEST_SHARE = 0.05


def check_health(federation: Federation) -> int:
    """Print what is wrong, a line each; return 0 (serving), 1 (down) or 2 (degraded)."""
    if not federation.is_served:
        print_lines(f"no server runs: start fairbloom server --dir {federation.path}")
        return 1
    now = read_now(federation)
    faults = [
        f"{name} holds for {days:.0f} more days: see fairbloom deploy doctor"
        for name, days in now.days.items()
        if days < FEWEST_DAYS
    ]
    if now.waiting:
        faults.append(f"run {now.run} waits for clients: {now.waiting}")
    if now.failure:
        faults.append(f"{now.failure}: the same submit continues it")
    faults += [
        f"{share:.0%} of the disk is free: make room at {place}"
        for place, share in now.free.items()
        if share < SMALLEST_SHARE
    ]
    print_lines(*faults or ["serving"])
    return 2 * bool(faults)
