"""The tasks that are known by name; nothing here imports PyTorch, since names are wanted without it."""

from fairbloom.protocol.parameters import Choices, Parameter, Range

from .datasets.pictures import PICTURES, SHIFTS
from .files.known import FILES
from .task import LABEL_PARTITIONS, DataFile, TaskInfo

KNOWN = (
    TaskInfo(
        "digits",
        summary="1,797 hand-written digits of 8×8 pixels; embedded, nothing to download",
        source="UCI Optical Recognition of Handwritten Digits, in scikit-learn",
        loader="fairbloom.tasks.datasets.digits:load",
        models=("logistic", "mlp", "cnn"),
        partitions=LABEL_PARTITIONS,
        classes=10,
        settings=SHIFTS,
    ),
    *PICTURES,
    TaskInfo(
        "femnist",
        summary="814,277 hand-written digits and letters of 28×28 pixels, by who has written them",
        source="LEAF: Caldas et al., 2018; from the Hugging Face hub, flwrlabs/femnist",
        loader="fairbloom.tasks.datasets.femnist:load",
        models=("femnist-cnn", "mnist-cnn", "mlp", "logistic", "cnn"),
        partitions=("writer", *LABEL_PARTITIONS),
        classes=62,
        clients=100,
        natural=("writer",),
        files=(DataFile("femnist/data/train-00000-of-00001.parquet", ""),),
    ),
    TaskInfo(
        "adult",
        summary="48,842 people of the US census of 1994: who earns more than 50,000 dollars; 99 binary inputs",
        source="UCI Adult: Becker, Kohavi, 1996; from the UCI archive",
        loader="fairbloom.tasks.datasets.adult:load",
        models=("logistic", "mlp"),
        partitions=("phd", "education", "race", "sex", *LABEL_PARTITIONS),
        classes=2,
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
            DataFile("heart-disease/processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
            DataFile("heart-disease/processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
            DataFile("heart-disease/processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
            DataFile("heart-disease/processed.va.data", "4249d03ca7711e84f4444768c9426170"),
        ),
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
        tests="fixed",
        files=(DataFile("shakespeare/input.txt", "6fb458f1232090904fb40fe944165e91"),),
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
