"""Runs of resnet_ddp on small pictures."""

import json
import os
import signal
import subprocess
import threading

BIN = os.environ["LOCKSTEP_BIN_DIR"]
# Small and quick: pictures of 12 pixels, a narrow network.
SMALL = {"--width": 4, "--batch-size": 4}


def command(data, output, *flags, ranks=2, small=True, lockrun=()):
    given = [str(flag).replace("_", "-") if str(flag).startswith("--") else str(flag) for flag in flags]
    preset = {"--data-dir": data, "--model-dir": output} | (SMALL if small else {})
    words = [BIN + "/resnet_ddp", "--disable-tqdm", *map(str, flags)]
    for flag, value in preset.items():
        words += [] if flag in given else [flag, str(value)]
    return [BIN + "/lockrun", "--nproc-per-node", str(ranks), *lockrun, *words] if ranks > 1 else words


def run(data, output, *flags, **options):
    return subprocess.run(command(data, output, *flags, **options), capture_output=True, text=True, errors="surrogateescape", timeout=300)


def run_and_kill(data, output, *flags, line):
    """The text of a run on two ranks, whose rank 1 is killed after a line with `line`, and replaced."""
    words = command(data, output, *flags, lockrun=["--max-replacements", "1"])
    text = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        deadline = threading.Timer(300, job.kill)
        deadline.start()
        for read in job.stdout:
            text += read
            if line in read and text.count(line) == 1:
                os.kill(rank_process(output, 1), signal.SIGKILL)
        deadline.cancel()
    if job.returncode != 0:
        raise AssertionError(f"exit code {job.returncode}\n{text}")
    return text


def rank_process(output, rank):
    """The process of a rank that writes to `output`."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as words, open(f"/proc/{process}/environ", "rb") as variables:
                line, environment = words.read().split(b"\0"), variables.read().split(b"\0")
        except OSError:
            continue  # it has ended, or is another user's
        if line[0] == f"{BIN}/resnet_ddp".encode() and str(output).encode() in line and f"RANK={rank}".encode() in environment:
            return int(process)
    raise AssertionError(f"there is no rank {rank}")


def log_of(output):
    with open(os.path.join(output, "log.jsonl")) as lines:
        return [json.loads(line) for line in lines]
