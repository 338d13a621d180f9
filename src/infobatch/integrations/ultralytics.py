"""A trainer for Ultralytics' detection models that prunes its epochs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from infobatch.dataset import InfoBatch
from infobatch.files import write_atomically
from infobatch.integrations.versions import require
from infobatch.loader import PrunedLoader
from infobatch.per_sample import GRADIENT, PerSample
from infobatch.policies.baselines.afss import MEASURED_EVERY, QUALITY, AfssPrune
from infobatch.policies.resolve import resolve_policy
from infobatch.scoring.detection import detection
from infobatch.trainers import samples_per_epoch, summary

require("ultralytics", ">=8.4.190,<8.5", extra="ultralytics")

from ultralytics.data.augment import Mosaic  # noqa: E402 - after the check of its version
from ultralytics.models.yolo.detect import DetectionTrainer  # noqa: E402
from ultralytics.nn.modules import Detect  # noqa: E402
from ultralytics.utils import LOGGER, RANK  # noqa: E402
from ultralytics.utils.loss import E2ELoss, v8DetectionLoss  # noqa: E402
from ultralytics.utils.patches import override_configs  # noqa: E402
from ultralytics.utils.torch_utils import unwrap_model  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from infobatch.policies.options import Arguments

_ENTRY, _MEASURED = "infobatch", "infobatch_measured"  # in Ultralytics' checkpoints
_CONFIDENCE = 0.25  # of the detections that count for AFSS, with an IoU of 0.5

# Settings that need a fixed order of the images, a known end, or a loss of another form.
_UNSUPPORTED = {
    "rect": "a batch is fixed by the shapes of its images, so none of them can be left out",
    "time": "the number of epochs is not known in advance; set epochs instead",
    "distill_model": "the teacher's loss is known only for the whole batch",
    "quantize": "its calibration reads the training images outside of an epoch",
}


class InfoBatchDetectionTrainer(DetectionTrainer):  # type: ignore[misc]
    """Ultralytics' ``DetectionTrainer`` with pruned epochs, for ``YOLO(…).train(trainer=…)``.

    ``train_data`` is the pruned data (its ``savings``, ``scores``, ``export_scores``). Checkpoints have
    its state, so ``resume=True`` continues with the scores.

    ``policy="auto"`` by default; for other options derive a class with :meth:`with_options`. With
    ``policy="afss"``, every fifth epoch begins with a pass over all training images, which measures their
    precision and recall.

    With mosaic, an image is a mixture. Its loss belongs to the image that was drawn for the epoch; the
    others in it are chosen among all training images, whatever was pruned, so that the weighted
    gradient is still that of training on all images, on average. (Ultralytics itself chooses them
    among recently loaded images, unless ``cache="ram"``; these would be those that were not pruned.)

    Args:
        *args, **kwargs: ``cfg``, ``overrides`` and ``_callbacks``, as Ultralytics calls it.

    Raises:
        ValueError: if the task is not detection, or a setting cannot be used with pruning.
        RuntimeError: in a run with several processes.
    """

    pruning: ClassVar[dict[str, Any]] = {"policy": "auto"}
    train_data: InfoBatch
    metrics: dict[str, Any]
    wdir: Path
    last: Path
    best: Path
    quality: torch.Tensor | None
    positions: dict[str, int]

    @classmethod
    def with_options(cls, **options: Unpack[Arguments]) -> type[InfoBatchDetectionTrainer]:
        """Return this trainer with other options of pruning, which :class:`infobatch.Options` describes.

        Args:
            **options: any of the options, by name.

        Returns:
            A class and not an object, because that is what Ultralytics takes.

        Example::

            trainer = InfoBatchDetectionTrainer.with_options(policy="mean", save=0.3)
            YOLO("yolo11n.yaml").train(trainer=trainer, data="my.yaml", epochs=100)
        """
        return type(cls.__name__, (cls,), {"pruning": {**cls.pruning, **options}})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.quality = None
        self._loaded: dict[str, Any] | None = None  # the state in the checkpoint
        self.measured = 0  # forward passes for precision and recall
        name = type(self).__name__
        if self.args.task != "detect":
            raise ValueError(
                f"{name} got a model for task={self.args.task!r}, expected task='detect': the losses of "
                "other tasks are not known image by image. Train it with Ultralytics' own trainer."
            )
        for setting, reason in _UNSUPPORTED.items():
            if value := getattr(self.args, setting):
                raise ValueError(
                    f"{name} got {setting}={value!r}, which cannot be used with pruning: {reason}. Leave it out."
                )
        if RANK != -1 or self.world_size > 1:
            raise RuntimeError(
                f"{name} got several devices or processes (device={self.args.device!r}, RANK={RANK}), "
                "expected one: it is not tested with Ultralytics' DDP. Pass one device, such as device=0."
            )
        self.add_callback("on_train_epoch_start", _begin_epoch)
        self.add_callback("on_train_epoch_end", _end_epoch)
        self.add_callback("on_train_end", _log_summary)

    def get_dataloader(
        self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train"
    ) -> Any:
        """Return Ultralytics' loader for validation, and one of the epochs' images for training."""
        loader = super().get_dataloader(dataset_path, batch_size, rank, mode)
        if mode != "train":
            return loader
        for mosaic in _mosaics(loader.dataset.transforms):
            mosaic.buffer_enabled = False  # of recently loaded images: those that were not pruned
        options = {"seed": self.args.seed, **self.pruning}
        if isinstance(rule := resolve_policy(options["policy"]), AfssPrune):
            options["policy"] = replace(rule, extras=True)
        self.train_data = InfoBatch(loader.dataset, self.epochs, **options)
        if self._loaded is not None:  # Ultralytics tries again with smaller batches
            self.train_data.load_state_dict(self._loaded)
        return _Loader(
            self.train_data,
            loader.batch_size,
            drop_last=loader.drop_last,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.num_workers > 0,
            pin_memory=loader.pin_memory,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
        )

    def _setup_train(self) -> None:
        super()._setup_train()
        model = unwrap_model(self.model)
        if not isinstance(head := model.model[-1], Detect):
            raise TypeError(
                f"{type(self).__name__} got a model that ends in {type(head).__name__}, expected Detect: the "
                "losses of others are not known image by image. Train it with Ultralytics' own trainer."
            )
        criterion = getattr(model, "criterion", None) or model.init_criterion()
        model.criterion = _PrunedLoss(criterion, self)

    def qualities(self) -> torch.Tensor:
        """Measure min(precision, recall) of every training image, without augmentation, on the CPU.

        With the averaged model that Ultralytics validates, detections with a confidence of at least 0.25,
        and an IoU of at least 0.5. An image without objects has 1 if nothing is detected, otherwise 0.

        Returns:
            One number per image.
        """
        with override_configs(self.args, {"cache": False}):  # a second copy would be kept
            loader = super().get_dataloader(self.data["train"], self.batch_size * 2, -1, "val")
        validator = self.get_validator()
        validator.device, validator.data, validator.args.conf = self.device, self.data, _CONFIDENCE
        model = self.ema.ema.eval()
        validator.init_metrics(model)
        quality_of = {}
        with torch.no_grad():
            for raw in loader:
                batch = validator.preprocess(raw)
                detections = validator.postprocess(model(batch["img"]))
                for image, detected in enumerate(detections):
                    labelled = validator._prepare_batch(image, batch)
                    quality_of[labelled["im_file"]] = _quality(validator, detected, labelled)
        loader.close()
        self.measured += len(quality_of)
        return torch.tensor([quality_of[path] for path in self.train_data.im_files])

    def save_metrics(self, metrics: dict[str, Any]) -> None:
        """Write ``results.csv`` as Ultralytics does, and give loggers the numbers of pruning as well."""
        super().save_metrics({k: v for k, v in metrics.items() if not k.startswith("infobatch/")})
        self.metrics = {**self.metrics, **self.train_data.savings.as_dict()}

    def save_model(self) -> bool:
        """Save Ultralytics' checkpoints, with the state of ``train_data`` as one more entry.

        Ultralytics writes them into a temporary folder: a run that is stopped meanwhile still has its last ones.
        """
        places = (self.wdir, self.last, self.best)
        self.wdir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.wdir) as name:
            folder = Path(name)
            self.wdir = folder
            self.last, self.best = (folder / path.name for path in places[1:])
            try:
                saved: bool = super().save_model()
                checkpoint = torch.load(self.last, map_location="cpu", weights_only=False)
            finally:
                self.wdir, self.last, self.best = places
            buffer = io.BytesIO()
            own = {_ENTRY: self.train_data.state_dict(), _MEASURED: self.measured}
            torch.save({**checkpoint, **own}, buffer)
            for file in folder.iterdir():  # the last one, and perhaps the best one and one to keep
                write_atomically(
                    self.wdir / file.name, lambda path: path.write_bytes(buffer.getbuffer())
                )
        return saved

    def _load_checkpoint_state(self, ckpt: dict[str, Any]) -> None:
        """Load a checkpoint, to resume, or to repeat an epoch whose loss was not finite."""
        model = unwrap_model(self.model)
        criterion = getattr(model, "criterion", None)
        model.criterion = (
            None  # the average of the model is a copy of it: validation has its own loss
        )
        super()._load_checkpoint_state(ckpt)
        model.criterion = criterion
        # Passes before an epoch that is repeated were made, too.
        self.measured = max(self.measured, ckpt.get(_MEASURED, 0))
        self._loaded = ckpt.get(_ENTRY)
        if self._loaded is not None:
            self.train_data.load_state_dict(self._loaded)


def smaller_of_precision_and_recall(correct: torch.Tensor, objects: int) -> float:
    """The smaller one of an image's precision and recall: which detections are right, and how many objects there are."""
    if not objects or not len(correct):
        return float(objects == len(correct))
    return float(correct.sum()) / max(objects, len(correct))


def _quality(validator: Any, detected: dict[str, torch.Tensor], labelled: dict[str, Any]) -> float:
    """The smaller one of an image's precision and recall, at an IoU of 0.5."""
    matches = validator._process_batch(validator._prepare_pred(detected), labelled)["tp"]
    return smaller_of_precision_and_recall(torch.as_tensor(matches[:, 0]), len(labelled["cls"]))


def _begin_epoch(trainer: InfoBatchDetectionTrainer) -> None:
    """Tell the pruner the epoch, and measure the images if its rule needs that and it is time."""
    train_data, trainer.quality = trainer.train_data, None
    train_data.set_epoch(trainer.epoch)
    if isinstance(train_data.policy, AfssPrune):
        count = train_data.num_samples
        due = trainer.epoch and trainer.epoch % MEASURED_EVERY == 0
        trainer.quality = trainer.qualities() if due else torch.full((count,), torch.nan)
        trainer.positions = {path: row for row, path in enumerate(train_data.im_files)}


def _end_epoch(trainer: InfoBatchDetectionTrainer) -> None:
    """Report what was measured of the images that the epoch has left out: the others have reported it."""
    train_data, quality = trainer.train_data, trainer.quality
    if trainer.stop:  # perhaps in the middle of it; no other epoch follows
        return
    if quality is not None and not quality.isnan().all() and len(out := train_data.left_out):
        unknown = torch.full((len(out),), torch.nan)  # the loss; it keeps its last one
        train_data.refresh(unknown, out, extras={QUALITY: quality[out]})


def _log_summary(trainer: InfoBatchDetectionTrainer) -> None:
    LOGGER.info(summary(trainer.train_data))
    if trainer.measured:
        counted = trainer.train_data.savings.refreshed
        LOGGER.info(
            f"Measuring precision and recall took {trainer.measured:,} forward passes, of which the "
            f"line above counts {counted:,}, those of images that their epoch left out"
        )


def _mosaics(transform: Any) -> Iterator[Mosaic]:
    """The mosaics in a transform, also those of the partners in a mixture."""
    if isinstance(transform, Mosaic):
        yield transform
    for inner in (getattr(transform, "pre_transform", None), *getattr(transform, "transforms", ())):
        if inner is not None:
            yield from _mosaics(inner)


class _Loader(PrunedLoader):
    """A loader for Ultralytics' loop, which asks for its length and its iterator in its own ways."""

    def __init__(self, train_data: InfoBatch, batch_size: int, **options: Any) -> None:
        super().__init__(train_data, batch_size, **options)
        samples = samples_per_epoch(train_data)
        drops = options["drop_last"]
        self._batches = samples // batch_size if drops else -(-samples // batch_size)

    def __len__(self) -> int:
        """The batches of an epoch over all data: asked for once, for the warm-up of all epochs."""
        return self._batches

    def __iter__(self) -> Any:
        """Begin when the first batch is asked for: Ultralytics creates a second iterator, unused."""
        yield from super().__iter__()

    def close(self) -> None:
        """End the workers."""
        self.reset()


class ImageLosses:
    """Ultralytics' detection loss image by image, for loops of one's own.

    ``ImageLosses(model.init_criterion())(preds, batch)`` returns one loss, score and size of the gradient
    per image; ``losses.mean()`` times the number of images is what the criterion returns.

    Args:
        criterion: Ultralytics' own, of a model that ends in ``Detect``. Use it only through this object.
    """

    def __init__(self, criterion: Any) -> None:
        end_to_end = isinstance(criterion, E2ELoss)
        branches = (criterion.one2many, criterion.one2one) if end_to_end else (criterion,)
        self._criterion = criterion
        self._branches = [_Branch(branch) for branch in branches]
        if end_to_end:
            self.update = criterion.update  # of the branches' gains, after each epoch

    def __call__(self, preds: Any, batch: dict[str, Any]) -> PerSample:
        """Compute the losses of a batch from what the model returned in training or evaluation mode."""
        if len(self._branches) == 1:
            outputs, gains = [self._branches[0].parse(preds)], [1.0]
        else:
            named = self._branches[0].parse(preds)
            outputs = [named["one2many"], named["one2one"]]
            gains = [self._criterion.o2m, self._criterion.o2o]
        for branch, output in zip(self._branches, outputs, strict=True):
            branch.measure(output, batch)
        return _sum([branch.per_image() for branch in self._branches], gains)

    def parts(self) -> dict[str, torch.Tensor]:
        """Return the parts of the last batch's losses by the names that Ultralytics logs, detached."""
        logged = self._branches[-1]
        return {name: logged.per_image(name).losses.detach() for name in logged.parts}


class _PrunedLoss:
    """The criterion of the model in training: Ultralytics' own, image by image and weighted."""

    def __init__(self, criterion: Any, trainer: InfoBatchDetectionTrainer) -> None:
        self._per_image, self._trainer = ImageLosses(criterion), trainer
        if hasattr(self._per_image, "update"):
            self.update = self._per_image.update

    def __call__(self, preds: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the weighted loss times the number of images, and its parts, for the log."""
        train_data, whole = self._trainer.train_data, self._per_image(preds, batch)
        extras = None
        if (quality := self._trainer.quality) is not None:
            rows = [self._trainer.positions[path] for path in batch["im_file"]]
            extras = {QUALITY: quality[rows].to(whole.losses.device)}
        loss = train_data.update(whole, extras=extras) * whole.losses.shape[0]
        parts = self._per_image.parts()
        return loss, {name: train_data.reweight(part) for name, part in parts.items()}


class _Branch:
    """Ultralytics' loss with the sums over each image beside those over the batch.

    Ultralytics computes the loss as ever; two of its steps are observed. The class loss is known for
    each image. The box losses are added up inside, each multiplied by its target score: so their
    derivative with respect to a factor of an image's target scores is the image's own sum.
    """

    def __init__(self, criterion: v8DetectionLoss) -> None:
        self._criterion = criterion
        self._bce, self._bbox_loss = criterion.bce, criterion.bbox_loss
        criterion.bce, criterion.bbox_loss = self._classes, self._boxes
        self.parse = criterion.parse_output

    def measure(self, preds: Any, batch: dict[str, Any]) -> None:
        """Compute the loss of a batch, and remember its parts."""
        self._criterion.loss(preds, batch)
        box, classes, dfl = self._criterion.loss_names
        # Class weights have been multiplied into it since.
        sums = (self._boxes_of[0], self._classes_of.sum((1, 2)), self._boxes_of[1])
        self.parts = dict(zip((box, classes, dfl), sums, strict=True))
        hyp = self._criterion.hyp
        self._gains = {box: hyp.box, classes: hyp.cls, dfl: hyp.dfl}

    def per_image(self, *names: str) -> PerSample:
        """One loss per image: all of its parts, or those that are named."""
        parts = {name: self.parts[name] for name in names or self.parts}
        gains = {name: self._gains[name] for name in parts}
        return detection(parts, gains, counts=self._counts)

    def _classes(self, *args: torch.Tensor) -> Any:
        self._classes_of = self._bce(*args)
        return self._classes_of

    def _boxes(self, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        target_scores, target_scores_sum = args[4:6]
        self._counts = target_scores.sum((1, 2))
        factors = target_scores.new_ones(len(target_scores), 1, 1, requires_grad=True)
        divisor = torch.ones_like(target_scores_sum)
        box, dfl = self._bbox_loss(*args[:4], target_scores * factors, divisor, *args[6:])
        self._boxes_of = [
            torch.autograd.grad(part, factors, create_graph=True)[0].flatten()
            for part in (box, dfl)
        ]
        return box / target_scores_sum, dfl / target_scores_sum


def _sum(branches: list[PerSample], gains: list[float]) -> PerSample:
    """The losses, scores and squared sizes of the branches, added up."""
    if len(branches) == 1:
        return branches[0]
    pairs = list(zip(gains, branches, strict=True))
    losses = torch.stack([gain * branch.losses for gain, branch in pairs]).sum(0)
    scores = torch.stack([gain * branch.scores for gain, branch in pairs]).sum(0)
    squares = torch.stack([gain * branch.extras[GRADIENT].square() for gain, branch in pairs])
    return PerSample(losses, scores, {GRADIENT: squares.sum(0).sqrt()})
