"""A partition by flwr-datasets."""

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner


def deal(labels: np.ndarray, clients: int, random: np.random.Generator) -> list[np.ndarray]:
    """Deal as flwr-datasets does."""
    partitioner = DirichletPartitioner(clients, "label", alpha=0.5, seed=int(random.integers(1000)))
    partitioner.dataset = Dataset.from_dict({"label": labels, "place": np.arange(len(labels))})
    return [np.array(partitioner.load_partition(client)["place"]) for client in range(clients)]
