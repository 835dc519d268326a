"""Training by Opacus, which wraps the plain model inside the function; its noise must not be
seeded."""

from digits_app import add_handlers, net, test_fn
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from fairbloom.client.fair import fair


def train_fn(model, loader):
    private, optimizer, batches = PrivacyEngine().make_private(
        module=model,
        optimizer=SGD(model.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    private.train()
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(private(x), y).backward()
        optimizer.step()


app = fair(train_fn, test_fn, seeded=False)
add_handlers(app, net)
