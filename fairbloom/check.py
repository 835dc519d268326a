"""Checks of your own methods, for a test of your project.

With pytest, for example::

    from fairbloom.check import check_method

    def test_my_method() -> None:
        check_method(MyMethod)
"""

from fairbloom.checks.method import check_method as check_method
from fairbloom.checks.report import CheckFailedError as CheckFailedError
