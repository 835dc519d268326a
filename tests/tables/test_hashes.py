"""Equal rows have the same number."""

import numpy as np

from fairbloom.tables.hashes import hash_rows


def test_rows_are_hashed_as_whole_columns() -> None:
    random = np.random.default_rng(0)
    columns = [random.normal(size=20_000) for _ in range(10)]
    columns[0][:3] = (0.0, -0.0, np.nan)
    columns[1][:3] = 1.0
    for column in columns[2:]:
        column[:3] = np.nan
    hashes = hash_rows(columns)
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(np.unique(hashes)) == 20_000 - 1
    assert (hash_rows([*columns, np.arange(20_000) % 2])[:2] != hashes[:2]).all()
