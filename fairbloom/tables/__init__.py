"""The tables of many sites, and the schema that describes them all.

A hospital's export is a file of its own: with its own delimiter, decimal mark, spellings and units.
This package reads such files into columns of one meaning, or refuses them by name.

- `Schema` (schema.py) is the data dictionary that all sites agree on: columns, categories, limits,
  groups, and what to do with missing values.
- `read` (reading.py) reads one CSV, Parquet or Excel file. Marks, cells and folders have a module
  each: marks.py, cells.py and folders.py.
- `infer` (inference.py) drafts a schema from the files of all sites, for a person to correct.
- `EncodedFile` (encoding.py) has a file's columns by the schema, and all of its faults.
- `describe` (description.py) lists clients, faults, columns and remarks, as `fairbloom data` prints
  them; warnings.py and duplicates.py find the remarks.
- `DataError` (reasons.py) is a fault of a file. Its message is for the owner of the file; a server
  gets a sentence of reasons.py, which quotes nothing.

preprocessing.py turns columns into a model's inputs, in training and in prediction alike. Nothing
here knows clients that train, tasks, or messages: of Fairbloom, it imports only `system`, `errors`,
`text` and `logs`.
"""

from .description import describe as describe, find_determining as find_determining
from .encoding import ClientTable as ClientTable, EncodedFile as EncodedFile
from .inference import infer as infer
from .reading import read as read
from .reasons import DataError as DataError
from .schema import Schema as Schema
