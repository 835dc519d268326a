"""The tasks that are known by name; nothing here imports PyTorch, since names are wanted without it."""

from collections.abc import Mapping
from typing import Any

from fairbloom.protocol.parameters import Choices, Parameter, Range

from .files.known import FILES
from .task import LABEL_PARTITIONS, DataFile, PictureSet, TaskInfo

ROTATED = Parameter(
    "rotated-clients",
    int,
    0,
    "Number of clients with images turned by 90 degrees",
    Range("[0, inf)"),
)

PICTURE_SETTINGS = (
    Parameter("classes", str, "", "Numbers of the classes to keep, as in '0,2,6'; by default all"),
    Parameter(
        "test",
        str,
        "merged",
        "Test images: merged holds out a share of official training and test images, train one of the "
        "training images alone, and official deals the official test images like the training images",
        Choices("merged", "train", "official"),
    ),
    Parameter(
        "standardise",
        str,
        "channel",
        "What pixels are standardised by, over the official training images: mean and deviation of a channel, or of "
        "each pixel, or none, which leaves them from 0 to 1",
        Choices("channel", "pixel", "none"),
    ),
    ROTATED,
)


WITH_TEST_SET: Mapping[str, Any] = {
    "loader": "fairbloom.tasks.datasets.pictures:load",
    "partitions": (*LABEL_PARTITIONS, "class"),
    "settings": PICTURE_SETTINGS,
    "clients": 100,
    "natural": ("class",),
    "split_by": ("test", ("merged", "train")),
}
"""What is common to all pictures with an official test set, which their last files have."""


def _idx(folder: str, address: str, *digests: str) -> tuple[DataFile, ...]:
    """Return the four files of a data set in the format of MNIST."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        DataFile(f"{folder}/raw/{part}-ubyte", md5, f"{address}/{part}-ubyte.gz")
        for part, md5 in zip(parts, digests, strict=True)
    )


def _batches(folder: str, archive: str, **digests: str) -> tuple[DataFile, ...]:
    """Return the pickled batches of CIFAR."""
    address = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return tuple(DataFile(f"{folder}/{name}", md5, address) for name, md5 in digests.items())


def _on_hub(name: str, path: str) -> DataFile:
    """Return a file of the Hugging Face hub, which may be uploaded again, so that it has no checksum."""
    return DataFile(f"{name}/{path}", "", f"https://huggingface.co/datasets/flwrlabs/{name}/resolve/main/{path}")


def _at_uci(path: str, md5: str) -> DataFile:
    """Return a file of the UCI archive."""
    return DataFile(path, md5, f"https://archive.ics.uci.edu/ml/machine-learning-databases/{path}")


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

ANIMALS_AND_VEHICLES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

PICTURES = (
    PictureSet(
        **WITH_TEST_SET,
        name="mnist",
        summary="70,000 hand-written digits of 28×28 pixels",
        source="LeCun, Cortes, Burges, 1998; from the addresses that torchvision has",
        models=("logistic", "softmax", "mlp", "cnn", "mnist-cnn", "lenet"),
        shape=(1, 28, 28),
        labels=DIGITS,
        files=_idx(
            "MNIST",
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    PictureSet(
        **WITH_TEST_SET,
        name="fashion-mnist",
        summary="70,000 pictures of clothes of 28×28 pixels",
        source="Xiao, Rasul, Vollgraf, 2017; from the addresses that torchvision has",
        models=("mlp", "logistic", "softmax", "cnn", "lenet", "mnist-cnn"),
        shape=(1, 28, 28),
        labels=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"),
        files=_idx(
            "FashionMNIST",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    PictureSet(
        **WITH_TEST_SET,
        name="cifar10",
        summary="60,000 coloured pictures of animals and vehicles of 32×32 pixels, in ten classes",
        source="Krizhevsky, 2009; from the addresses that torchvision has",
        models=("cifar-cnn", "resnet18-gn", "mlp", "mlp-softmax", "logistic", "cnn"),
        target="labels",
        shape=(3, 32, 32),
        labels=ANIMALS_AND_VEHICLES,
        files=_batches(
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            data_batch_1="c99cafc152244af753f735de768cd75f",
            data_batch_2="d4bba439e000b95fd0a9bffe97cbabec",
            data_batch_3="54ebc095f3ab1f0389bbae665268c751",
            data_batch_4="634d18415352ddfa80567beed471001a",
            data_batch_5="482c414d41f54cd18b22e5b47cb7c3cb",
            test_batch="40351d587109b95175f43aff81a1287e",
        ),
    ),
    PictureSet(
        **WITH_TEST_SET,
        name="cifar100",
        summary="60,000 coloured pictures of 32×32 pixels, in a hundred classes",
        source="Krizhevsky, 2009; from the addresses that torchvision has",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        target="fine_labels",
        shape=(3, 32, 32),
        labels=(
            *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle"),
            *("bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle"),
            *("chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur"),
            *("dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard"),
            *("lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle"),
            *("mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear"),
            *("pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon"),
            *("ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail"),
            *("snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone"),
            *("television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
            *("willow_tree", "wolf", "woman", "worm"),
        ),
        files=_batches(
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            train="16019d7e3df5f24257cddd939b257f8d",
            test="f0ef6b0ae62326f3e7ffdfab6717acfc",
        ),
    ),
    PictureSet(
        **WITH_TEST_SET,
        name="cinic10",
        summary="270,000 coloured pictures of 32×32 pixels, in the ten classes of CIFAR-10",
        source="Darlow, Crowley, Antoniou, Storkey, 2018; from the Hugging Face hub, flwrlabs/cinic10",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        target="label",
        shape=(3, 32, 32),
        labels=ANIMALS_AND_VEHICLES,
        files=tuple(  # as in the papers, validation images train
            _on_hub("cinic10", f"data/{part}-00000-of-00001.parquet") for part in ("train", "validation", "test")
        ),
    ),
)
"""What is known of the data sets of pictures with an official test set, in the order in which they are listed."""

KNOWN = (
    PictureSet(
        name="digits",
        summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
        source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
        loader="fairbloom.tasks.datasets.digits:load",
        models=("logistic", "mlp", "cnn"),
        partitions=LABEL_PARTITIONS,
        settings=(ROTATED,),
        shape=(1, 8, 8),
        labels=DIGITS,
        white=16.0,
    ),
    *PICTURES,
    TaskInfo(
        "femnist",
        summary="814,277 hand-written digits and letters of 28×28 pixels, by who has written them",
        source="LEAF: Caldas et al., 2018; from the Hugging Face hub, flwrlabs/femnist",
        loader="fairbloom.tasks.datasets.femnist:load",
        models=("femnist-cnn", "mnist-cnn", "mlp", "logistic", "cnn"),
        partitions=("writer", *LABEL_PARTITIONS),
        clients=100,
        natural=("writer",),
        files=(_on_hub("femnist", "data/train-00000-of-00001.parquet"),),
    ),
    TaskInfo(
        "adult",
        summary="48,842 people of the US census of 1994: who earns more than 50,000 dollars; 99 binary inputs",
        source="UCI Adult: Becker, Kohavi, 1996; from the UCI archive",
        loader="fairbloom.tasks.datasets.adult:load",
        models=("logistic", "mlp"),
        partitions=("phd", "education", "race", "sex", *LABEL_PARTITIONS),
        settings=(
            Parameter(
                "groups",
                str,
                "described",
                "Who the clients of partition = phd are: described takes people with and without a doctorate, and "
                "published those whom the code behind FedMGDA+'s Table 7 takes in their place",
                Choices("described", "published"),
            ),
            Parameter("group", str, "", "Columns, or categories, to report groups by, as in 'sex,race=White'"),
            Parameter("left-out", str, "", "Columns of categories that are no inputs of the model, as in 'sex,race'"),
        ),
        natural=("phd", "education", "race", "sex"),
        tests="fixed",
        files=(
            _at_uci("adult/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
            _at_uci("adult/adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
        ),
    ),
    TaskInfo(
        "heart-disease",
        summary="740 patients of four hospitals, each a client: who has a heart disease; 13 inputs",
        source="UCI Heart Disease: Janosi, Steinbrunn, Pfisterer, Detrano, 1988; from the UCI archive",
        loader="fairbloom.tasks.datasets.heart_disease:load",
        models=("logistic", "mlp"),
        partitions=("hospital",),
        settings=(
            Parameter(
                "split",
                int,
                0,
                "Random state by which a third of each hospital's patients is drawn for testing; 43 is FLamby's split, "
                "and 0 draws by the run's seed",
                Range("[0, 4294967295]"),
            ),
            Parameter("group", str, "", "What to report groups by: sex, or a number, as in 'sex,age>=60'"),
        ),
        natural=("hospital",),
        split_by=("split", (0,)),
        held_out=0.34,
        files=(
            _at_uci("heart-disease/processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
            _at_uci("heart-disease/processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
            _at_uci("heart-disease/processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
            _at_uci("heart-disease/processed.va.data", "4249d03ca7711e84f4444768c9426170"),
        ),
    ),
    TaskInfo(
        "shakespeare",
        summary="a million characters of Shakespeare's plays, by who speaks: which character is the next",
        source="Karpathy, 2015: tiny Shakespeare; from its repository",
        loader="fairbloom.tasks.datasets.shakespeare:load",
        models=("lstm",),
        partitions=("speaker",),
        natural=("speaker",),
        tests="fixed",
        files=(
            DataFile(
                "shakespeare/input.txt",
                "6fb458f1232090904fb40fe944165e91",
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            ),
        ),
    ),
    TaskInfo(
        "synthetic",
        summary="Synthetic(α, β): devices that differ in their models by α and in their inputs by β; 60 inputs; drawn "
        "by the seed, nothing to download",
        source="FedProx: Li et al., 2020, section 5.1",
        loader="fairbloom.tasks.datasets.synthetic:load",
        models=("logistic", "mlp"),
        settings=(
            Parameter("alpha", float, 1.0, "α: how much the devices' models differ", Range("[0, inf)")),
            Parameter("beta", float, 1.0, "β: how much the devices' inputs differ", Range("[0, inf)")),
            Parameter("iid", bool, False, "Whether all devices are alike; α and β have no effect then"),
        ),
        clients=30,
        tests="fresh",
    ),
    *FILES,
)
"""What is known of every task, in the order in which they are listed."""

TASKS = {info.name: info for info in KNOWN}
"""Every task by its name on the command line."""
