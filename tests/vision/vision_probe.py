"""Asks the C++ test program vision_probe."""

import json
import os
import subprocess

import numpy as np


def ask(questions):
    """One answer (the value, or an Exception with the message) for each question."""
    program = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "vision_probe")
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    run = subprocess.run([program], input=lines.encode(), capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(questions), run.stderr
    return [a["answer"] if "answer" in a else Exception(a["error"]) for a in answers]


def write_icons(directory, classes=("apps", "mimetypes"), splits=("train", "test"), each=6, size=32, seed=0):
    """A small set of pictures, of a colour per class and noise, as folders; returns the paths by split."""
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
