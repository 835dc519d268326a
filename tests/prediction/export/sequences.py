"""A user's task whose model takes sequences with masks by name, and returns outputs by name."""

import torch
from torch import Tensor, nn

from fairbloom.tasks import Examples, Setup, Splits, Task

WORDS, LENGTH = 12, 6


class Pooled(nn.Module):
    """The mean of the embeddings of those words that the mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 5), nn.Linear(5, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        kept = attention_mask[:, :, None].float()
        pooled = (self.words(input_ids) * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1.0)
        return {"hidden": pooled, "logits": self.head(pooled)}


def sentences(setup: Setup) -> Task:
    """Sentences of three people."""

    def splits(client: str) -> Splits:
        random = torch.Generator().manual_seed(ord(client))
        words = torch.randint(WORDS, (30, LENGTH), generator=random)
        mask = torch.rand((30, LENGTH), generator=random) < 0.7
        inputs = {"input_ids": words, "attention_mask": mask.long()}
        train, test = (Examples(inputs, (words[:, 0] > 5).long(), rows) for rows in torch.arange(30).split([20, 10]))
        return Splits(train, test)

    def model() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.seed)
            return Pooled()

    return Task(
        clients=("a", "b", "c"),
        model=model,
        loss=nn.CrossEntropyLoss(reduction="none"),
        splits=splits,
        classes=2,
        class_names=("low", "high"),
    )
