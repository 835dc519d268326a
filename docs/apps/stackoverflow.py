"""Write TensorFlow Federated's HDF5 file of Stack Overflow as the Parquet that the task reads.

python stackoverflow.py stackoverflow_train.h5 stackoverflow_train.parquet; it needs h5py.
"""

import sys

import pyarrow
from pyarrow import parquet

SCHEMA = pyarrow.schema([("client_id", pyarrow.string()), ("tokens", pyarrow.string())])


def convert(examples, path, rows_at_once=100_000):
    """Write the sentences of each user: `examples` is the group of the HDF5, by users."""
    with parquet.ParquetWriter(path, SCHEMA) as writer:
        rows = []
        for user, of_user in examples.items():
            rows += [(user, text.decode()) for text in of_user["tokens"]]
            if len(rows) >= rows_at_once:
                write(writer, rows)
                rows = []
        write(writer, rows)


def write(writer, rows):
    columns = [[row[place] for row in rows] for place in range(len(SCHEMA))]
    writer.write_table(pyarrow.table(columns, schema=SCHEMA))


if __name__ == "__main__":
    import h5py

    with h5py.File(sys.argv[1]) as file:
        convert(file["examples"], sys.argv[2])
