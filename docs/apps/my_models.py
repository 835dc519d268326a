"""A transformer of Hugging Face's, and the same with adapters of peft's."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

SIZES = {"vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 192, "max_position_embeddings": 32}
DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def whole(outputs: int) -> torch.nn.Module:
    """A small transformer, all of which is trained."""
    return BertForSequenceClassification(BertConfig(num_labels=outputs, **SIZES, **DROPOUT))


def adapter(outputs: int) -> torch.nn.Module:
    """The same, of which only adapters in the attention layers, and the classifier, are trained."""
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS, r=20, lora_alpha=40, target_modules=["query", "value"]
    )
    return get_peft_model(whole(outputs), config)
