"""What a model card says of a model, beside how it serves the clients of its run."""

from dataclasses import dataclass

from fairbloom.tasks.preprocessing import TABLE, Preprocessing

IMAGE = 3
"""An example of so many dimensions is an image."""


@dataclass(frozen=True, kw_only=True)
class DescribedModel:
    """A model, and the form in which it lies beside its card.

    Attributes
    ----------
    task
        What is learned.
    client, model
        The client whose personal model or means and deviations it has, "" for none, and which model it is: last, best
        or personal.
    preprocessing
        How data become its inputs; None where that is not known.
    library
        The library that reads it, as the Hugging Face hub calls it.
    form
        The form in which it lies beside the card, in a few words; "" where it does not.
    listing
        Lines of Python that predict with it.
    checked
        How it was checked, in a sentence.
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
