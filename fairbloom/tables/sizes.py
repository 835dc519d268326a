"""Rows that describe clients: of many clients, the smallest, the largest and some between."""

from collections.abc import Mapping, Sequence

from fairbloom.errors import join_names

# Clients that a summary lists one by one.
MAX_CLIENTS = 20

# The clients that it shows of more, by the share of clients that are smaller.
SIZES = {
    "smallest": 0.0,
    "10 %": 0.1,
    "25 %": 0.25,
    "median": 0.5,
    "75 %": 0.75,
    "90 %": 0.9,
    "largest": 1.0,
}

Row = Mapping[str, str | int]


def summarise_clients(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of clients, or of some if there are more than MAX_CLIENTS.

    A row has the numbers of examples, `train` and `test`, or a `problem`.
    """
    if len(rows) <= MAX_CLIENTS:
        return [*rows]
    right = [row for row in rows if "problem" not in row]
    wrong = [str(row["client"]) for row in rows if "problem" in row]
    right.sort(key=lambda row: (int(row["train"]) + int(row["test"]), str(row["client"])))
    shown: list[Row] = []
    if right:
        for size, share in SIZES.items():
            shown.append({"size": size, **right[round(share * (len(right) - 1))]})
    shown.append(
        {
            "size": "all",
            "client": f"{len(right):,} clients",
            "train": sum(int(row["train"]) for row in right),
            "test": sum(int(row["test"]) for row in right),
        }
    )
    if wrong:
        shown.append(
            {
                "size": "",
                "client": join_names(wrong),
                "problem": f"{len(wrong):,} of {len(rows):,} clients have faults",
            }
        )
    return shown
