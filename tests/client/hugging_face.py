"""Hugging Face's models of which a part alone travels, and apps that train them.

Tests import this module where they use it: it takes seconds.
"""

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    default_data_collator,
)

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


class Sentences(Images):
    """The same, of words."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = 2 * torch.arange(6) + 3 * self.labels[index]
        return {"input_ids": words, "labels": self.labels[index]}


SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def vit() -> nn.Module:
    """A vision transformer whose head alone is trained."""
    torch.manual_seed(1)
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_labels=2, **SIZES))
    model.vit.requires_grad_(False)
    return model


def bert() -> nn.Module:
    """A transformer with adapters."""
    torch.manual_seed(1)
    config = BertConfig(vocab_size=40, max_position_embeddings=8, num_labels=2, **SIZES)
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"])
    return get_peft_model(BertForSequenceClassification(config), lora)


def batches(dataset: Any) -> Any:
    return DataLoader(dataset, batch_size=4, collate_fn=default_data_collator)


def by_own_loop(model: nn.Module, loader: Any) -> None:
    model.train()
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.5)
    for batch in loader:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()


def by_trainer(model: nn.Module, dataset: Any) -> None:
    settings = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(
        per_device_train_batch_size=4, num_train_epochs=1, learning_rate=0.05, use_cpu=True, **settings
    )
    Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=default_data_collator).train()


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


def head_of(model: nn.Module) -> Any:
    return model.classifier.state_dict()


def load_head(model: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    model.classifier.load_state_dict(arrays)  # type: ignore[operator, union-attr]


class Case:
    """How an app makes its model, trains it, and which of its arrays travel."""

    def __init__(self, net: Any, data: Any, train: Any, sent: Any, load: Any) -> None:
        self.net, self.data, self.train, self.sent, self.load = net, data, train, sent, load

    def app(self) -> ClientApp:
        def dataset(where: Any) -> Any:
            return self.data(int(where.node_config["partition-id"]))

        app = fair(self.train, measure, training_data=lambda where: batches(dataset(where)))

        def received(message: Message) -> Any:
            model = self.net()
            self.load(model, message.content.array_records["arrays"].to_torch_state_dict())
            return model

        @app.train()
        def on_train(message: Message, where: Any) -> Message:
            model, data = received(message), dataset(where)
            app.train_fn(model, batches(data) if self.train is by_own_loop else data)
            content = {"arrays": ArrayRecord(dict(self.sent(model))), "metrics": MetricRecord({"num-examples": 12})}
            return Message(RecordDict(content), reply_to=message)

        @app.evaluate()
        def on_evaluate(message: Message, where: Any) -> Message:
            found = measure(received(message), batches(dataset(where)))
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 12, **found})}), reply_to=message)

        return app


ADAPTERS = (get_peft_model_state_dict, set_peft_model_state_dict)
CASES = {
    "a ViT's head": Case(vit, Images, by_own_loop, head_of, load_head),
    "a ViT's head by Trainer": Case(vit, Images, by_trainer, head_of, load_head),
    "peft, own loop": Case(bert, Sentences, by_own_loop, *ADAPTERS),
    "peft by Trainer": Case(bert, Sentences, by_trainer, *ADAPTERS),
}
