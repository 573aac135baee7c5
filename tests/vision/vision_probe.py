"""Asks the C++ test program vision_probe, and makes pictures for it."""

import functools
import os

import numpy as np
import probe

ask = functools.partial(probe.ask, program="vision_probe")


def write_icons(directory, classes=("apps", "mimetypes"), splits=("train", "test"), each=6, size=32, seed=0):
    """A small set of pictures, of a color per class and noise, as folders; returns the paths by split."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    paths = {}
    for split in splits:
        for number, name in enumerate(classes):
            folder = os.path.join(directory, split, name)
            os.makedirs(folder, exist_ok=True)
            for i in range(each):
                pixels = draw.integers(0, 120, (size, size, 3))
                pixels[..., number % 3] += 100
                path = os.path.join(folder, f"{name}-{i:03}.png")
                Image.fromarray(pixels.astype(np.uint8)).save(path)
                paths.setdefault(split, []).append(path)
    return paths
