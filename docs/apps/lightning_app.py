"""Training by Lightning."""

import pytorch_lightning as lightning
from digits_app import add_handlers, net, test_fn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from fairbloom.client.fair import fair


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        return cross_entropy(self(x), y)

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.5)


def train_fn(model, loader):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet).fit(model, loader)


app = fair(train_fn, test_fn)
add_handlers(app, Lit)
