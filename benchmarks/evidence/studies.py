"""What is measured: the paper's claims and the frontiers, each as one ``infobatch compare`` command.

A study is stated here before its first run: task, arms, lengths, grid, seeds. Its margin is the task's.
"""

from __future__ import annotations

from dataclasses import dataclass

from infobatch.coresets import METHODS

LENGTHS = "0.4,0.6,0.8,1"
SHARES = (0.7, 0.5, 0.3)  # of the data that a coreset keeps
ENSEMBLES = {"grand": (4,), "el2n": (2, 20)}  # networks, as in the paper's Table 1
SCORES = "benchmarks/results/{}/scores.npz"  # of an earlier run: see warm_scores.py


@dataclass(frozen=True)
class Study:
    """One comparison and the page that it becomes."""

    name: str
    title: str
    says: str  # what the paper claims and what is different here: the page's first paragraph
    task: str
    arms: str
    seeds: int
    lengths: str = "1"
    learning_rates: str | None = None
    options: tuple[str, ...] = ()

    @property
    def has_curve(self) -> bool:
        """Whether savings at equal quality can be read off it."""
        return "," in self.lengths

    def command(self, out: str) -> list[str]:
        """The arguments of ``infobatch``."""
        command = ["compare", self.task, "--arms", self.arms, "--lengths", self.lengths]
        if self.learning_rates is not None:
            command += ["--learning-rates", self.learning_rates]
        for option in self.options:
            command += ["--set", option]
        return [*command, "--seeds", str(self.seeds), "--out", out]


SMALL_CNN = "5,000 images of Fashion-MNIST at 14 × 14, shifted and flipped, a small CNN, 40 epochs"


def optimizer_study(name: str, rates: str) -> Study:
    """Table 7 for one optimizer."""
    return Study(
        f"table7-{name}",
        f"Table 7: {name.upper() if name != 'adamw' else 'AdamW'}",
        "The paper trains ResNet-50 on CIFAR-10 with four optimizers and reports the accuracy of all data "
        f"with each. Here: {SMALL_CNN}; every arm has its learning rate from the same grid, and each epoch "
        "becomes shorter (`shrink=epoch`) or each batch smaller (`shrink=batch`).",
        "fashion",
        "full,short,infobatch,infobatch:shrink=batch,quantile,quantile:shrink=batch",
        3,
        learning_rates=rates,
        options=(f"optimizer={name}",),
    )


def coreset_arms() -> str:
    """Every method of choosing a subset at every share."""
    return ",".join(
        f"coreset:{method}@{share:g}" + (f":networks={networks}" if networks > 1 else "")
        for share in SHARES
        for method in METHODS
        for networks in ENSEMBLES.get(method, (1,))
    )


def frontier_study(
    task: str,
    title: str,
    says: str,
    rates: str,
    seeds: int,
    *options: str,
    name: str | None = None,
) -> Study:
    """How much compute all data would have needed to be as good as each arm."""
    arms = "full,random,infobatch,quantile,noise:tau=0.2:delta=1.0"
    name = name or f"frontier-{task}"
    return Study(name, title, says, task, arms, seeds, LENGTHS, rates, options)


def few_epochs_study(task: str, title: str, rows: str) -> Study:
    """Where the first epoch is a third of the training: pruned cold, from warm scores, and within the batch."""
    name = f"few-epochs-{task}"
    warm = f"mean:scores={SCORES.format(name)}:delta=1.0"
    return Study(
        name,
        f"Few epochs: {title}",
        f"{rows}, a pretrained Llama of 260,032 parameters, AdamW, 3 epochs. `infobatch:delta=1.0` prunes from the "
        "second epoch on; with `scores=` it prunes from the first one, by the losses that an earlier run on all data (another "
        "seed, made for its own sake and not counted) ended with; `stream:keep=0.5` scores each batch and trains on half of "
        "it, the scoring counted as a third of a pass. All data for fewer epochs is shorter training.",
        task,
        f"full,infobatch:delta=1.0,{warm},stream:keep=0.5",
        3,
        LENGTHS,
        "0.001,0.002,0.004",
        ("count=512", "epochs=3"),
    )


# The same runs as `infobatch demo --seeds 10`; its page and the README are written by hand around its table.
DEMO = frontier_study("fashion", "The demo", f"{SMALL_CNN}.", "0.1,0.2,0.4", 10, name="demo")

STUDIES = (
    DEMO,
    frontier_study(
        "cifar10",
        "Saving at equal quality: CIFAR-10",
        "10,000 images of CIFAR-10, cropped and flipped, a ResNet of 78,042 parameters, SGD, 16 epochs.",
        "0.1,0.2,0.4",
        5,
        "images=10000",
        "epochs=16",
        "network=small_resnet",
    ),
    frontier_study(
        "covertype",
        "Saving at equal quality: Covertype",
        "100,000 rows of Covertype, no augmentation, an MLP, AdamW, 40 epochs.",
        "0.004,0.008,0.016",
        5,
        "rows=100000",
    ),
    few_epochs_study("alpaca", "Alpaca", "512 rows of Alpaca"),
    few_epochs_study("gsm8k", "GSM8K", "512 problems of GSM8K"),
    Study(
        "table1-fashion",
        "Table 1: subsets chosen before training",
        f"Every static method of `infobatch.coresets` at 70, 50 and 30% of the data beside dynamic pruning. {SMALL_CNN}, "
        "one learning rate for all. What choosing costs is counted in the passes: a negative saving means that choosing the subset "
        "cost more than training on it saved.",
        "fashion",
        f"full,infobatch,quantile,random,{coreset_arms()}",
        3,
    ),
    Study(
        "table4-fashion",
        "Table 4: rescaling and annealing",
        "The paper (CIFAR-100, ResNet-18): soft pruning alone 77.5, with rescaling 78.1, with annealing 77.7, with "
        f"both 78.2, all data 78.2. Here: {SMALL_CNN}, one learning rate for all.",
        "fashion",
        "full,short,infobatch,mean:delta=1.0,mean:rescale=False,mean:rescale=False:delta=1.0,"
        "random:ratio=0.38:rescale=False:delta=1.0",
        5,
    ),
    Study(
        "table5-fashion",
        "Table 5: where to prune",
        "The paper (CIFAR-100, ResNet-50): below the mean 80.6 at 33% saved, above it 80.5 at 16%, at random 80.5 "
        f"at 33%, all data 80.6. Here: {SMALL_CNN}, one learning rate for all.",
        "fashion",
        "full,short,infobatch,mean:side=above,random",
        5,
    ),
    Study(
        "figure3-fashion",
        "Figure 3: the ratio r and the share δ of pruned epochs",
        "The paper finds r ≤ 0.5 lossless and larger ratios worse, and δ between 0.75 and 0.95 alike. "
        f"Here: {SMALL_CNN}, one learning rate for all. `infobatch` is r = 0.5 with δ = 0.875.",
        "fashion",
        "full,infobatch,mean:ratio=0.2,mean:ratio=0.35,mean:ratio=0.65,mean:ratio=0.8,"
        "mean:delta=0.75,mean:delta=0.95,mean:delta=1.0",
        5,
    ),
    optimizer_study("sgd", "0.1,0.2,0.4"),
    optimizer_study("adamw", "0.004,0.008,0.016"),
    optimizer_study("lars", "0.2,0.4,0.8"),
    optimizer_study("lamb", "0.01,0.02,0.04"),
    *(
        Study(
            f"a3-{mix}-fashion",
            f"A.3: {name}",
            f"The paper rebuilds a sample's score from the two mixed images that it is in. Here: {SMALL_CNN}, "
            f"with {name}, one learning rate for all.",
            "fashion",
            "full,short,infobatch,quantile",
            5,
            options=(f"mix={mix}",),
        )
        for mix, name in (("mixup", "MixUp"), ("cutmix", "CutMix"))
    ),
)


def study_of(name: str) -> Study:
    """The study of this name."""
    return next(study for study in STUDIES if study.name == name)
