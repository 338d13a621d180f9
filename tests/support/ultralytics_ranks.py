"""Trainers for Ultralytics' DDP on two processes without a GPU, and what they note.

Ultralytics starts these processes itself, with the script that it writes, and binds each to a GPU. Only this
binding is replaced: the processes, gloo, DistributedDataParallel and everything that they do are real.
"""

from types import SimpleNamespace

import ultralytics_operators  # noqa: F401 - before ultralytics

# isort: split
import torch
import torch.distributed as dist
from torch import nn
from ultralytics.engine import validator
from ultralytics.models.yolo.detect import DetectionTrainer
from ultralytics.utils import LOCAL_RANK, RANK
from ultralytics.utils.patches import override_configs
from ultralytics.utils.torch_utils import unwrap_model

from infobatch.integrations.ultralytics import ImageLosses, InfoBatchDetectionTrainer
from infobatch.integrations.ultralytics import trainer as pruned_trainer
from infobatch.integrations.ultralytics.quality import qualities_by_path

RANKS = 2


class OnProcessors(InfoBatchDetectionTrainer):
    """Two processes on the processor instead of two GPUs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.world_size, self.ddp = RANKS, LOCAL_RANK == -1

    def _setup_ddp(self):
        dist.init_process_group("gloo", rank=RANK, world_size=self.world_size)
        plain, backend = nn.parallel.DistributedDataParallel, validator.AutoBackend
        nn.parallel.DistributedDataParallel = lambda model, device_ids, **kw: plain(model, **kw)
        gpu = SimpleNamespace(current_device=lambda: 0)
        validator.get_torch_device_backend = lambda device: gpu
        validator.AutoBackend = lambda device, **kw: backend(device=torch.device("cpu"), **kw)


class Noting(OnProcessors):
    """Notes what each process has seen, in a file for each beside the checkpoints.

    The third epoch diverges once, so that Ultralytics repeats it.
    """

    breaks = True

    def get_model(self, *args, **kwargs):
        """With boxes of about the right size, as after some training."""
        model = super().get_model(*args, **kwargs)
        for level in model.model[-1].cv2:
            level[-1].bias.data.view(4, -1)[:, 1] += 5.0
        return model

    def _do_train(self):
        self.notes = {"files": {}, "plans": {}, "batches": {}, "broken": None}
        self.notes |= {"checked": 0, "divided": 0}
        self.resumed = bool(self.resume)
        super()._do_train()
        data = self.train_data
        self.notes |= {
            "scores": data.scores,
            "savings": str(data.savings),
            "weights": nn.utils.parameters_to_vector(self.model.parameters()).detach(),
            "epochs": self.epoch + 1,
        }
        name = "resumed" if self.resumed else "whole"
        torch.save(self.notes, self.save_dir / f"{name}-{RANK}.pt")

    def preprocess_batch(self, batch):
        if not self.train_data.progress.done:
            self.notes["files"][self.epoch], self.notes["batches"][self.epoch] = [], 0
        self.notes["files"][self.epoch] += batch["im_file"]
        self.notes["batches"][self.epoch] += 1
        self.notes["plans"][self.epoch] = (self.train_data.plan.order, self.train_data.plan.weights)
        batch = super().preprocess_batch(batch)
        self.batch = batch
        if self.epoch == 1:  # with the weights as they are before the step
            self.expected = self.expected_gradient()
        return batch

    def optimizer_step(self):
        if self.epoch == 1:
            found = [p.grad for p in self.model.parameters() if p.requires_grad]
            largest = max(float(gradient.abs().max()) for gradient in self.expected)
            for ours, theirs in zip(found, self.expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5 * largest)
            self.notes["checked"] += 1
        super().optimizer_step()
        if self.breaks and self.epoch == 2 and not self.resumed and self.notes["broken"] is None:
            self.notes["broken"] = self.train_data.plan.order
            with torch.no_grad():
                next(self.model.parameters()).fill_(torch.nan)

    def expected_gradient(self):
        """The gradient of the weighted losses of the batches of both ranks, from the plan alone."""
        model = unwrap_model(self.model)
        order, weights = self.notes["plans"][1]
        size, step = self.train_loader.batch_size, self.notes["batches"][1] - 1
        mine = range(RANK + RANKS * step * size, len(order) + RANKS, RANKS)[
            : len(self.batch["img"])
        ]
        real = min(len(order) - RANKS * step * size, RANKS * size)  # over both ranks
        factors = torch.tensor([weights[at] if at < len(order) else 0.0 for at in mine])
        statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
        image_losses = ImageLosses(model.init_criterion())
        losses = image_losses(model(self.batch["img"]), self.batch).losses
        scores = image_losses._branches[0]._counts  # target scores
        total = float(scores.sum())
        loss = (factors * losses).sum()
        if total > 1 and (factors * scores).sum() > 0:  # otherwise the divisor is 1
            # Of this rank's own images, the divisor weighted as well.
            sums = losses * total / len(losses)
            loss = (factors * sums).sum() / (factors * scores).sum() * factors.sum()
            self.notes["divided"] += len(set(factors.tolist())) > 1
        # Ultralytics adds up what its ranks say, each times the number of its images.
        loss = loss / real * RANKS * len(losses)
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(statistics[name])
        total = []
        for weight, gradient in zip(parameters, gradients, strict=True):
            total.append(torch.zeros_like(weight) if gradient is None else gradient.contiguous())
            dist.all_reduce(total[-1])
        return total


class Measuring(Noting):
    """Never gets better, measures often, takes all images as learnt.

    It notes what AFSS has measured, and what one process alone would have.
    """

    breaks = False

    def _do_train(self):
        pruned_trainer.MEASURED_EVERY = 2
        super()._do_train()

    def validate(self):
        metrics, _ = super().validate()
        return (None, None) if metrics is None else (metrics, 0.5)

    def qualities(self):
        measured = super().qualities()
        with override_configs(self.args, {"cache": False}):
            loader = DetectionTrainer.get_dataloader(
                self, self.data["train"], self.batch_size, -1, "val"
            )
        alone = qualities_by_path(self, loader)
        alone = torch.tensor([alone[path] for path in self.train_data.im_files])
        self.notes["qualities"] = (measured, alone)
        return torch.ones(len(measured))
