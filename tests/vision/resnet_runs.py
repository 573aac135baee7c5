"""Runs of resnet_ddp on small pictures."""

import json
import os
import subprocess

BIN = os.environ["LOCKSTEP_BIN_DIR"]
# Small and quick: pictures of 12 pixels, a narrow network.
SMALL = {"--width": 4, "--batch-size": 4}


def run(data, output, *flags, ranks=2, small=True):
    given = [str(flag).replace("_", "-") if str(flag).startswith("--") else str(flag) for flag in flags]
    preset = {"--data-dir": data, "--model-dir": output} | (SMALL if small else {})
    command = [BIN + "/resnet_ddp", "--disable-tqdm", *map(str, flags)]
    for flag, value in preset.items():
        command += [] if flag in given else [flag, str(value)]
    if ranks > 1:
        command = [BIN + "/lockrun", "--nproc-per-node", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=300)


def log_of(output):
    with open(os.path.join(output, "log.jsonl")) as lines:
        return [json.loads(line) for line in lines]
