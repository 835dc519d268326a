"""The built-in networks: small ones, and the networks of papers.

Each is built for the shape of an example and a number of outputs. A paper's network has the
paper's number of parameters for images of the paper's size; for other sizes the first linear layer
has another width. A line "Departures" lists differences from the code behind the paper's numbers.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

from fairbloom.errors import FairbloomError

Shape = tuple[int, ...]

# The dimensions of an image: channels, height and width.
IMAGE = 3

# Groups of every GroupNorm, as in the federated ResNet-18 of FedDyn's code (ICLR 2021).
GROUPS = 2


# For examples of any shape ------------------------------------------------------------------------


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """Return multinomial logistic regression; for one output linear regression.

    FedMGDA+ and q-FFL use it for Adult: 200 parameters for 99 inputs and two classes.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs))


def softmax(shape: Shape, outputs: int) -> nn.Module:
    """Return FedFV's model of three classes of Fashion-MNIST (IJCAI 2021, Table 3).

    It has 2,355 parameters. It is linear, its bias begins at 0 and its weights at U(±1/√inputs),
    and it returns the softmax. The cross-entropy of a task takes the softmax a second time, and the
    published numbers come from this double softmax: its loss for k classes is always between
    ln(1 + (k − 1)/e) and ln(e + k − 1), even if the model is certain.
    """
    linear = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear, nn.Softmax(dim=-1))


def mlp(shape: Shape, outputs: int) -> nn.Module:
    """Return a perceptron with two hidden layers of 200 units.

    It has 199,210 parameters on MNIST, 656,810 on CIFAR-10.
    """
    return nn.Sequential(nn.Flatten(), *_perceptron(math.prod(shape), 200, 200, outputs))


def _perceptron(*widths: int) -> Sequence[nn.Module]:
    """Return linear layers between these widths, with a ReLU between two layers."""
    return [module for pair in pairwise(widths) for module in (nn.ReLU(), nn.Linear(*pair))][1:]


def mlp_softmax(shape: Shape, outputs: int) -> nn.Module:
    """Return FedFV's model of CIFAR-10 (IJCAI 2021, Table 2): `mlp` and the softmax of its outputs.

    It has 656,810 parameters. The cross-entropy of a task takes the softmax a second time, as with
    `softmax`. The paper's code does so, too: the training losses recorded with the published runs
    of FedAvg, never below 1.84, come from a double softmax.
    """
    return nn.Sequential(*mlp(shape, outputs).children(), nn.Softmax(dim=-1))


# For images ---------------------------------------------------------------------------------------


def cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return two convolutions of 16 and 32 channels, each with pooling, and a linear layer.

    It has 20,490 parameters on MNIST, and accepts images from 4×4 pixels.
    """
    channels, height, width = _image("cnn", shape, 4)
    return nn.Sequential(
        *_pooled_convolution(channels, 16, 3, padding=1),
        *_pooled_convolution(16, 32, 3, padding=1),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), outputs),
    )


def _pooled_convolution(
    before: int, after: int, width: int, padding: int = 0
) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, width, padding=padding), nn.ReLU(), nn.MaxPool2d(2)


def mnist_cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return the CNN of FedAvg's paper (AISTATS 2017) for MNIST.

    It has 1,663,370 parameters on 28×28 pixels and ten classes, and accepts images from 4×4 pixels.
    """
    return _two_convolutions("mnist-cnn", shape, outputs, hidden=512)


def mnist_cnn_softmax(shape: Shape, outputs: int) -> nn.Module:
    """Return FedFV's CNN for MNIST (IJCAI 2021, Figure 2): its outputs are a softmax.

    It has 582,026 parameters on 28×28 pixels and ten classes, and accepts images from 16×16 pixels.
    There are two convolutions without activations, and an activation before the softmax; the
    cross-entropy of a task takes the softmax a second time. The paper's code has all that.

    That code has 62 outputs, of which MNIST uses ten: `mnist.model-outputs = 62`.
    """
    channels, height, width = _image("mnist-cnn-softmax", shape, 16)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_perceptron(64 * _left(height) * _left(width), 512, outputs),
        nn.ReLU(),
        nn.Softmax(dim=-1),
    )


def femnist_cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return LEAF's CNN for FEMNIST (2018): 6,603,710 parameters on 28×28 pixels and 62 classes.

    It is `mnist-cnn` with 2,048 hidden units, and accepts images from 4×4 pixels. q-FFL uses it
    for Omniglot.
    """
    return _two_convolutions("femnist-cnn", shape, outputs, hidden=2048)


def _two_convolutions(name: str, shape: Shape, outputs: int, hidden: int) -> nn.Module:
    """Return two padded 5×5 convolutions, 32 and 64 channels, with pooling, and a hidden layer."""
    channels, height, width = _image(name, shape, 4)
    return nn.Sequential(
        *_pooled_convolution(channels, 32, 5, padding=2),
        *_pooled_convolution(32, 64, 5, padding=2),
        nn.Flatten(),
        *_perceptron(64 * (height // 4) * (width // 4), hidden, outputs),
    )


def femnist_cnn_small(shape: Shape, outputs: int) -> nn.Module:
    """Return FedMGDA+'s CNN for FEMNIST (Table 4): 1,206,590 parameters, with dropout.

    It is the one of Reddi et al., Adaptive Federated Optimization, ICLR 2021, and accepts images
    from 6×6 pixels. Departure: all hidden layers have ReLU, as in Reddi et al.; Table 4 prints an
    activation for the second convolution only.
    """
    channels, height, width = _image("femnist-cnn-small", shape, 6)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        *_pooled_convolution(32, 64, 3),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, outputs),
    )


def fashion_cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return FedMGDA+'s CNN for Fashion-MNIST (Table 3): 21,840 parameters, with dropout.

    It is PyTorch's first example for MNIST, and accepts images from 16×16 pixels.
    """
    channels, height, width = _image("fashion-cnn", shape, 16)
    return nn.Sequential(
        *_pooled_convolution(channels, 10, 5),
        nn.Conv2d(10, 20, 5),
        nn.Dropout2d(0.5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * _left(height) * _left(width), 50),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(50, outputs),
    )


def cifar_cnn(shape: Shape, outputs: int) -> nn.Module:
    """Return FedMGDA+'s CNN for CIFAR-10.

    It has 797,962 parameters on coloured images of 32×32 pixels and ten classes, and accepts images
    from 16×16 pixels. Departure: without LocalResponseNorm(2) around the first pooling, which has
    no parameters, makes a step 1.4 to 2 times as long, and changed outputs by less than 0.1 % after
    3,000 images of Fashion-MNIST.
    """
    channels, height, width = _image("cifar-cnn", shape, 16)
    return nn.Sequential(
        *_pooled_convolution(channels, 64, 5),
        *_pooled_convolution(64, 64, 5),
        nn.Flatten(),
        *_perceptron(64 * _left(height) * _left(width), 384, 192, outputs),
    )


class Block(nn.Module):
    """A residual block of two 3×3 convolutions with GroupNorm."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(GROUPS, after)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's features."""
        return relu(self.body(images) + self.shortcut(images))


def resnet18_gn(shape: Shape, outputs: int) -> nn.Module:
    """Return a ResNet-18 with GroupNorm for small images.

    It has 11,173,962 parameters for coloured images and ten classes. Its first convolution is 3×3
    without pooling, as usual for 32×32 pixels; it accepts images from 8×8. GroupNorm replaces
    BatchNorm because the statistics of BatchNorm differ between clients. Semi-VRed's tables are of
    a ResNet-18 with GroupNorm.

    Departures: we found no code of Semi-VRed, so that its groups and first layers are not known; we
    use two groups. FedDyn's code, with two groups as well, begins with a 7×7 convolution and
    pooling, for large images.
    """
    channels, _, _ = _image("resnet18-gn", shape, 8)
    blocks: list[nn.Module] = []
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, outputs),
    )


def _left(pixels: int) -> int:
    """Return the pixels left by two 5×5 convolutions without padding, each with pooling."""
    return ((pixels - 4) // 2 - 4) // 2


def _image(name: str, shape: Shape, least: int) -> Shape:
    """Return an image's shape; raise FairbloomError if it is not one, or smaller than `least`."""
    if len(shape) != IMAGE or min(shape[1:]) < least:
        raise FairbloomError(
            f"model = {name!r}: it takes images of at least {least}×{least} pixels, (channels,"
            f" height, width), and an example of this task has shape {shape}: logistic and mlp"
            " take it"
        )
    return shape


# For text -----------------------------------------------------------------------------------------


class NextToken(nn.Module):
    """An embedding, LSTM layers and a linear layer from the last one's units to the next token.

    It accepts lines of any length: integers of shape (n, length).
    """

    def __init__(
        self, tokens: int, embedded: int, units: int, layers: int = 1, hidden: int = 0
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, embedded)
        self.lstm = nn.LSTM(embedded, units, num_layers=layers, batch_first=True)
        self.hidden = nn.Linear(units, hidden) if hidden else nn.Identity()
        self.next = nn.Linear(hidden or units, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after the last one, shape (n, tokens)."""
        read, _ = self.lstm(self.embedding(tokens))
        following: Tensor = self.next(self.hidden(read[:, -1]))
        return following


def lstm(shape: Shape, outputs: int) -> nn.Module:
    """Return LEAF's network for Shakespeare (2018); q-FFL's code has it, too.

    An embedding of 8, two LSTM layers of 256, and the next character: 819,920 parameters for LEAF's
    80 characters. Departure: PyTorch's cells have two biases each. TensorFlow's, in both papers'
    code, have one (817,872 parameters), and add 1 to the bias of the forget gate.
    """
    return NextToken(outputs, 8, 256, layers=2)


def rnn(shape: Shape, outputs: int) -> nn.Module:
    """Return the network of next words of Reddi et al. (ICLR 2021) for StackOverflow.

    An embedding of 96, one LSTM layer of 670, and two linear layers, the first of 96 units:
    4,053,428 parameters for 10,004 words, four special ones among them. TensorFlow's cells, which
    have one bias each, make it 4,050,748. Semi-VRed's Table 3 names a network of one LSTM and two
    linear layers, without sizes.
    """
    return NextToken(outputs, 96, 670, hidden=96)
