"""Write TensorFlow Federated's HDF5 of Stack Overflow as the Parquet that the task reads.

`python -m benchmarks.stackoverflow stackoverflow_train.h5 stackoverflow_train.parquet`, after
`pip install h5py`. A user's sentences stay together, in their order.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

BATCH = 100_000
"""The sentences that are written at a time."""

SENTENCES_SCHEMA = pyarrow.schema([("client_id", pyarrow.string()), ("tokens", pyarrow.string())])


def convert(examples: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write the group `examples` of the HDF5: for each user, the dataset `tokens`, of bytes."""
    with parquet.ParquetWriter(path, SENTENCES_SCHEMA) as writer:
        for rows in _batches(examples):
            users, texts = zip(*rows, strict=True)
            writer.write_table(pyarrow.table([users, texts], schema=SENTENCES_SCHEMA))


def _batches(examples: Mapping[str, Mapping[str, Any]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Yield at least BATCH sentences with their users, at the end fewer."""
    rows: list[tuple[str, str]] = []
    for user, of_user in examples.items():
        rows += [(user, text.decode()) for text in of_user["tokens"]]
        if len(rows) >= BATCH:
            yield rows
            rows = []
    if rows:
        yield rows


def main() -> None:
    """Convert a file."""
    import h5py  # not a dependency: only this conversion needs it

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("hdf5", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    with h5py.File(chosen.hdf5) as file:
        convert(file["examples"], chosen.out)


if __name__ == "__main__":
    main()
