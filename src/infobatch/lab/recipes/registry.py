"""The recipes by name, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from infobatch.lab.datasets.folder import data_folder
from infobatch.registry import Entry, Registry


@dataclass(frozen=True)
class RecipeEntry(Entry):
    """A recipe: where its class is, and what it needs beyond what the lab itself does.

    Args:
        files: in the data folder; with "a or b", either will do.
        packages: the names by which they are imported.
    """

    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


RECIPES: Registry[type[Any], RecipeEntry] = Registry(
    {
        "fashion": RecipeEntry(
            "infobatch.lab.recipes.fashion:Recipe",
            "images: Fashion-MNIST (embedded), shifts and flips, small CNN, accuracy",
        ),
        "cifar10": RecipeEntry(
            "infobatch.lab.recipes.cifar10:Recipe",
            "images: CIFAR-10, small ResNet, accuracy",
            files=("cifar10 or cifar-10-batches-bin",),
            packages=("PIL",),
        ),
        "covertype": RecipeEntry(
            "infobatch.lab.recipes.covertype:Recipe",
            "tabular: Covertype, 581,012 rows, MLP, accuracy",
            files=("covtype.npz or covtype.data.gz",),
        ),
        "camvid": RecipeEntry(
            "infobatch.lab.recipes.camvid:Recipe",
            "segmentation: CamVid, small network with an auxiliary head, mIoU",
            files=("camvid_240x180.zip or CamVid",),
            packages=("PIL",),
        ),
        "bccd": RecipeEntry(
            "infobatch.lab.recipes.bccd:Recipe",
            "detection: blood cells (BCCD), small YOLO11 of Ultralytics, mAP50-95",
            files=("bccd_320x240.zip or BCCD",),
            packages=("PIL", "ultralytics"),
        ),
        "mae": RecipeEntry(
            "infobatch.lab.recipes.mae:Recipe",
            "pretraining: masked autoencoder on CIFAR-10, accuracy of a linear probe",
            files=("cifar10 or cifar-10-batches-bin",),
            packages=("PIL", "transformers"),
        ),
        "diffusion": RecipeEntry(
            "infobatch.lab.recipes.diffusion:Recipe",
            "generation: small UNet on Fashion-MNIST, held-out denoising loss",
            packages=("diffusers",),
        ),
        "alpaca": RecipeEntry(
            "infobatch.lab.recipes.alpaca:Recipe",
            "language: tiny Llama tuned on Alpaca, held-out answer loss",
            files=("alpaca_25k.json.gz or alpaca", "stories260K"),
            packages=("transformers",),
        ),
        "gsm8k": RecipeEntry(
            "infobatch.lab.recipes.gsm8k:Recipe",
            "language: tiny Llama tuned on grade-school problems, held-out answer loss",
            files=("gsm8k", "stories260K"),
            packages=("transformers",),
        ),
    }
)


def load_recipe(
    name: str, *, data: Path | None = None, smoke: bool = False, options: Mapping[str, str] = {}
) -> Any:
    """Build a recipe; ``options`` are its fields by name, as strings from a command line."""
    try:
        recipe = RECIPES[name]
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Recipe {name!r} needs the package {error.name!r}, which is not installed. Install what "
            "the recipes need: pip install '.[recipes]' in a clone of infobatch."
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
