"""The tasks that are known by name; nothing here imports PyTorch, since names are wanted without it."""

from .task import DataFile, TaskInfo, TaskSetting

SHIFTS = (
    TaskSetting("rotated-clients", 0, "Number of clients whose images are turned by 90 degrees", lowest=0),
    TaskSetting("noisy-clients", 0, "Number of clients whose images have noise of half the range of grey", lowest=0),
    TaskSetting("dimmed-clients", 0, "Number of clients whose images have a quarter of the brightness", lowest=0),
)
"""How the images of some clients differ from the others': the same classes through another camera."""

IMAGES = (
    TaskSetting("classes", "", "Classes that are kept, by their numbers, as '0,2,6'; by default all"),
    TaskSetting(
        "test",
        "merged",
        "What clients are tested on: merged holds out a share of official training and test images, train one of the "
        "training images alone, and official deals the official test images like the training images",
        choices=("merged", "train", "official"),
    ),
    TaskSetting(
        "standardise",
        "channel",
        "What pixels are standardised by, over the official training images: mean and deviation of a channel, or of "
        "each pixel, or none, which leaves them from 0 to 1",
        choices=("channel", "pixel", "none"),
    ),
    *SHIFTS,
)
"""What tasks of images, with an official test set, have to set."""

DEALT = ("shards", "classes", "class-groups", "dirichlet", "sizes", "iid")
"""The partitions that deal examples with labels to clients."""


def _idx(folder: str, *digests: str) -> tuple[DataFile, ...]:
    """Return the four files of a data set in the format of MNIST."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(DataFile(f"{folder}/raw/{part}-ubyte", md5) for part, md5 in zip(parts, digests, strict=True))


def _files(folder: str, **digests: str) -> tuple[DataFile, ...]:
    """Return the files of a folder, each with its checksum."""
    return tuple(DataFile(f"{folder}/{name}", md5) for name, md5 in digests.items())


def _parquet(folder: str, *parts: str) -> tuple[DataFile, ...]:
    """Return the files of a data set of the Hugging Face hub; it may be uploaded anew, so they have no checksums."""
    return tuple(DataFile(f"{folder}/data/{part}-00000-of-00001.parquet", "") for part in parts)


def _pictures(
    name: str, *, summary: str, source: str, models: tuple[str, ...], files: tuple[DataFile, ...], classes: int = 10
) -> TaskInfo:
    """Return what is known of a data set of pictures with an official test set, in a module of its own."""
    return TaskInfo(
        name,
        summary=summary,
        source=source,
        loader=f"{__package__}.datasets.{name.replace('-', '_')}:load",
        models=models,
        partitions=(*DEALT, "class"),
        classes=classes,
        settings=IMAGES,
        clients=100,
        natural=("class",),
        files=files,
    )


KNOWN = (
    TaskInfo(
        "digits",
        summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
        source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
        loader="fairbloom.tasks.datasets.digits:load",
        models=("logistic", "mlp", "cnn"),
        partitions=DEALT,
        classes=10,
        settings=SHIFTS,
    ),
    _pictures(
        "mnist",
        summary="70,000 hand-written digits of 28×28 pixels",
        source="LeCun, Cortes, Burges, 1998; through torchvision",
        models=("logistic", "softmax", "mlp", "cnn", "mnist-cnn", "lenet", "lenet-dropout"),
        files=_idx(
            "MNIST",
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    _pictures(
        "fashion-mnist",
        summary="70,000 pictures of clothes of 28×28 pixels",
        source="Xiao, Rasul, Vollgraf, 2017; through torchvision",
        models=("mlp", "logistic", "softmax", "cnn", "lenet", "lenet-dropout", "mnist-cnn"),
        files=_idx(
            "FashionMNIST",
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    TaskInfo(
        "adult",
        summary="48,842 people of the US census of 1994: who earns more than 50,000 dollars; 99 binary inputs",
        source="UCI Adult: Becker, Kohavi, 1996; from the UCI archive",
        loader="fairbloom.tasks.datasets.adult:load",
        models=("logistic", "mlp"),
        partitions=("phd", "education", "race", "sex", *DEALT),
        classes=2,
        settings=(
            TaskSetting(
                "groups",
                "described",
                "Who the clients of partition = phd are: described takes people with and without a doctorate, and "
                "published those whom the code behind FedMGDA+'s Table 7 takes in their place",
                choices=("described", "published"),
            ),
        ),
        natural=("phd", "education", "race", "sex"),
        files=(
            DataFile("adult/adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
            DataFile("adult/adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
        ),
    ),
    TaskInfo(
        "heart-disease",
        summary="740 patients of four hospitals, each a client: who has a heart disease; 13 inputs",
        source="UCI Heart Disease: Janosi, Steinbrunn, Pfisterer, Detrano, 1988; from the UCI archive",
        loader="fairbloom.tasks.datasets.heart_disease:load",
        models=("logistic", "mlp"),
        partitions=("hospital",),
        classes=2,
        settings=(
            TaskSetting(
                "split",
                0,
                "Random state by which a third of each hospital's patients is drawn for testing; 43 is FLamby's split, "
                "and 0 draws by the run's seed",
                lowest=0,
                highest=2**32 - 1,
            ),
        ),
        natural=("hospital",),
        files=(
            DataFile("heart-disease/processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
            DataFile("heart-disease/processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
            DataFile("heart-disease/processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
            DataFile("heart-disease/processed.va.data", "4249d03ca7711e84f4444768c9426170"),
        ),
    ),
    _pictures(
        "cifar10",
        summary="60,000 coloured pictures of animals and vehicles of 32×32 pixels, in ten classes",
        source="Krizhevsky, 2009; through torchvision",
        models=("cifar-cnn", "resnet18-gn", "mlp", "mlp-softmax", "logistic", "cnn"),
        files=_files(
            "cifar-10-batches-py",
            data_batch_1="c99cafc152244af753f735de768cd75f",
            data_batch_2="d4bba439e000b95fd0a9bffe97cbabec",
            data_batch_3="54ebc095f3ab1f0389bbae665268c751",
            data_batch_4="634d18415352ddfa80567beed471001a",
            data_batch_5="482c414d41f54cd18b22e5b47cb7c3cb",
            test_batch="40351d587109b95175f43aff81a1287e",
        ),
    ),
    _pictures(
        "cifar100",
        summary="60,000 coloured pictures of 32×32 pixels, in a hundred classes",
        source="Krizhevsky, 2009; through torchvision",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        classes=100,
        files=_files(
            "cifar-100-python",
            train="16019d7e3df5f24257cddd939b257f8d",
            test="f0ef6b0ae62326f3e7ffdfab6717acfc",
        ),
    ),
    _pictures(
        "cinic10",
        summary="270,000 coloured pictures of 32×32 pixels, in the ten classes of CIFAR-10",
        source="Darlow, Crowley, Antoniou, Storkey, 2018; from the Hugging Face hub, flwrlabs/cinic10",
        models=("resnet18-gn", "cifar-cnn", "mlp", "logistic", "cnn"),
        files=_parquet("cinic10", "train", "validation", "test"),
    ),
    TaskInfo(
        "femnist",
        summary="814,277 hand-written digits and letters of 28×28 pixels, by who has written them",
        source="LEAF: Caldas et al., 2018; from the Hugging Face hub, flwrlabs/femnist",
        loader="fairbloom.tasks.datasets.femnist:load",
        models=("femnist-cnn", "mnist-cnn", "mlp", "logistic", "cnn"),
        partitions=("writer", *DEALT),
        classes=62,
        clients=100,
        natural=("writer",),
        files=_parquet("femnist", "train"),
    ),
    TaskInfo(
        "shakespeare",
        summary="a million characters of Shakespeare's plays, by who speaks: which character is the next",
        source="Karpathy, 2015: tiny Shakespeare; from its repository",
        loader="fairbloom.tasks.datasets.shakespeare:load",
        models=("lstm",),
        partitions=("speaker",),
        classes=80,
        natural=("speaker",),
        files=(DataFile("shakespeare/input.txt", "6fb458f1232090904fb40fe944165e91"),),
    ),
    TaskInfo(
        "shakespeare-leaf",
        summary="all of Shakespeare's plays in LEAF's edition, by who speaks: which character is the next",
        source="LEAF: Caldas et al., 2018; from the Hugging Face hub, flwrlabs/shakespeare",
        loader="fairbloom.tasks.datasets.shakespeare:load_leaf",
        models=("lstm",),
        partitions=("speaker",),
        classes=80,
        natural=("speaker",),
        files=(DataFile("shakespeare-leaf/shakespeare.csv", ""),),
    ),
    TaskInfo(
        "synthetic",
        summary="Synthetic(α, β): devices that differ in their models by α and in their inputs by β; 60 inputs; drawn "
        "by the seed, nothing to download",
        source="FedProx: Li et al., 2020, section 5.1",
        loader="fairbloom.tasks.datasets.synthetic:load",
        models=("logistic", "mlp"),
        classes=10,
        settings=(
            TaskSetting("alpha", 1.0, "α: how much the devices' models differ", lowest=0),
            TaskSetting("beta", 1.0, "β: how much the devices' inputs differ", lowest=0),
            TaskSetting("iid", False, "Whether all devices are alike; α and β have no effect then"),
        ),
        clients=30,
    ),
    TaskInfo(
        "csv",
        summary="your own CSV files: one for each client, or one with a column that names the client",
        source="the folder, or file, that --data-dir names",
        loader="fairbloom.tasks.files.tables:load",
        models=("logistic", "mlp"),
        settings=(
            TaskSetting("target", "", "Column to predict; by default the one called target, label or y"),
            TaskSetting("client", "", "Column that names the client, in a single file"),
            TaskSetting("kind", "auto", "What the target is", choices=("auto", "classification", "regression")),
            TaskSetting("classes", "", "All classes, as 'no,yes'; a client may then lack some"),
            TaskSetting("categories", "", "Columns that are categories although they hold numbers, as 'sex,ward'"),
            TaskSetting("ignore", "", "Columns that are left out, as 'id,name'"),
            TaskSetting(
                "missing",
                "error",
                "What becomes of rows that lack a value: fill takes the column's mean, or no category",
                choices=("error", "drop", "fill"),
            ),
            TaskSetting(
                "standardise",
                "client",
                "What columns of numbers are standardised by: each client's own mean and deviation, or common ones",
                choices=("client", "together"),
            ),
            TaskSetting(
                "smallest-category",
                5,
                "Fewest training rows of a category that a deployed client tells by its name, and not as other",
                lowest=1,
            ),
        ),
        reads_folder=True,
        own_clients=True,
        agree="fairbloom.tasks.files.columns:agree",
    ),
    TaskInfo(
        "image-folder",
        summary="your own images: CLIENT/CLASS/IMAGE.png, or .jpg",
        source="the folder that --data-dir names",
        loader="fairbloom.tasks.files.images:load",
        models=("cnn", "logistic", "mlp"),
        settings=(
            TaskSetting("size", 0, "Pixels each way that images are resized to; 0 keeps their size", lowest=0),
            TaskSetting("grey", False, "Whether images have one channel, of grey, in place of three of colours"),
            TaskSetting("classes", "", "All classes, as 'cat,dog'; a client may then lack some"),
        ),
        reads_folder=True,
        own_clients=True,
        agree="fairbloom.tasks.files.shapes:agree_on_images",
    ),
    TaskInfo(
        "npz",
        summary="your own NumPy arrays: CLIENT.npz with x and y, or x_train, y_train, x_test and y_test",
        source="the folder that --data-dir names",
        loader="fairbloom.tasks.files.arrays:load",
        models=("logistic", "mlp", "cnn"),
        settings=(TaskSetting("classes", "", "All classes, as '0,1,2'; a client may then lack some"),),
        reads_folder=True,
        own_clients=True,
        agree="fairbloom.tasks.files.shapes:agree_on_arrays",
    ),
)
"""What is known of every task, in the order in which they are listed."""

TASKS = {info.name: info for info in KNOWN}
"""Every task by its name on the command line."""
