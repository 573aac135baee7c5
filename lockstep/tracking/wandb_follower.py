"""Sends a run that Lockstep has written as JSON lines to Weights & Biases, through its client.

    python3 wandb_follower.py RUN.jsonl        sends a file that nobody writes to any more; the package wandb must be installed

Lockstep's tracker starts it with --parent while a training runs: it then sends each line as it comes, and ends when the training
does. WANDB_MODE, WANDB_PROJECT, WANDB_DIR and the client's other variables count; `offline` writes a run that `wandb sync` uploads.

The first line says which run it is, {"run": {"id": ..., "name": ..., ...}}. The others, in any order: {"step": 10, "time": ...,
NAME: VALUE, ...}, {"config": {...}}, {"metric": {"name": ..., "step_metric": ..., "summary": ..., "hidden": ...}}, {"summary": {...}}
and, as the last one, {"finish": EXIT CODE}.
"""

import argparse
import fcntl
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import sys
import threading
import time

POLL_SECONDS = 0.5
STATUS_FD = 3  # what the tracker reads, one JSON object a line
LONGEST_HISTOGRAM = 512  # of the client
GLOBAL_STEP = "global_step"


class Status:
    """Tells the tracker, or the terminal if there is none."""

    def __init__(self, has_tracker):
        self.has_tracker = has_tracker

    def tell(self, kind, text):
        try:
            if self.has_tracker:
                os.write(STATUS_FD, (json.dumps({kind: text}) + "\n").encode())
            elif kind != "ready":
                print(f"wandb_follower: {text}", file=sys.stderr, flush=True)
        except OSError:
            pass  # the tracker is gone


class Lines:
    """The whole lines of a file that grows."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "rb")
        self.rest = b""

    def first(self):
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise ValueError(f"{self.path} holds no run")
        return json.loads(line)

    def new(self):
        *lines, self.rest = (self.rest + self.file.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def is_replaced(self):
        """Whether the run has begun again, and another follower with it."""
        try:
            return os.stat(self.path).st_ino != os.fstat(self.file.fileno()).st_ino
        except OSError:
            return False


def watch(ended, end_seconds, status):
    """Sets `ended` when the training's end of standard input closes or the training is gone. This process ends so many seconds later
    at the latest, whatever the client waits for."""
    parent = os.getppid()  # the training, or what has started Python for it
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], POLL_SECONDS)
        if readable and not os.read(0, 4096):
            break
    ended.set()
    time.sleep(end_seconds)
    status.tell("problem", f"the client has not ended after {end_seconds:g} s")
    os._exit(1)


def lock(file, seconds):
    """Waits until the follower of this run's former start has ended. A file system without locks, or one that takes too long, costs
    the order of the two and no more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return None
    return None


def unless_set(variable, value):
    """The client reads `variable` only if it is given no argument."""
    return None if os.environ.get(variable) else value or None


def begin(wandb, run, folder, resumes, status):
    arguments = dict(
        id=run["id"],
        dir=unless_set("WANDB_DIR", str(folder)),
        project=unless_set("WANDB_PROJECT", run.get("project")),
        name=unless_set("WANDB_NAME", run.get("name")),
        group=unless_set("WANDB_RUN_GROUP", run.get("group")),
        entity=unless_set("WANDB_ENTITY", run.get("entity")),
        job_type=unless_set("WANDB_JOB_TYPE", run.get("job_type")),
        notes=unless_set("WANDB_NOTES", run.get("notes")),
        tags=unless_set("WANDB_TAGS", run.get("tags")),
        resume="allow" if resumes else None,
        settings=wandb.Settings(console="off"),
    )
    wait_for_a_name_of_its_own(pathlib.Path(os.environ.get("WANDB_DIR") or folder) / "wandb", run["id"])
    try:
        begun = wandb.init(**arguments)
    except wandb.errors.UsageError as error:
        if not re.search("api[ _]key", str(error), re.IGNORECASE):
            raise
        begun = wandb.init(**arguments, mode="offline")
        status.tell(
            "note",
            f"nobody is logged in to Weights & Biases, so the run is written without a network: `wandb sync {shlex.quote(str(directory_of(begun)))}` "
            "uploads it after `wandb login`; WANDB_MODE=offline asks for this",
        )
    begun.define_metric(GLOBAL_STEP)
    begun.define_metric("*", step_metric=GLOBAL_STEP)
    return begun


def directory_of(run):
    return pathlib.Path(run.dir).parent


def wait_for_a_name_of_its_own(folder, run_id):
    """The client names a run's directory by the second, and a run that is started again within one would lie in that of the first."""
    while list(folder.glob(time.strftime(f"*run-%Y%m%d_%H%M%S-{run_id}"))):
        time.sleep(0.1)


def remove_replaced(run, folder):
    """Removes what earlier starts of this run have written without a network: the new directory has all that is valid of it."""
    own = directory_of(run)
    if not run.offline or own.parent.resolve() != folder.resolve():
        return
    for other in own.parent.iterdir():
        if other != own and re.fullmatch(rf"offline-run-\d{{8}}_\d{{6}}-{re.escape(run.id)}", other.name):
            shutil.rmtree(other, ignore_errors=True)


def histogram(wandb, edges, counts):
    while len(counts) > LONGEST_HISTOGRAM:
        edges = edges[::2] if len(counts) % 2 == 0 else [*edges[::2], edges[-1]]
        counts = [sum(counts[bin : bin + 2]) for bin in range(0, len(counts), 2)]
    return wandb.Histogram(np_histogram=(counts, edges))


class Sender:
    def __init__(self, wandb, run, status):
        self.wandb = wandb
        self.run = run
        self.status = status
        self.row = -1

    def send(self, line):
        try:
            self.send_line(line)
        except (TypeError, ValueError) as error:
            self.status.tell("note", f"the client refuses {json.dumps(line)[:200]}: {error}")

    def send_line(self, line):
        if "step" in line:
            self.send_values(line)
        elif "config" in line:
            self.run.config.update(line["config"], allow_val_change=True)
        elif "metric" in line:
            metric = line["metric"]
            self.run.define_metric(
                metric["name"], step_metric=metric["step_metric"] or None, summary=metric["summary"] or None, hidden=metric["hidden"] or None
            )
        elif "summary" in line:
            self.run.summary.update(line["summary"])

    def send_values(self, line):
        step, moment = line.pop("step"), line.pop("time")
        # The step, or the next number if a row has it. What an online run has already, from before a restart, is not sent twice.
        self.row = max(step, self.row + 1)
        if self.row < self.run.starting_step:
            return
        row = {}
        for name, value in line.items():
            if not isinstance(value, dict):
                row[name] = value
            elif value["counts"]:
                row[name] = histogram(self.wandb, value["edges"], value["counts"])
        self.run.log({**row, GLOBAL_STEP: step, "_timestamp": moment}, step=self.row, commit=True)


def send_new(sender, lines):
    """The exit code with which the run has finished, None if it has not."""
    for line in lines.new():
        if "finish" in line:
            return line["finish"]
        sender.send(line)
    return None


def follow(wandb, options, status, ended):
    path = options.file.resolve()
    lock(os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT, 0o666), options.end_seconds)
    lines = Lines(path)
    run = lines.first()["run"]
    if options.parent and ended.is_set() and lines.is_replaced():
        return  # the run's next follower sends all of it
    begun = begin(wandb, run, path.parent.parent, run["resumed"] or not options.parent, status)
    status.tell("begun", f"written without a network: {directory_of(begun)}" if begun.offline else begun.url)
    sender = Sender(wandb, begun, status)
    exit_code = send_new(sender, lines)
    if run["replaces"]:
        remove_replaced(begun, path.parent)
    while exit_code is None:
        is_last = ended.wait(POLL_SECONDS)  # before reading: nothing is written after it
        exit_code = send_new(sender, lines)
        if is_last and exit_code is None:
            exit_code = 1
    begun.finish(exit_code)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, metavar="RUN.jsonl")
    parser.add_argument("--parent", type=int, help="process number of the training that writes the file (given by Lockstep)")
    parser.add_argument("--end-seconds", type=float, default=60, help="how long the client may take after the training's end (default: 60)")
    options = parser.parse_args()
    status = Status(has_tracker=bool(options.parent))
    ended = threading.Event()
    if options.parent:
        os.set_inheritable(STATUS_FD, False)
        os.closerange(STATUS_FD + 1, 65536)  # the training's sockets are not for this process and the client's
        for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(stop, lambda *_: None)  # they are for the training, which ends this process by its own end
        threading.Thread(target=watch, args=(ended, options.end_seconds, status), daemon=True).start()
    else:
        ended.set()
    try:
        import wandb

        wandb.init, wandb.Settings  # not so for a folder of that name
    except (ImportError, AttributeError) as error:
        status.tell("missing", f"{sys.executable} cannot import wandb ({error})")
        return 1
    status.tell("ready", str(wandb.__version__))
    try:
        follow(wandb, options, status, ended)
    except Exception as error:
        status.tell("problem", f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
