"""What Ultralytics' trainers with pruned epochs share: loaders, losses, checkpoints, ranks."""

from __future__ import annotations

import io
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from ultralytics.engine.trainer import BaseTrainer
from ultralytics.utils import DEFAULT_CFG, LOCAL_RANK, LOGGER, RANK
from ultralytics.utils.patches import override_configs
from ultralytics.utils.torch_utils import unwrap_model

from infobatch import InfoBatch
from infobatch.integrations.ultralytics.loading import EpochLoader, mosaics
from infobatch.integrations.ultralytics.losses import ImageLosses
from infobatch.integrations.ultralytics.quality import (
    from_all_ranks,
    qualities_by_path,
    same_buffers,
)
from infobatch.policies import AfssPrune, resolve_policy
from infobatch.trainers import (
    MEASURED_EVERY,
    QUALITY,
    count_measurement,
    summary,
    write_atomically,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from infobatch.trainers import Arguments

_ENTRY = "infobatch"  # in Ultralytics' checkpoints
TRAINERS = {  # by task
    "detect": "InfoBatchDetectionTrainer",
    "segment": "InfoBatchSegmentationTrainer",
    "pose": "InfoBatchPoseTrainer",
    "obb": "InfoBatchOBBTrainer",
    "classify": "InfoBatchClassificationTrainer",
}

# Settings that need a fixed order of the images, a known end, or a loss of another form.
_UNSUPPORTED = {
    "rect": "a batch is fixed by the shapes of its images, so none of them can be left out",
    "time": "the number of epochs is not known in advance; set epochs instead",
    "distill_model": "the teacher's loss is known only for the whole batch",
    "quantize": "its calibration reads the training images outside of an epoch",
}


class PrunedTrainer(BaseTrainer):  # type: ignore[misc]
    """A trainer of Ultralytics with pruned epochs; derive from it and from Ultralytics' own for the task."""

    pruning: ClassVar[dict[str, Any]] = {"policy": "auto"}
    task: ClassVar[str]  # as Ultralytics calls it
    head: ClassVar[type[nn.Module]]  # the last module of its models
    train_data: InfoBatch
    metrics: dict[str, Any]
    wdir: Path
    last: Path
    best: Path
    quality: torch.Tensor | None
    positions: dict[str, int]

    @classmethod
    def with_options(cls, **options: Unpack[Arguments]) -> type[Self]:
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

    def __init__(
        self,
        cfg: Any = DEFAULT_CFG,
        overrides: dict[str, Any] | None = None,
        _callbacks: dict[str, Any] | None = None,
    ) -> None:
        self._check_task((overrides or {}).get("task"))  # some trainers would set their own
        super().__init__(cfg, overrides, _callbacks)
        self.quality = None
        self._loaded: dict[str, Any] | None = None  # the state in the checkpoint
        self._check_task(self.args.task)
        self._check_settings()
        for event, callback in _CALLBACKS.items():
            if callback not in self.callbacks.get(event, ()):  # as in a process of Ultralytics' DDP
                self.add_callback(event, callback)

    def _check_task(self, task: str | None) -> None:
        """Raise if the model is one for another trainer."""
        if task in (None, self.task):
            return
        other = TRAINERS.get(str(task))
        remedy = (
            f"Use {other}."
            if other
            else "The losses of that task are not known image by image: train it with Ultralytics' own trainer."
        )
        raise ValueError(
            f"{type(self).__name__} got a model for task={task!r}, expected task={self.task!r}. {remedy}"
        )

    def _check_settings(self) -> None:
        """Raise if a setting cannot be used with pruning."""
        name = type(self).__name__
        for setting, reason in _UNSUPPORTED.items():
            if value := getattr(self.args, setting):
                raise ValueError(
                    f"{name} got {setting}={value!r}, which cannot be used with pruning: {reason}. Leave it out."
                )
        if self.args.compile and self.world_size > 1:
            raise ValueError(
                f"{name} got compile={self.args.compile!r} and device={self.args.device!r}, expected one device or "
                "compile=False: several compiled processes need every weight in every step, and an image without "
                "objects does not use those of the boxes."
            )
        for option in ("sharded", "global_order"):
            if self.pruning.get(option):
                raise ValueError(
                    f"{name}.with_options({option}=True) cannot be used with Ultralytics: its first process alone "
                    "writes the checkpoint, and each reads its own share of the images. Leave it out."
                )

    def train(self) -> None:
        """Train, with several devices in processes of their own, whose pruned data is then read here."""
        super().train()
        if self.ddp and self.last.exists():
            self._read_pruned_data()

    def _read_pruned_data(self) -> None:
        """Build ``train_data`` from the last checkpoint, after other processes have trained."""
        checkpoint = torch.load(self.last, map_location="cpu", weights_only=False)
        if not isinstance(self.model, nn.Module):
            self.setup_model()  # the data set asks for its strides
        with override_configs(self.args, {"cache": False}):
            dataset = self.build_dataset(self.data["train"], "train", self.batch_size)
        self.train_data = self._prune(dataset)
        self.train_data.load_state_dict(checkpoint[_ENTRY])

    def get_dataloader(
        self, dataset_path: str, batch_size: int = 16, rank: int = 0, mode: str = "train"
    ) -> Any:
        """Return Ultralytics' loader for validation, and one of the epochs' images for training."""
        loader = super().get_dataloader(dataset_path, batch_size, rank, mode)
        if mode != "train":
            return loader
        for mosaic in mosaics(getattr(loader.dataset, "transforms", None)):
            mosaic.buffer_enabled = False  # of recently loaded images: those that were not pruned
        self.train_data = self._prune(loader.dataset)
        if self._loaded is not None:  # Ultralytics tries again with smaller batches
            self.train_data.load_state_dict(self._loaded)
        # Batch normalisation needs two values: a batch of one image that shrinks to one pixel has one.
        smallest = int(self.args.imgsz * (1 - self.args.multi_scale))
        return EpochLoader(
            self.train_data,
            loader.batch_size,
            drop_last=loader.drop_last,
            even=smallest < 2 * self.stride and not loader.drop_last,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.num_workers > 0,
            pin_memory=loader.pin_memory,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
        )

    def _prune(self, dataset: Any) -> InfoBatch:
        """The data set with pruned epochs; those of the warm-up are whole, because it counts batches."""
        warmup = ceil(min(self.args.warmup_epochs, self.epochs - 1))
        options = {"seed": self.args.seed, "warmup": warmup, **self.pruning}
        if isinstance(rule := resolve_policy(options["policy"]), AfssPrune):
            options["policy"] = replace(rule, extras=True)
        return InfoBatch(dataset, self.epochs, **options)

    def _setup_train(self) -> None:
        name = type(self).__name__
        if RANK != -1 and self.world_size < 2:
            raise RuntimeError(
                f"{name} got several processes (RANK={RANK}) and device={self.args.device!r}, expected as many "
                "devices as processes: Ultralytics connects them only then. Pass all devices, such as "
                "device=[0, 1], and leave out torchrun."
            )
        super()._setup_train()
        model = unwrap_model(self.model)
        if not isinstance(head := model.model[-1], self.head):
            raise TypeError(
                f"{name} got a model that ends in {type(head).__name__}, expected {self.head.__name__}: the "
                "losses of others are not known image by image. Train it with Ultralytics' own trainer."
            )
        criterion = getattr(model, "criterion", None) or model.init_criterion()
        model.criterion = _PrunedLoss(self._image_losses(criterion), self)

    def _image_losses(self, criterion: Any) -> Any:
        """The losses of the model's criterion, image by image."""
        return ImageLosses(criterion)

    def qualities(self) -> torch.Tensor:
        """Measure min(precision, recall) of every training image, without augmentation, on the CPU.

        With the averaged model that Ultralytics validates, detections with a confidence of at least 0.25,
        and an IoU of at least 0.5. An image without objects has 1 if nothing is detected, otherwise 0.
        With several processes each measures its share; call it in all of them.

        Returns:
            One number per image.
        """
        with override_configs(self.args, {"cache": False}):  # a second copy would be kept
            loader = super().get_dataloader(
                self.data["train"],
                self.batch_size * 2 // max(self.world_size, 1),
                LOCAL_RANK,
                "val",
            )
        same_buffers(self.ema.ema)
        quality_of = qualities_by_path(self, loader)
        loader.close()
        own = [quality_of.get(path, torch.nan) for path in self.train_data.im_files]
        return from_all_ranks(torch.tensor(own), self.device)

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
            # The first process alone: the others do not wait for it here.
            torch.save({**checkpoint, _ENTRY: self.train_data.state_dict(gather=False)}, buffer)
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
        self._loaded = ckpt.get(_ENTRY)
        if self._loaded is not None:
            self.train_data.load_state_dict(self._loaded)


def _begin_epoch(trainer: PrunedTrainer) -> None:
    """Tell the pruner the epoch, and measure the images if its rule needs that and it is time."""
    train_data, trainer.quality = trainer.train_data, None
    train_data.set_epoch(trainer.epoch)
    if isinstance(train_data.policy, AfssPrune):
        count = train_data.num_samples
        due = trainer.epoch and trainer.epoch % MEASURED_EVERY == 0
        trainer.quality = trainer.qualities() if due else torch.full((count,), torch.nan)
        trainer.positions = {path: row for row, path in enumerate(train_data.im_files)}


def _end_epoch(trainer: PrunedTrainer) -> None:
    """Report what was measured of the images that the epoch has left out, and count the passes of all.

    The images that it has kept have reported theirs.
    """
    train_data, quality, progress = trainer.train_data, trainer.quality, trainer.train_data.progress
    if progress.done < progress.total:  # stopped in the middle of it; no other epoch follows
        return
    if quality is None or quality.isnan().all():
        return
    if len(out := train_data.left_out):
        own = out[max(RANK, 0) :: max(trainer.world_size, 1)]
        unknown = torch.full((len(own),), torch.nan)  # the loss; it keeps its last one
        train_data.refresh(unknown, own, extras={QUALITY: quality[own]})
    count_measurement(train_data)


def _log_summary(trainer: PrunedTrainer) -> None:
    LOGGER.info(summary(trainer.train_data))


_CALLBACKS = {
    "on_train_epoch_start": _begin_epoch,
    "on_train_epoch_end": _end_epoch,
    "on_train_end": _log_summary,
}


class _PrunedLoss:
    """The criterion of the model in training: Ultralytics' own, image by image and weighted."""

    def __init__(self, per_image: Any, trainer: PrunedTrainer) -> None:
        self._per_image, self._trainer = per_image, trainer
        if hasattr(self._per_image, "update"):
            self.update = self._per_image.update

    def __call__(self, preds: Any, batch: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the weighted loss times the number of images, and its parts, for the log."""
        train_data, whole = self._trainer.train_data, self._per_image(preds, batch)
        extras = None
        if (quality := self._trainer.quality) is not None:
            rows = [self._trainer.positions[path] for path in batch["im_file"]]
            extras = {QUALITY: quality[rows].to(whole.losses.device)}
        loss = train_data.update(whole, extras=extras)
        parts = self._per_image.parts()
        items = {name: train_data.reweight(part).detach() for name, part in parts.items()}
        return self._per_image.whole(loss, len(whole.losses)), items
