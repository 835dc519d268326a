from tests.commands import forked_workers

__all__ = ["forked_workers"]
