"""What a model card says of a model, except how it serves the clients of its run."""

from dataclasses import dataclass

from fairbloom.tasks.preprocessing import TABLE, Preprocessing

IMAGE = 3
"""The dimensions of an image."""


@dataclass(frozen=True, kw_only=True)
class DescribedModel:
    """A model, and the form in which it lies next to its card.

    `client` is "" if the model is for all clients; `preprocessing` is None if it is not known; `library` is the name of
    a library on the Hugging Face hub; `listing` is Python code that predicts.
    """

    task: str
    client: str = ""
    model: str = "last"
    preprocessing: Preprocessing | None = None
    library: str = "fairbloom"
    form: str = ""
    listing: str = ""
    checked: str = ""

    @property
    def target(self) -> str:
        """What is predicted: the column, or else the task."""
        return (self.preprocessing.target if self.preprocessing else "") or self.task

    @property
    def pipeline(self) -> str:
        """What the hub calls such a prediction; "" where it has no word, or the inputs are not known."""
        if self.preprocessing is None:
            return ""
        kind = "classification" if self.preprocessing.classes else "regression"
        if self.preprocessing.form == TABLE:
            return f"tabular-{kind}"
        return f"image-{kind}" if len(self.preprocessing.shape) == IMAGE and self.preprocessing.classes else ""
