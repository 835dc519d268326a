from tests.tables.conftest import folder as folder
