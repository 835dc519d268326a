"""Checks of your own methods and client-side rules, for a test of your project.

With pytest, for example::

    from fairbloom.check import check_method

    def test_my_method() -> None:
        check_method(MyMethod)
"""

from fairbloom.checks.method import check_method as check_method
from fairbloom.checks.report import CheckFailedError as CheckFailedError
from fairbloom.checks.report import CheckReport as CheckReport
from fairbloom.checks.report import PropertyResult as PropertyResult
from fairbloom.checks.report import Status as Status
from fairbloom.checks.rule import check_rule as check_rule
