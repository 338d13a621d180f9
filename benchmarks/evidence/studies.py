"""What is measured: the paper's claims and the frontiers, each as one ``infobatch compare`` command.

A study is stated here before its first run: task, arms, lengths, grid, seeds. Its margin is the task's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from infobatch.coresets import METHODS
from infobatch.lab.commands import parse_lengths
from infobatch.lab.run.arms import Arm

LENGTHS = "0.4,0.6,0.8,1"
LONGER = f"{LENGTHS},1.4"  # of pruned arms: do they reach full data's quality, and at what cost?
FEWER = "0.5,0.7,1"  # where a run takes minutes
NOISE = "noise:tau=0.2:delta=1.0"  # what the search chose; squared errors need gradient=root
LIKE_AUTO = "smoothing=0.7:delta=1.0"  # for the paper's rules: what `auto` has beside its rule
BIASED = "epsilon_greedy:save=0.4:delta=1.0,ucb:save=0.4:delta=1.0"  # the best of Table 1
SMALLER = "random:delta=1.0,random:delta=1.0:shrink=batch"  # as much as `auto`: fewer batches, and smaller ones
EARLIER_SIZES = (
    "When these runs were made, the noise budget took the mean loss of a sample for a cross-entropy with one label; now "
    "`infobatch.scoring` reports the sizes of gradients."
)
TOO_SHORT = "In so few epochs most samples are still being learned: [nothing is decided](../when-it-does-not-help.md#very-short-training)."
EARLIER_DIVISOR = (
    "When these runs were made, the loss of a pruned batch was divided by its plain number of pixels; now that is [weighted, "
    "too](../scoring.md#what-a-loss-is-divided-by)."
)
DRAWS = "benchmarks/draw_rules.py"
BETWEEN = "benchmarks/bias_rules.py"
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
    rate_seeds: int | None = None  # that choose from the grid; None is the lab's own number
    rate_length: float | None = None  # for which they train; None is the shortest
    headline: str = ""  # its name in tables of several studies; empty where that is its title
    in_readme: bool = False  # whether it is a row of the README's table
    paper: Mapping[str, str] = field(default_factory=dict)  # the paper's own figures, by arm
    caveat: str = ""  # why its savings do not stand beside those of other studies
    reuses: str | None = None  # a study of the same task, whose runs need not be made again
    controls: str = ""  # arms that are trained afterwards, for fewer lengths
    control_lengths: str = LENGTHS

    @property
    def has_curve(self) -> bool:
        """Whether savings at equal quality can be read off it."""
        return "," in self.lengths

    @property
    def cells(self) -> list[tuple[str, float]]:
        """Every arm at every length that it is trained for."""
        cells = list(product(self.arms.split(","), parse_lengths(self.lengths)))
        if self.controls:
            cells += product(self.controls.split(","), parse_lengths(self.control_lengths))
        return cells

    def commands(self, out: str) -> list[list[str]]:
        """The arguments of ``infobatch``, of one command after the other for the same folder."""
        first = self._command(self.arms, self.lengths, out)
        if not self.controls:
            return [first]
        arms = self.controls
        if any(Arm(control).follows for control in self.controls.split(",")):
            arms = (
                f"{self.arms},{arms}"  # one of which leads: it has the cost that others must match
            )
        return [first, self._command(arms, self.control_lengths, out)]

    def _command(self, arms: str, lengths: str, out: str) -> list[str]:
        command = ["compare", self.task, "--arms", arms, "--lengths", lengths]
        if self.learning_rates is not None:
            command += ["--learning-rates", self.learning_rates]
        if self.rate_seeds is not None:
            command += ["--rate-seeds", str(self.rate_seeds)]
        if self.rate_length is not None:
            command += ["--rate-length", f"{self.rate_length:g}"]
        for option in self.options:
            command += ["--set", option]
        return [*command, "--seeds", str(self.seeds), "--out", out]


SMALL_RESNET = (
    "10,000 images of CIFAR-10, cropped and flipped, a ResNet of 78,042 parameters, SGD, 16 epochs"
)
ROWS = "100,000 rows of Covertype, no augmentation, an MLP, AdamW, 40 epochs"
SMALL_CNN = "5,000 images of Fashion-MNIST at 14 × 14, shifted and flipped, a small CNN, 40 epochs"


# Accuracy of ResNet-18 on CIFAR-100.
TABLE_4 = {
    "full": "78.2 ± 0.2",
    "infobatch": "78.2 ± 0.2",
    "mean:delta=1.0": "78.1 ± 0.2",
    "mean:rescale=False": "77.7 ± 0.2",
    "mean:rescale=False:delta=1.0": "77.5 ± 0.2",
}


# Accuracy of ResNet-18 on CIFAR-10 with 70, 50 and 30% of the data (chosen before training), then of the passes.
TABLE_1_SUBSETS = {
    "random": ("94.6", "93.3", "90.2"),
    "contextual_diversity": ("95.0", "94.3", "90.8"),
    "herding": ("92.2", "88.0", "80.1"),
    "k_center": ("94.7", "93.9", "90.9"),
    "least_confidence": ("95.0", "94.5", "90.3"),
    "margin": ("94.9", "94.3", "90.9"),
    "forgetting": ("94.7", "94.1", "91.7"),
    "grand, 4 networks": ("95.3", "94.6", "91.2"),
    "deepfool": ("95.1", "94.1", "90.0"),
    "craig": ("94.8", "93.3", "88.4"),
    "glister": ("95.2", "94.0", "90.9"),
    "influence": ("93.1", "91.3", "88.3"),
    "el2n, 2 networks": ("94.4", "93.2", "89.8"),
    "el2n, 20 networks": ("95.3", "95.1", "91.9"),
    "dp": ("94.9", "93.8", "90.8"),
}
TABLE_1_RULES = {
    "random:rescale=False": ("94.8", "94.5", "93.0"),
    "epsilon_greedy": ("95.2", "94.9", "94.1"),
    "ucb": ("95.3", "94.7", "93.9"),
    "mean": ("95.6", "95.1", "94.7"),
}


def optimizer_study(name: str, rates: str, *, full: str, pruned: str) -> Study:
    """Table 7 for one optimizer, with the paper's two accuracies."""
    return Study(
        f"table7-{name}",
        f"Table 7: {name.upper() if name != 'adamw' else 'AdamW'}",
        "The paper's figures are for ResNet-50 on CIFAR-10. "
        f"Here: {SMALL_CNN}; every arm has its learning rate from the same grid, and each epoch "
        "becomes shorter (`shrink=epoch`) or each batch smaller (`shrink=batch`).",
        "fashion",
        f"full,short,infobatch,infobatch:shrink=batch,{NOISE},{NOISE}:shrink=batch",
        3,
        learning_rates=rates,
        options=(f"optimizer={name}",),
        rate_seeds=1,
        paper={"full": full, "infobatch": pruned},
    )


def coreset_arms() -> str:
    """Every method of choosing a subset at every share."""
    return ",".join(
        f"coreset:{method}@{share:g}" + (f":networks={networks}" if networks > 1 else "")
        for share in SHARES
        for method in METHODS
        for networks in ENSEMBLES.get(method, (1,))
    )


def budget_arms() -> str:
    """The dynamic methods of the paper's Table 1 at the shares that a coreset leaves out, and our own."""
    rules = ("random:rescale=False", "epsilon_greedy", "ucb", "mean", "importance:floor=0.1")
    return ",".join(budget_arm(rule, share) for share in SHARES for rule in rules)


def budget_arm(rule: str, share: float) -> str:
    """A rule that keeps this share of the run's sample passes."""
    return f"{rule}:save={1 - share:.1f}:delta=1.0"


def table_1_figures() -> dict[str, str]:
    """The paper's accuracies by arm; a subset's, by its method, at all shares together."""
    subsets = {f"coreset:{name}": ", ".join(row) for name, row in TABLE_1_SUBSETS.items()}
    rules = {
        budget_arm(rule, share): figure
        for rule, row in TABLE_1_RULES.items()
        for share, figure in zip(SHARES, row, strict=True)
    }
    return {"full": "95.6"} | rules | subsets


def subsets_study(name: str, network: str, stated: str, *options: str) -> Study:
    """Table 1 for one network."""
    return Study(
        f"table1-{name}",
        f"Table 1: subsets chosen before training, {network}",
        "Every static method of `infobatch.coresets` at 70, 50 and 30% of the data beside dynamic pruning. The paper's figures "
        "are for ResNet-18 on CIFAR-10, those of subsets in the order of the columns. Here: 5,000 "
        f"images of Fashion-MNIST at 14 × 14, shifted and flipped, {network}, 20 epochs, one learning rate for all. What "
        "choosing costs is counted in the passes: a negative saving means that choosing the subset cost more than training on it "
        f"saved. `influence` and `glister` choose without a held-out set. {stated}",
        "fashion",
        f"full,infobatch,quantile,random,{coreset_arms()},{budget_arms()}",
        3,
        options=("epochs=20", *options),
        paper=table_1_figures(),
    )


def frontier_study(
    task: str,
    headline: str,
    says: str,
    rates: str,
    seeds: int,
    *options: str,
    name: str | None = None,
    noise: str = NOISE,
    more_arms: str = "",
    lengths: str = LENGTHS,
    rate_seeds: int | None = None,
    rate_length: float | None = None,
    in_readme: bool = True,
    caveat: str = "",
) -> Study:
    """How much compute all data would have needed to be as good as each arm."""
    arms = f"full,random,infobatch,quantile,{noise}{more_arms}"
    name = name or f"frontier-{task}"
    title = f"Saving at equal quality: {headline}"
    return Study(
        name,
        title,
        says,
        task,
        arms,
        seeds,
        lengths,
        rates,
        options,
        rate_seeds,
        rate_length,
        headline,
        in_readme,
        caveat=caveat,
    )


def follow_up(
    study: Study, name: str, title: str, says: str, arms: str, *, seen: bool = True
) -> Study:
    """Another question about a frontier's task: the same settings, and the same runs where an arm is the same."""
    says += (
        f" Stated after [the frontier]({study.name}.md) had been seen; runs that both have were made once."
        if seen
        else " Stated before any run of these settings."
    )
    return replace(
        study,
        name=name,
        title=title,
        says=says,
        arms=arms,
        lengths=LENGTHS,
        headline="",
        in_readme=False,
        reuses=study.name,
    )


def biased_study(study: Study, task: str, setting: str, *, rule: str = NOISE) -> Study:
    """The biased rules of Table 1 on another task, beside the frontier's own rule."""
    return follow_up(
        study,
        f"biased-{study.task}",
        f"Biased rules against the noise budget: {task}",
        f"As [on Fashion-MNIST](biased-fashion.md), where they did well: {setting}.",
        f"full,{rule},{BIASED}",
    )


def probe_study(study: Study, task: str, layer: str, others: str, *, seen: bool = True) -> Study:
    """Pruning by measured gradients, beside the rules that go by the losses."""
    question = follow_up(
        study,
        f"probe-{study.task}",
        f"Pruning by measured gradients: {task}",
        f"`auto:probe={layer}` keeps samples in proportion to the norms of their gradients at the output of that layer, which "
        f"`infobatch.Probe` measures in every backward pass; `{others}` is the same rule with sizes from the losses. {study.says}",
        f"full,{others},auto:probe={layer}",
        seen=seen,
    )
    return replace(question, lengths=study.lengths)


def architecture_study(network: str, title: str, optimizer: str) -> Study:
    """Table 6 for one network."""
    return Study(
        f"table6-{network}",
        f"Table 6: {title}",
        "The paper (ResNet-18 and ResNet-50 on CIFAR-10, CIFAR-100 and ImageNet-1K): within 0.1 points of all data "
        f"in each of the six. Here: 5,000 images of CIFAR-10, cropped and flipped, {title}, {optimizer}, 16 epochs, one "
        "learning rate for all.",
        "cifar10",
        f"full,short,infobatch,{NOISE}",
        3,
        options=(
            "images=5000",
            "epochs=16",
            f"network={network}",
            f"optimizer={optimizer.lower()}",
        ),
    )


def sizes_study(task: str, save: float, setting: str, *, norms: bool, rates: str | None) -> Study:
    """What stands in for the size of a gradient, at equal passes: the loss by two formulas, or ‖softmax − target‖."""
    rule = f"importance:save={save:g}:delta=1.0"
    arms = f"{rule}:gradient=score" if norms else f"{rule},{rule}:gradient=root"
    return Study(
        f"sizes-{'norms-' * norms}{task}",
        f"What stands in for the gradient: {'‖softmax − target‖' if norms else 'two formulas'}, {task}",
        "Importance sampling with a budget, so that every arm makes the same number of passes at the same learning rate, with sizes "
        + ("‖softmax − target‖" if norms else "1 − exp(−loss) or (`gradient=root`) √loss")
        + ". What came out is on the page of [the noise budget](../policies/noise.md#which-formula). Stated before the first run: "
        f"{setting}; the comparison is the mean difference between arms with the same seed.",
        task,
        f"full,{arms}",
        10 if task == "fashion" else 5,
        learning_rates=rates,
        options=(*(CIFAR10.options if task == "cifar10" else ()), *(("score=gradient",) * norms)),
        rate_seeds=None if rates is None else 1,
        rate_length=None if rates is None else 0.4,
        reuses=DEMO.name if task == "fashion" and not norms else None,
    )


def few_epochs_study(
    task: str, title: str, rows: str, *, more_arms: str = "", headline: str = ""
) -> Study:
    """Where the first epoch is a third of the training: pruned cold, from warm scores, and within the batch."""
    name = f"few-epochs-{task}"
    warm = f"mean:scores={SCORES.format(name)}:delta=1.0"
    return Study(
        name,
        f"Few epochs: {title}",
        f"{rows}, a pretrained Llama of 260,032 parameters, AdamW, 3 epochs. `infobatch:delta=1.0` prunes from the "
        "second epoch on; with `scores=` it prunes from the first one, by the losses that an earlier run on all data (another "
        "seed, made for its own sake and not counted) ended with; `stream:keep=0.5` scores each batch and trains on half of "
        "it, the scoring counted as a third of a pass. All data for fewer epochs is shorter training. The grid was moved down after a look "
        f"at one validation split and, by accident, at the test losses of seed 0 with rate 0.004."
        + (f" {EARLIER_SIZES}" if NOISE in more_arms else ""),
        task,
        f"full,infobatch:delta=1.0,{warm},stream:keep=0.5{more_arms}",
        3,
        LENGTHS,
        "0.001,0.002,0.004",
        ("count=512", "epochs=3"),
        headline=headline,
        in_readme=bool(headline),
    )


# The runs of `infobatch demo --seeds 10`, and a longer training of the pruned arms; its page is written by hand
# around its table.
DEMO = frontier_study(
    "fashion",
    "Fashion-MNIST, small CNN, SGD",
    f"{SMALL_CNN}.",
    "0.1,0.2,0.4",
    10,
    name="demo",
    lengths=LONGER,
)

CIFAR10 = frontier_study(
    "cifar10",
    "CIFAR-10, small ResNet, SGD, a narrow grid",
    f"{SMALL_RESNET}.",
    "0.1,0.2,0.4",
    5,
    "images=10000",
    "epochs=16",
    "network=small_resnet",
    in_readme=False,
    caveat="Superseded by [the same with a wider grid](wide-cifar10.md): the learning rate that all data would have chosen is not in this one.",
)

COVERTYPE = frontier_study(
    "covertype",
    "Covertype, MLP, AdamW",
    f"{ROWS}. AdamW's steps do not grow with the weights, so two "
    "arms make as many steps as all data, with smaller batches (`shrink=batch`). The length 1.4 was added when the others had been "
    "seen.",
    "0.008,0.016,0.032",
    5,
    "rows=100000",
    more_arms=f",infobatch:shrink=batch,{NOISE}:shrink=batch",
    lengths=LONGER,
)

CAMVID = frontier_study(
    "camvid",
    "CamVid (segmentation), AdamW",
    "Segmentation (the paper's Figure 4a: UperNet on ADE20K, mIoU 41.1 with 60% of the iterations, 40.7 with all). 367 street scenes of CamVid at 90 × "
    f"120, flipped, an encoder-decoder with an auxiliary head, AdamW, 12 epochs. {EARLIER_SIZES} {EARLIER_DIVISOR}",
    "0.004,0.008,0.016",
    3,
    "scale=2",
    "epochs=12",
    rate_seeds=2,
    in_readme=False,
    caveat=TOO_SHORT,
)

MAE = frontier_study(
    "mae",
    "CIFAR-10 (masked autoencoder), AdamW",
    "Pretraining (the paper's Table 3: 24.8% saved with ViT-B on ImageNet-1K without loss), judged by a linear probe. 5,000 images of "
    "CIFAR-10, three quarters of the patches masked, a ViT, AdamW, 10 epochs. The grid was moved down after a look at validation "
    "splits.",
    "0.0005,0.001,0.002",
    3,
    "images=5000",
    "epochs=10",
    noise=f"{NOISE}:gradient=root",
    lengths=FEWER,
    rate_seeds=1,
    in_readme=False,
    caveat=TOO_SHORT,
)

FRESH = Study(
    "fresh-fashion",
    "Images that no search has seen: ten disjoint sets of Fashion-MNIST",
    f"{SMALL_CNN}, SGD, as in [the demo](demo.md), but on images of Fashion-MNIST that are not in the embedded subset, on which the search "
    "for the rule and the other studies were made: each seed trains on its own 5,000 images, no two of which are the same, and all are "
    "tested on the same 6,000. So intervals are over training sets, too. Learning rates are chosen at full length. Stated before the "
    "first run, with what it asks: what may be claimed for `auto`, and whether its rule, or its smoothing and the missing whole epochs at "
    "the end, deserve the credit. The paper's rules therefore have both here, and are not as published. Controls: random pruning with "
    "`auto`'s amount, with the two bands' (46%, which is fixed) and with the mean rule's (34% in one run on embedded images; 40%, "
    "that of the biased rules, lies between); and with `auto`'s amount as smaller batches at the same number of steps "
    "(`shrink=batch`). Forecast before the first run, by 1 − the mean over epochs of kept share × (1 + added noise) of one run of each rule "
    "on embedded images: `auto` (here the noise budget with tau = 0.2, floor 0.25 and smoothing 0.7) saves 31% at equal quality, the mean "
    "rule 20%, the two bands 19% (for both of which that formula has been too high by 6 to 19 points), random pruning nothing. The "
    "formula says nothing about biased rules; on the embedded images they saved 31 and 34%. The rate 1.6 was added to the grid when the "
    "validation runs had chosen 0.8 for the mean rule, before any of its test runs.",
    "fashion",
    f"full,auto,mean:{LIKE_AUTO},quantile:{LIKE_AUTO},{BIASED}",
    10,
    LONGER,
    "0.1,0.2,0.4,0.8,1.6",
    ("images=fresh",),
    rate_length=1,
    headline="Fashion-MNIST, images that no search has seen, SGD",
    in_readme=True,
    controls=f"{SMALLER},random:save=0.46:delta=1.0,random:save=0.34:delta=1.0",
    control_lengths="0.6,0.8,1",
)

SAME_RATE = replace(
    FRESH,
    name="same-rate-fashion",
    title="Images that no search has seen: every arm with the rate that was best for all data",
    says="In [the comparison on images that no search has seen](fresh-fashion.md) all data has the learning rate 0.2: on the validation splits 0.4 was "
    "better by 0.47 points, which three seeds cannot tell from nothing, and among such rates the lab takes the recipe's own. A rate that is too low "
    "for all data would flatter every rule. Here all data has 0.4, with which the other arms were trained there. Stated when that comparison had "
    "been seen, before the first test run on all data with this rate.",
    arms=f"full,auto,quantile:{LIKE_AUTO},{BIASED.partition(',')[0]}",
    learning_rates="0.4",
    headline="the same images, all data with the rate that its validation runs preferred",
    controls="",
    reuses=FRESH.name,
)

WRONG_LABELS = Study(
    "wrong-labels-fashion",
    "One label in ten wrong: Fashion-MNIST",
    "As [on other images](fresh-fashion.md), but a tenth of the training labels is replaced by another class. The samples with the "
    "largest losses are then often the wrong ones, and rules that keep them without weights train on them more often. Learning rates are "
    "chosen on validation splits, whose labels are as wrong as those of the training set; the labels of the test images are right. The length "
    "0.4 was added when the others had been seen: all data at 0.6 × the epochs was better than the arms at that length, which left nothing to "
    "compare them with. The rate 0.8 was added to the grid then, too, because 0.4, an end of it, had been chosen for `epsilon_greedy`. Its choice among rates that three splits cannot tell apart then fell on 0.2; with 0.4 it had saved 19% (12–26%).",
    "fashion",
    f"full,auto,mean:{LIKE_AUTO},{BIASED}",
    5,
    LENGTHS,
    "0.1,0.2,0.4,0.8",
    ("images=fresh", "wrong_labels=0.1"),
    rate_length=1,
)

WIDE_CIFAR10 = replace(
    CIFAR10,
    name="wide-cifar10",
    title="Saving at equal quality: CIFAR-10, small ResNet, SGD",
    says=f"{SMALL_RESNET}, as in [an earlier comparison](frontier-cifar10.md), in which four of five arms had a learning rate at an end of "
    "the grid, chosen at 0.4 × the epochs: here the grid is wider, and the choice is made at full length. The rate 1.6 was added after the "
    "test runs of these arms, because 0.8, then an end of the grid, had been chosen for all data.",
    arms="full,auto",
    learning_rates="0.05,0.1,0.2,0.4,0.8,1.6",
    rate_seeds=2,
    rate_length=1,
    headline="CIFAR-10, small ResNet, SGD",
    in_readme=True,
    caveat="",
    reuses="probe-cifar10",
)

BIASED_CIFAR10 = biased_study(WIDE_CIFAR10, "CIFAR-10", SMALL_RESNET, rule="auto")

WIDE_RULES_CIFAR10 = replace(
    WIDE_CIFAR10,
    name="wide-rules-cifar10",
    title="The other rules, each with a tuned rate: CIFAR-10, small ResNet",
    says=f"{SMALL_RESNET}, with [`auto`](wide-cifar10.md) the biased rules of [Table 1](table1-fashion.md), the paper's rules with `auto`'s "
    "smoothing and no whole epochs at the end, and random pruning as smaller batches at the same number of steps.",
    arms=f"full,auto,mean:{LIKE_AUTO},quantile:{LIKE_AUTO},{BIASED},{SMALLER}",
    headline="",
    in_readme=False,
    reuses="biased-cifar10",
)

BETWEEN_ARMS = (
    f"full,auto,epsilon_greedy:save=0.4:delta=1.0,{BETWEEN}:FadingBias,{BETWEEN}:FadingBias:end=0.0,"
    f"{BETWEEN}:GreedyThenAuto,{BETWEEN}:UpperBoundAuto,auto:floor=0.1:aging=0.1"
)
BETWEEN_SAYS = (
    "Is there a rule that is biased early, when it may help, and unbiased late, and that survives wrong labels? `FadingBias` is `auto` with "
    "weights p^-a, where a rises from 0 in the first epoch to 1 in the last; with `end=0.0` every kept sample weighs 1 throughout. "
    "`GreedyThenAuto` is `epsilon_greedy` (40% left out) in the first half of the epochs and `auto` in the second. Unbiased: "
    "`UpperBoundAuto` ranks by the upper bound of `ucb`, the average loss plus its variance, and `floor=0.1:aging=0.1` lets `auto` leave "
    "out more of what was visited lately. Stated before the first run of these rules. Earlier pilots of weights p^-a (one to two seeds) "
    "had gained nothing. Five rules are compared with `auto`, so that the best of them looks better than it is. "
)

BETWEEN_FASHION = Study(
    "between-fashion",
    "Between bias and noise: Fashion-MNIST",
    f"{BETWEEN_SAYS}The setting is that of [images that no search has seen](fresh-fashion.md), where the runs of the other arms were "
    "made, with a smaller grid. Its rate 0.1 was added after the validation runs and before any test run of the new rules: with 0.2 at an end of "
    "the grid, all data would have had another rate than in those runs.",
    "fashion",
    BETWEEN_ARMS,
    5,
    LENGTHS,
    "0.1,0.2,0.4,0.8",
    FRESH.options,
    rate_length=1,
    reuses=FRESH.name,
)

BETWEEN_WRONG_LABELS = Study(
    "between-wrong-labels",
    "Between bias and noise: one label in ten wrong, Fashion-MNIST",
    f"{BETWEEN_SAYS}The setting is that of [wrong labels](wrong-labels-fashion.md), where the runs of the other arms were made.",
    "fashion",
    BETWEEN_ARMS,
    5,
    LENGTHS,
    WRONG_LABELS.learning_rates,
    WRONG_LABELS.options,
    rate_length=1,
    reuses=WRONG_LABELS.name,
)

PROXY_FASHION = Study(
    "proxy-fashion",
    "A small network looks at each batch first: Fashion-MNIST",
    "airbench96_faster reaches its quality with 37% fewer operations by letting a small network keep the hardest half of each batch, without "
    "weights, for more epochs (45 instead of 37). `proxy:hardest=0.5` is that: the network at a quarter of its widths (6.6% of its "
    "operations) sees the same augmented images, and learns from every fourth batch. `proxy:keep=0.1:max_noise=0.2` draws by the sizes of "
    "gradients that the small network predicts, adds at most a fifth to the noise by its own account, and is unbiased. Whether weights "
    "help or harm is answered by this pair at the same lengths, and whether more epochs pay by the length 1.4. What the small network costs "
    "is counted in the passes. Experimental, stated before the first run with a proxy. The setting is that of [images that no search has "
    "seen](fresh-fashion.md), where the runs of the other arms were made, with a smaller grid.",
    "fashion",
    "full,auto,proxy:hardest=0.5,proxy:keep=0.1:max_noise=0.2",
    5,
    "0.6,0.8,1,1.4",
    "0.1,0.2,0.4,0.8",
    FRESH.options,
    rate_length=1,
    reuses=FRESH.name,
)

STRATIFIED = "full,full:order=stratified,auto,auto:order=stratified"
STRATIFIED_SAYS = (
    "Between a tenth and a third of the variance of single gradients lies between classes. `order=stratified` gives every class its share "
    "of each batch, which removes that part without bias, on all data and with `auto`. Stated before the first run with that order; pilots "
    "of two to five seeds had gained 0.2 to 1.2 points, or on one recipe nothing. "
)

STRATIFIED_FASHION = Study(
    "stratified-fashion",
    "Every class in its share of each batch: Fashion-MNIST",
    f"{STRATIFIED_SAYS}The setting is that of [images that no search has seen](fresh-fashion.md), where the runs with a random order were made.",
    "fashion",
    STRATIFIED,
    10,
    LONGER,
    FRESH.learning_rates,
    FRESH.options,
    rate_length=1,
    reuses=FRESH.name,
)

STRATIFIED_CIFAR10 = Study(
    "stratified-cifar10",
    "Every class in its share of each batch: CIFAR-10",
    f"{STRATIFIED_SAYS}{SMALL_RESNET}; the grid and the choice at full length are those of the study with a wider grid.",
    "cifar10",
    STRATIFIED,
    5,
    LENGTHS,
    WIDE_CIFAR10.learning_rates,
    WIDE_CIFAR10.options,
    rate_seeds=WIDE_CIFAR10.rate_seeds,
    rate_length=1,
    reuses=WIDE_CIFAR10.name,
)

# All of CIFAR-10 at an accuracy that is worth discussing: about eight core hours, over several sessions; `auto` and all
# data come first.
FLAGSHIP = Study(
    "frontier-airbench",
    "Saving at equal quality: all of CIFAR-10, a fast network",
    "All 50,000 images of CIFAR-10, [a network in the style of airbench](../recipes.md#cifar-10-with-a-fast-network), SGD, labels smoothed "
    "by 0.2, 16 epochs, after which 98.7% of the training images are classified correctly; every rule ranks by the size of the gradient with "
    "respect to the logits. Epochs and widths were chosen on validation splits. The forecast, stated before the first run of the "
    "comparison, by one run on all data with another seed (92.66%): `auto` saves 21%, the mean rule 17%, the two bands 16%, each ± 10 points. The "
    "paper's rules have the smoothing of `auto` and no whole epochs at the end. Controls: random pruning with `auto`'s amount, as fewer batches and as "
    "smaller ones.",
    "cifar10",
    "full,auto:gradient=score",
    3,
    LENGTHS,
    "0.5,1,2",
    ("network=airbench", "score=gradient", "precision=bfloat16"),
    rate_seeds=1,
    rate_length=0.6,
    headline="CIFAR-10, all 50,000 images, a fast network, SGD",
    in_readme=True,
    controls=f"mean:{LIKE_AUTO},quantile:{LIKE_AUTO},ucb:save=0.4:delta=1.0,{SMALLER}",
    control_lengths="0.6,1",
)

WITHIN_AIRBENCH = replace(
    FLAGSHIP,
    name="within-airbench",
    title="Choosing within each batch: all of CIFAR-10, a fast network",
    says="The setting is that of [the frontier](frontier-airbench.md), where the runs on all data and of `auto` were made. Two published ways to "
    "look at a batch for less than a forward pass, each as published (biased) and unbiased: with a network at a quarter of the widths, which "
    "learns from every fourth batch (`proxy`, after airbench96_faster), and by the features after the first of three groups of convolutions "
    "(`blocking`, after Partial Forward Blocking, with the mean loss of the kept samples). Whether weights help or harm is answered by each "
    "pair at the same lengths. airbench96_faster trains for more epochs with fewer operations (45 instead of 37), which the length 1.4 "
    "is for. What looking costs is counted in the passes, by operations. Experimental, stated before the first run of these four.",
    arms="full,auto:gradient=score",
    controls="proxy:hardest=0.5,proxy:keep=0.1:max_noise=0.2,"
    "blocking:layer=groups.0:rarest=0.6,blocking:layer=groups.0:keep=0.1:max_noise=0.2",
    control_lengths="0.6,1,1.4",
    headline="",
    in_readme=False,
    reuses=FLAGSHIP.name,
)

BCCD = Study(
    "frontier-bccd",
    "Saving at equal quality: blood cells (detection)",
    "205 microscope images of blood cells at 120 × 160 pixels, flipped, zoomed and shifted, YOLO11 of Ultralytics at half the width of its nano model, from scratch, "
    "AdamW, 60 epochs; mAP50-95 on 159 other images. [AFSS](../policies/afss.md) measures precision and recall of every training image in every fifth "
    "epoch, a third of a pass each. Control: random pruning with `auto`'s amount. Stated before the first run on the test images; that "
    "half the epochs lose 6 points was seen on one validation split, where learning rates are chosen, too. The rate 0.016 was added to the grid "
    "when the validation runs had chosen 0.008 for `auto`, before any test run. When two seeds had been seen, rates were chosen again, from three "
    "validation splits instead of one and from 0.008, 0.016 and 0.032: an end of the first grid had been best for three arms, and `auto`, "
    "with half their rate by one run of each, had been worse than random pruning. (0.002 and 0.004, which that split had shown to be worse "
    "than the best rate by 0.6 to 4.5 points for every arm, were left out.) All runs were then made again, on one machine, because the gradient of a "
    "pruned batch had been too small (its divisor is [weighted](../scoring.md#what-a-loss-is-divided-by) now) and AFSS had not reviewed every image in time.",
    "bccd",
    "full,auto,afss,random:delta=1.0",
    3,
    LENGTHS,
    "0.008,0.016,0.032",
    ("scale=2",),
    rate_seeds=3,
    headline="Blood cells (detection), AdamW",
)
STUDIES = (
    DEMO,
    FRESH,
    SAME_RATE,
    WRONG_LABELS,
    CIFAR10,
    WIDE_CIFAR10,
    WIDE_RULES_CIFAR10,
    STRATIFIED_FASHION,
    STRATIFIED_CIFAR10,
    BETWEEN_FASHION,
    BETWEEN_WRONG_LABELS,
    PROXY_FASHION,
    FLAGSHIP,
    WITHIN_AIRBENCH,
    COVERTYPE,
    CAMVID,
    BCCD,
    frontier_study(
        "diffusion",
        "Fashion-MNIST (diffusion), AdamW",
        "Generation (the paper's Table 8: latent diffusion on FFHQ, FID 7.70 pruned and 7.83 on all data). 2,000 images of Fashion-MNIST at 14 × 14, a UNet of diffusers, AdamW, 10 "
        "epochs. A visit's loss depends on its random timestep, so samples are ranked by their loss relative to that timestep's mean. The grid was "
        "moved up after a look at a validation split, where half the epochs did not converge at 0.016. Learning rates are chosen at full "
        "length, after a first attempt at half the epochs, as elsewhere, and a look at ten test runs of seed 0; the choice is the same, 0.008 for every "
        "arm. It is close to the edge of stability: with one seed the two bands diverged, and with another one they and the mean rule ended with "
        "twice the loss of all data.",
        "0.002,0.004,0.008",
        3,
        "images=2000",
        "epochs=10",
        noise=f"{NOISE}:gradient=root",
        lengths=FEWER,
        rate_seeds=1,
        rate_length=1,
        in_readme=False,
        caveat=TOO_SHORT,
    ),
    MAE,
    few_epochs_study(
        "alpaca",
        "Alpaca",
        "512 rows of Alpaca",
        more_arms=f",random,quantile:delta=1.0,{NOISE}",
        headline="Alpaca (instruction tuning), AdamW",
    ),
    few_epochs_study("gsm8k", "GSM8K", "512 problems of GSM8K"),
    Study(
        "table9-alpaca",
        "Table 9: on top of Dataset Quantization",
        "The paper (LLaMA-7B) prunes on top of the 1,000 rows of Alpaca that Dataset Quantization selects: 14.4 minutes instead of 18.0, "
        "the same average over four benchmarks (26.3). Here: these rows, a pretrained Llama of 260,032 parameters, AdamW, 5 epochs, one learning rate for all.",
        "alpaca",
        f"full,short,infobatch,{NOISE}",
        3,
        options=("rows=dq_k5_1k",),
    ),
    Study(
        "biased-fashion",
        "Biased rules against the noise budget",
        "In Table 1 (20 epochs, one learning rate, three seeds) two rules that keep the samples with the largest losses, without "
        f"weights, were ahead of every unbiased one in it. Here they are judged by the saving at equal quality: {SMALL_CNN}, SGD, every "
        "arm with its learning rate from the same grid.",
        "fashion",
        f"full,{NOISE},{BIASED}",
        5,
        LENGTHS,
        "0.1,0.2,0.4",
    ),
    *(
        sizes_study("fashion", 0.4, f"{SMALL_CNN}, SGD, rate 0.2", norms=norms, rates=None)
        for norms in (False, True)
    ),
    *(
        sizes_study("cifar10", 0.2, f"{SMALL_RESNET}, rate 0.2", norms=norms, rates="0.2")
        for norms in (False, True)
    ),
    probe_study(CAMVID, "CamVid", "to_eighth_size", "auto"),
    probe_study(WIDE_CIFAR10, "CIFAR-10", "3", "auto", seen=False),
    probe_study(MAE, "masked autoencoder", "vit.layers.1", f"{NOISE}:gradient=root"),
    biased_study(COVERTYPE, "Covertype", ROWS),
    BIASED_CIFAR10,
    subsets_study(
        "fashion",
        "a small CNN",
        "The arms with `save=` (the paper's dynamic methods, and our `importance`) were added after the results of the others had "
        "been seen.",
    ),
    subsets_study(
        "resnet",
        "a ResNet of 77,754 parameters",
        "All arms were stated after the results with [a small CNN](table1-fashion.md) had been seen.",
        "network=small_resnet",
    ),
    Study(
        "table4-fashion",
        "Table 4: rescaling and annealing",
        "The paper's figures are for ResNet-18 on CIFAR-100, where rescaling matters more than annealing. "
        f"Here: {SMALL_CNN}, one learning rate for all. `delta=1.0` leaves the annealing out, `rescale=False` the rescaling.",
        "fashion",
        "full,short,infobatch,mean:delta=1.0,mean:rescale=False,mean:rescale=False:delta=1.0,"
        "random:ratio=0.38:rescale=False:delta=1.0",
        5,
        paper=TABLE_4 | {"random:ratio=0.38:rescale=False:delta=1.0": "77.3 ± 0.2"},
    ),
    Study(
        "table4-cifar10",
        "Table 4: rescaling and annealing, on CIFAR-10",
        "The same on 5,000 images of CIFAR-10, cropped and flipped, a ResNet of 78,042 parameters, SGD, 16 epochs, one learning rate for "
        "all.",
        "cifar10",
        "full,short,infobatch,mean:delta=1.0,mean:rescale=False,mean:rescale=False:delta=1.0",
        5,
        options=("images=5000", "epochs=16", "network=small_resnet"),
        paper=TABLE_4,
    ),
    Study(
        "table5-fashion",
        "Table 5: where to prune",
        f"The paper's figures are for ResNet-50 on CIFAR-100. Here: {SMALL_CNN}, one learning rate for all.",
        "fashion",
        "full,short,infobatch,mean:side=above,random",
        5,
        paper={
            "full": "80.6 ± 0.1",
            "infobatch": "80.6 ± 0.2 at 33%",
            "mean:side=above": "80.5 ± 0.2 at 16%",
            "random": "80.5 ± 0.2 at 33%",
        },
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
    Study(
        "draw-fashion",
        "How the samples to keep are drawn",
        f"{SMALL_CNN}, SGD, one learning rate for all. The library keeps exactly k of the n samples of a stratum. "
        "`IndependentMean` and `IndependentNoise` keep each sample independently of the others, as the paper's Eq. 3 says, so that an "
        "epoch's weights sum to N only on average; `RotatingMean` keeps those below the mean that were left out longest, so that each "
        "is visited at even intervals.",
        "fashion",
        f"full,infobatch,{DRAWS}:IndependentMean,{DRAWS}:RotatingMean,"
        f"{NOISE},{DRAWS}:IndependentNoise:tau=0.2:delta=1.0",
        10,
    ),
    architecture_study("small_resnet", "a ResNet of 78,042 parameters", "SGD"),
    architecture_study("resnet", "a ResNet of 308,650 parameters", "SGD"),
    architecture_study("vit", "a ViT of 311,146 parameters", "AdamW"),
    optimizer_study("sgd", "0.1,0.2,0.4", full="95.6", pruned="95.6 at 41.3%"),
    optimizer_study("adamw", "0.004,0.008,0.016", full="94.3", pruned="94.4 at 41.2%"),
    optimizer_study("lars", "0.2,0.4,0.8", full="95.5", pruned="95.5 at 41.3%"),
    optimizer_study("lamb", "0.01,0.02,0.04", full="95.0", pruned="95.0 at 41.2%"),
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
