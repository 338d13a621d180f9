"""The recipes by name, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from infobatch.lab.datasets.folder import data_folder

RECIPES = {
    "fashion": "images: Fashion-MNIST (embedded), shifts and flips, small CNN, accuracy",
    "cifar10": "images: CIFAR-10, small ResNet, accuracy",
    "covertype": "tabular: Covertype, 581,012 rows, MLP, accuracy",
    "camvid": "segmentation: CamVid, small network with an auxiliary head, mIoU",
    "mae": "pretraining: masked autoencoder on CIFAR-10, accuracy of a linear probe",
    "diffusion": "generation: small UNet on Fashion-MNIST, held-out denoising loss",
    "alpaca": "language: tiny Llama tuned on Alpaca, held-out answer loss",
    "gsm8k": "language: tiny Llama tuned on grade-school problems, held-out answer loss",
}
# The files in the data folder ("a or b": either will do) and the packages that a recipe needs
# beyond the lab's own.
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fashion": ((), ()),
    "cifar10": (("cifar10 or cifar-10-batches-bin",), ("PIL",)),
    "covertype": (("covtype.npz or covtype.data.gz",), ()),
    "camvid": (("camvid_240x180.zip or CamVid",), ("PIL",)),
    "mae": (("cifar10 or cifar-10-batches-bin",), ("PIL", "transformers")),
    "diffusion": ((), ("diffusers",)),
    "alpaca": (("alpaca_25k.json.gz or alpaca", "stories260K"), ("transformers",)),
    "gsm8k": (("gsm8k", "stories260K"), ("transformers",)),
}


def load_recipe(
    name: str, *, data: Path | None = None, smoke: bool = False, options: Mapping[str, str] = {}
) -> Any:
    """Build a recipe; ``options`` are its fields by name, as strings from a command line."""
    try:
        recipe = import_module(f"infobatch.lab.recipes.{name}").Recipe
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Recipe {name!r} needs the package {error.name!r}, which is not installed. Install what "
            "the recipes need: pip install 'infobatch[recipes]'."
        ) from error
    known = {
        field.metadata.get("option", field.name): field
        for field in fields(recipe)
        if field.init and field.name not in ("folder", "smoke")
    }
    settings: dict[str, Any] = {}
    for option, text in options.items():
        if option not in known:
            raise ValueError(
                f"Recipe {name!r} has no option {option!r}. "
                + (f"Expected one of {', '.join(known)}." if known else "It has none.")
            )
        kind: Any = type(known[option].default)
        try:
            settings[known[option].name] = kind(text)
        except ValueError:
            raise ValueError(
                f"Recipe {name!r}: {option}={text!r} is not a {kind.__name__}."
            ) from None
    return recipe(folder=data_folder(data), smoke=smoke, **settings)
