"""What is given as a data frame."""

from fairbloom.errors import FairbloomError
from fairbloom.text import kind_of


def check_frame(name: str, frame: object) -> None:
    """Raise FairbloomError, which calls the value `name`, unless it is a data frame of pandas."""
    import pandas  # imported late: it takes a second

    if not isinstance(frame, pandas.DataFrame):
        maker = "its to_pandas()" if hasattr(frame, "to_pandas") else "pandas.DataFrame(…)"
        raise FairbloomError(
            f"{name} is {kind_of(frame)}, not a data frame of pandas: {maker} makes one"
        )
