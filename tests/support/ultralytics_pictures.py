"""Small data sets in Ultralytics' form: drawn squares, for each task."""

import cv2
import numpy as np

IMAGES, SIDE = 22, 64


def label(task, kind, x, y):
    """A line of a label file: a square of 20 pixels at (x, y)."""
    x, y, side = x / SIDE, y / SIDE, 20 / SIDE
    box = [x + side / 2, y + side / 2, side, side]
    corners = [x, y, x + side, y, x + side, y + side, x, y + side]
    points = [x, y, 2, x + side, y, 1, x + side / 2, y + side, 2 * (kind == 0)]
    numbers = {"detect": box, "segment": corners, "obb": corners, "pose": [*box, *points]}[task]
    return " ".join(map(str, [kind, *numbers]))


def draw(folder, task="detect"):
    """Noise with up to three squares of two classes; every fifth picture has none."""
    rng = np.random.default_rng(0)
    for split, number in (("train", IMAGES), ("val", 4)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for name in range(number):
            pixels, lines = rng.integers(0, 80, (SIDE, SIDE, 3)).astype(np.uint8), []
            for _ in range(0 if name % 5 == 4 else rng.integers(1, 4)):
                (x, y), kind = rng.integers(0, 40, 2), rng.integers(2)
                pixels[y : y + 20, x : x + 20, kind] = 255
                lines.append(label(task, kind, x, y))
            cv2.imwrite(str(folder / "images" / split / f"{name:02}.png"), pixels)
            (folder / "labels" / split / f"{name:02}.txt").write_text("\n".join(lines))
    page = folder / "data.yaml"
    points = "kpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n" if task == "pose" else ""
    page.write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [red, green]\n{points}"
    )
    return page
