"""The tables of many sites, and the schema that describes them all.

A hospital's export is a file of its own: with its own delimiter, decimal mark, spellings and units.
This package reads such files into columns of one meaning, or refuses them by name.

- `Schema` (schema.py) is the data dictionary that all sites agree on: columns, categories, limits,
  groups, and what to do with missing values.
- `read` (reading.py) reads one CSV, Parquet or Excel file. Marks, cells and folders have a module
  each: marks.py, cells.py and folders.py.
- `infer` (inference.py) drafts a schema from the files of all sites, for a person to correct:
  column_laws.py says what a column suggests, and toml.py writes it.
- `EncodedFile` (encoding.py) has a file's columns by the schema, and all of its faults.
- `profile` (profiles.py) says of each column of a site what a person needs to describe it, and
  `compare` (comparison.py) who stands out among the profiles of sites, here or far away. A kind of
  `Finding` (findings.py) is a class, with its words and the lines to paste.
- `describe` (description.py) lists clients, faults, columns and remarks, as `fairbloom data` prints
  them, and `tabulate` is Table 1 of a study (table_one.py).
- `DataError` (reasons.py) is a fault of a file. Its message is for the owner of the file; a server
  gets a sentence of reasons.py, which quotes nothing.

preprocessing.py turns columns into a model's inputs, in training and in prediction alike. Nothing
here knows clients that train, tasks, or messages: of Fairbloom, it imports only `system`, `errors`,
`text` and `logs`.
"""

from .description import (
    Comparison as Comparison,
    compare_clients as compare_clients,
    describe as describe,
    tabulate as tabulate,
)
from .encoding import ClientTable as ClientTable, EncodedFile as EncodedFile
from .inference import infer as infer
from .reading import read as read
from .reasons import DataError as DataError
from .schema import Schema as Schema
from .sizes import Row as Row
from .table_one import SiteRow as SiteRow
