"""Compare each state's own model of acs-income with scikit-learn's, on the same rows and inputs.

FAIRBLOOM_DATA names the folder that has the tables below `federations`. The accuracies that the
set's authors published are a third column; their split and scaling differ.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.linear_model import LogisticRegression

import fairbloom
from fairbloom.tasks import load_task

from ..tables import Row, parser_of, print_machine, print_table, read_csv
from .prepare import ACS, folder_of_tables, states_of

EPOCHS = 200


def main() -> None:
    """Train the models and print a row for each state."""
    parser = parser_of(__doc__)
    chosen = parser.parse_args()
    print_machine()
    print_table(ACS, [*compare_states(folder_of_tables())], as_csv=chosen.csv)


def compare_states(folder: Path) -> Iterator[Row]:
    """Yield a row for each state: its test rows and accuracies in percent."""
    states_of(folder)  # checks the files
    published = {
        row["dataset"]: 100.0 * float(row["accuracy"])
        for row in read_csv(folder / f"{ACS}-published.csv")
        if row["model"] == "LogisticRegression"
    }
    with TemporaryDirectory() as out:
        run = fairbloom.run(
            "csv",
            method="local",
            data_dir=folder / ACS,
            rounds=EPOCHS,
            fraction=1.0,
            score="accuracy",
            model="logistic",
            out=out,
            settings={
                "csv.target": "PINCP",
                "batch-size": 0,
                "learning-rate": 1.0,
                "evaluate-every": 0,
            },
            progress=False,
        )
        ours = run.final(model="personal")
        task = load_task(run.settings)
        for state in task.clients:
            splits = task.splits(state)
            inputs, labels = map(np.asarray, splits.train[:])
            test_inputs, test_labels = map(np.asarray, splits.test[:])
            theirs = LogisticRegression(C=1e4, max_iter=1000).fit(inputs, labels)
            yield {
                "state": state,
                "test rows": len(test_labels),
                "Local": round(ours[state], 2),
                "scikit-learn": round(100.0 * theirs.score(test_inputs, test_labels), 2),
                "published": round(published[state], 2),
            }


if __name__ == "__main__":
    main()
