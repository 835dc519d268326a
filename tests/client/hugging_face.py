"""A vision transformer of Hugging Face's of which the head alone travels, and apps that train it.

Tests import this module where they use it: it takes seconds.
"""

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, default_data_collator

from fairbloom.client.fair import fair


class Images(Dataset[Any]):
    """Pictures of two classes; Trainer takes rows with these names."""

    def __init__(self, client: int) -> None:
        generator = torch.Generator().manual_seed(client)
        self.labels = torch.randint(2, (12,), generator=generator)
        self.pictures = torch.randn(12, 3, 8, 8, generator=generator) + self.labels[:, None, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.pictures[index], "labels": self.labels[index]}


def vit() -> Any:
    """A vision transformer whose head alone is trained."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=2, **sizes))
    model.vit.requires_grad_(False)
    return model


def batches_of(where: Any) -> Any:
    images = Images(int(where.node_config["partition-id"]))
    return DataLoader(images, batch_size=4, collate_fn=default_data_collator)


def by_own_loop(model: nn.Module, loader: Any) -> None:
    model.train()
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    for batch in loader:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def by_trainer(model: nn.Module, loader: Any) -> None:
    quiet: dict[str, Any] = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(
        per_device_train_batch_size=4, num_train_epochs=1, learning_rate=0.05, use_cpu=True, **quiet
    )
    Trainer(model=model, args=arguments, train_dataset=loader.dataset, data_collator=default_data_collator).train()


@torch.no_grad()
def measure(model: nn.Module, loader: Any) -> dict[str, float]:
    model.eval()
    loss, right, count = 0.0, 0, 0
    for batch in loader:
        answer = model(**batch)
        loss += answer.loss.item() * len(batch["labels"])
        right += int((answer.logits.argmax(1) == batch["labels"]).sum())
        count += len(batch["labels"])
    return {"loss": loss / count, "accuracy": right / count}


def app_by(train: Callable[[nn.Module, Any], None]) -> ClientApp:
    """Return an app whose handlers receive and send the head, under its own names."""
    app = fair(train, measure, training_data=batches_of)

    def received(message: Message) -> Any:
        model = vit()
        model.classifier.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        return model

    @app.train()
    def on_train(message: Message, where: Any) -> Message:
        model = received(message)
        app.train_fn(model, batches_of(where))
        head = ArrayRecord(model.classifier.state_dict())
        return Message(RecordDict({"arrays": head, "metrics": MetricRecord({"num-examples": 12})}), reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, where: Any) -> Message:
        found = measure(received(message), batches_of(where))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 12, **found})}), reply_to=message)

    return app
