"""Every command that README.md and the pages of docs/performance name runs, with tiny sizes; a command that is not known here fails the test.

COMMANDS says for each command how it is tried: with the same flags and smaller values (a list of words), by another test (Elsewhere),
or by nothing, because it only prepares (PREPARES). Commands with equal flags share a run. No time is judged.
"""

import dataclasses
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("docs", "trainer")]
import namespaces  # noqa: E402
import tiny  # noqa: E402
from pages import SOURCE, blocks_of, prose_of, text_of  # noqa: E402

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
PAGES = (
    "README.md",
    "docs/performance.md",
    *(f"docs/performance/{path.name}" for path in sorted((SOURCE / "docs/performance").glob("*.md"))),
    "docs/howto/save_memory.md",
    "docs/recipes/resume.md",
)
# The programs of benchmarks that only their commands build.
TARGETS = (
    "activation_checkpoint_cost",
    "checkpoint_cost",
    "memory_rank",
    "data_parallel_cost",
    "logical_ranks_cost",
    "replica_check_cost",
    "trainer_overhead",
    "translation_decode",
    "vision_batches",
    "read_tables",
    "tracking_cost",
    "step_cost",
    "messages",
    "lockstep_python",
    "bert_nli",
    "bert_classify",
    "recovery_cost",
    "resnet_ddp",
    "translate",
    "lockrun",
    "lockstep",
    "lockstep-bench-rank",
    "lockstep-bench-ddp-rank",
    "lockstep-bench-optimizer-rank",
)
# Programs whose words stand by their places.
PROGRAMS_WITH_PLACES = (
    "activation_checkpoint_cost",
    "checkpoint_cost",
    "memory_rank",
    "data_parallel_cost",
    "logical_ranks_cost",
    "replica_check_cost",
    "trainer_overhead",
    "translation_decode",
    "vision_batches",
    "read_tables",
    "step_cost",
    "recovery_cost",
    "lockstep-bench-optimizer-rank",
)


@dataclasses.dataclass
class Elsewhere:
    """Another test, or the script that tries it, runs this command. `words` are in that file."""

    path: str
    words: str


@dataclasses.dataclass
class Run:
    command: str  # with {places} of the test's data; several are joined by " && "
    same_flags: bool = True


def ranks_of(*models):
    """The ranks of `lockstep bench ddp` for these models, C++ and Python, with one step: BENCH_DDP tries how the command starts
    them, and a whole comparison with such a model takes minutes."""
    alone = "{bin}/lockrun --standalone --nproc-per-node 1 "
    commands = [alone + "{bin}/lockstep-bench-ddp-rank " + model + " ddp 1 {out} 25" for model in models]
    commands += [alone + "{python} {bin}/lockstep-bench-ddp-peer.py " + model + " ddp 1 {out}" for model in models if "torch" not in model]
    return Run(" && ".join(commands), same_flags=False)


PREPARES = "prepares"
README_TEST = Elsewhere("tests/install/package_test.py", '"README.md"')
DEMO = Elsewhere("scripts/bare-machine", "scripts/demo")
BENCH_DDP = Elsewhere(
    "tests/tools/bench_ddp_test.py", '"ddp", "--model", "toy", "--steps", "200", "--rounds", "1", "--python", sys.executable, "--timeline"'
)

BENCH_MACHINES = Elsewhere("tests/tools/bench_machines_test.py", '"--machines", "2x2,2+3,3x1", "--sizes", "1M,8M", "--against", "gloo"')
BENCH_DDP_MACHINES = Elsewhere(
    "tests/tools/bench_machines_test.py", '"--machines", "2x1,1+2", "--model", "toy", "--steps", "40", "--against", "gloo"'
)
ALL_REDUCE = Run("{bin}/lockstep bench all-reduce --nproc-per-node 3 --sizes 64,1M --rounds 1 --against gloo,mpi")
RESNET = ranks_of("resnet18", "resnet18-torch")
BERT = ranks_of("bert")
PYTHON = Run("{python} bench/python/run --rounds 1 --sizes 64 4096 --json")
OPTIMIZER = Run("{bin}/lockstep bench optimizer --nproc-per-node 1,2 --parameters 1.1 --rounds 1")
TRAIN = Run("{python} bench/translation/train --only pairs --steps 1 --rounds 1 --processes 1 --d-model 32 {translation} --out {out}/translation")
DECODE = Run(
    "{python} bench/translation/decode --rounds 1 --batch-size 1 --tokens 3 --sentences 2 "
    "--sides lockstep,uncached,pytorch,ctranslate2 --out {out}/decode --d-model 32"
)

COMMANDS = {
    # docs/recipes/resume.md
    "bert_classify --show-resume-effects": Elsewhere("tests/trainer/recipe_resume_test.py", "--show-resume-effects"),
    # README.md
    "scripts/demo": DEMO,
    "scripts/test": Elsewhere("scripts/bare-machine", "scripts/test"),
    "scripts/setup": Elsewhere("tests/scripts/setup_test.py", "scripts/setup"),
    "scripts/build": Elsewhere("scripts/test", "scripts/build"),
    "scripts/setup --library": PREPARES,
    "scripts/build library": PREPARES,
    "scripts/docs": PREPARES,
    "lockrun --nproc-per-node cpu ./train": Run("{bin}/lockrun --nproc-per-node cpu --no-python /bin/echo started"),
    "build/bin/lockstep bench ddp --model resnet18 --rounds 5 --steps 16 --python .venv/bin/python": RESNET,
    "cmake --install build --prefix $HOME/lockstep": README_TEST,
    "source .venv/bin/activate": README_TEST,
    "export PATH=$HOME/lockstep/bin:$PATH": README_TEST,
    "cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH=$HOME/lockstep": README_TEST,
    "cmake --build build": README_TEST,
    "lockrun --nproc-per-node 2 build/spirals": README_TEST,
    # docs/performance.md
    "scripts/setup --test": Elsewhere("scripts/test", "scripts/setup --test"),
    "scripts/draw_performance": Elsewhere("tests/docs/CMakeLists.txt", "scripts/draw_performance --check"),
    "export PATH=$PWD/build/bin:$PATH": PREPARES,
    "lockstep env": Run("{bin}/lockstep env"),
    "lockstep bench": ALL_REDUCE,
    "lockstep bench ddp": BENCH_DDP,
    "lockstep bench all-reduce --machines 2x2 --rate 1gbit --sizes 4K,64K,1M,8M,25M --uplink gloo,ucx --against gloo --rounds 3": BENCH_MACHINES,
    "lockstep bench all-reduce --machines 4x2,2+3 --rate 1gbit --sizes 4K,1M,8M --uplink gloo,ucx --against gloo --rounds 3": BENCH_MACHINES,
    "lockstep bench all-reduce --machines 2x2 --rate 1gbit --rtt 1,20 --sizes 4K,1M,8M --uplink gloo,ucx --against gloo --rounds 3": BENCH_MACHINES,
    "lockstep bench ddp --model toy --machines 2x2 --rate 1gbit --uplink gloo,ucx --against gloo --rounds 3 --steps 400": BENCH_DDP_MACHINES,
    "lockstep bench ddp --model resnet18 --machines 2x2 --rate 1gbit --uplink gloo,ucx --against gloo --rounds 3 --steps 6": BENCH_DDP_MACHINES,
    "lockstep bench ddp --model mlp --machines 2x1,2x2,2x4 --rate 1gbit --uplink ucx --against gloo --rounds 2 --steps 6": BENCH_DDP_MACHINES,
    "lockstep bench ddp --model bert --machines 2x1,2x2,2x4 --rate 1gbit --uplink ucx --against gloo --rounds 2 --steps 4": BENCH_DDP_MACHINES,
    "lockstep bench ddp --model resnet18 --machines 2x1,2x2,2x4 --rate 1gbit --uplink ucx --against gloo --rounds 2 --steps 4": BENCH_DDP_MACHINES,
    "lockstep bench all-reduce --nproc-per-node 2 --sizes 64,4K,64K,1M,25M,100M --against gloo,mpi": ALL_REDUCE,
    "lockstep bench all-reduce --nproc-per-node 8 --sizes 64,4K,1M,25M --against gloo,mpi": ALL_REDUCE,
    "lockstep bench all-reduce --nproc-per-node 2 --sizes 64 --against gloo --rounds 3": ALL_REDUCE,
    "lockstep bench all-reduce --nproc-per-node 2 --sizes 64,4K,64K,1M,25M --unregistered --against mpi": Run(
        "{bin}/lockstep bench all-reduce --nproc-per-node 2 --sizes 4K --rounds 1 --unregistered --against mpi"
    ),
    "lockstep bench reduce --nproc-per-node 2 --sizes 1M --against gloo,mpi": Run(
        "{bin}/lockstep bench reduce --nproc-per-node 2 --sizes 4K --rounds 1 --against gloo,mpi"
    ),
    "lockstep bench all-reduce --algorithm all": Run("{bin}/lockstep bench all-reduce --sizes 4K --rounds 1 --algorithm all"),
    "lockstep bench peer-lost --nproc-per-node 4": Run("{bin}/lockstep bench peer-lost --nproc-per-node 3 --sizes 64 --trials 1"),
    "lockstep bench ddp --model toy --rounds 5 --steps 6000 --python .venv/bin/python": BENCH_DDP,
    "lockstep bench ddp --model toy --rounds 5 --steps 6000 --timeline": BENCH_DDP,
    "lockstep bench ddp --model toy --rounds 5 --steps 6000": BENCH_DDP,
    "lockstep bench ddp --model resnet18 --rounds 5 --steps 16 --python .venv/bin/python": RESNET,
    "lockstep bench ddp --model resnet18 --rounds 5 --steps 16 --torch-layers --python .venv/bin/python": RESNET,
    "lockstep bench ddp --model resnet18 --rounds 4 --steps 48": RESNET,
    "lockstep bench ddp --model bert --rounds 5 --steps 16 --python .venv/bin/python": BERT,
    "lockstep bench ddp --model bert --rounds 5 --steps 16": BERT,
    "bench/network/slow_network 1gbit build/bin/lockstep bench ddp --model bert --steps 8 --rounds 2 --launch-prefix "
    "'bench/network/slow_network --two-machines' --hook fp16_compress,quantize_per_tensor,power_sgd": Run(
        "bench/network/slow_network 1gbit {bin}/lockstep bench ddp --model toy --steps 100 --rounds 1 --launch-prefix "
        "'bench/network/slow_network --two-machines' --hook fp16_compress,quantize_per_tensor,power_sgd"
    ),
    "lockstep bench ddp --model bert --steps 8 --rounds 2 --hook fp16_compress,quantize_per_tensor,power_sgd,noop": Elsewhere(
        "tests/tools/bench_ddp_test.py", '"--hook", "noop"'
    ),
    "lockstep bench optimizer --nproc-per-node 2,4,8": OPTIMIZER,
    ".venv/bin/python bench/nli/strategies --rounds 10": Run(
        "{python} bench/nli/strategies --rounds 1 --steps 2 --batch-size 4 --parts 1 --model {model} --data-dir {nli} --out {out}/nli"
    ),
    "scripts/build release data_parallel_cost": PREPARES,
    "bench/data_parallel/run": Run("bench/data_parallel/run --rounds 1 --steps 1 --batch-size 4 --models resnet18"),
    "scripts/build release logical_ranks_cost": PREPARES,
    "bench/logical_ranks/run --logical-ranks 2": Run("bench/logical_ranks/run --logical-ranks 2 --rounds 1 --steps 1 --batch 1 --models resnet18"),
    "scripts/build release memory_rank": PREPARES,
    "scripts/build release activation_checkpoint_cost": PREPARES,
    "scripts/build release replica_check_cost": PREPARES,
    "scripts/build release step_cost": PREPARES,
    "bench/step/run": Run("bench/step/run --rounds 1 --steps 2 --models toy"),
    "bench/activation_checkpoint/run": Run("bench/activation_checkpoint/run --rounds 1 --steps 1 --layers 1 --batch 1 --length 8"),
    "bench/memory/run": Run("bench/memory/run --rounds 1 --model 1x8 --nproc-per-node 1"),
    "bench/memory/run --model bert-base --rounds 1": Run("bench/memory/run --model bert-base --rounds 1 --nproc-per-node 1"),
    "bench/replicas/run": Run("bench/replicas/run --rounds 1 --steps 2 --batch 2"),
    ".venv/bin/python bench/finetune/run --steps 25": Run(
        "{python} bench/finetune/run --steps 2 --rounds 1 --batch-size 2 --processes 1 --model {model} --train-file {reviews} "
        "--out {out}/finetune --skip-gemm"
    ),
    "scripts/build release trainer_overhead": PREPARES,
    "bench/trainer/run --rounds 16": Run("bench/trainer/run --rounds 1 --steps 3 --model {model} --train-file {reviews}"),
    "scripts/build release checkpoint_cost": PREPARES,
    "bench/checkpoint/run --rounds 3": Run("bench/checkpoint/run --rounds 1 --megabytes 4 --folder {out}"),
    "scripts/build release lockstep_python lockrun": PREPARES,
    ".venv/bin/python bench/python/run --rounds 5 --json": PYTHON,
    "scripts/build release lockrun messages": PREPARES,
    ".venv/bin/python bench/launch/run --rounds 3": Run("{python} bench/launch/run --rounds 1 --only 1 6"),
    "scripts/build release lockrun": PREPARES,
    "scripts/build release lockrun bert_recovery lockstep_python": PREPARES,
    ".venv/bin/python bench/recovery/run --kills 12 --table docs/results/recovery.json": Run(
        "{python} bench/recovery/run --kills 1 --table {out}/recovery.json --only 'max-replacements, Python'", same_flags=False
    ),
    "scripts/build release lockrun recovery_cost": PREPARES,
    "bench/recovery/cost --rounds 120": Run("bench/recovery/cost --rounds 1 --steps 2 --models toy resnet18-read"),
    ".venv/bin/python bench/launch/membership --rounds 3": Run("{python} bench/launch/membership --rounds 1 --only 5 --launchers lockrun"),
    "scripts/build release vision_batches": PREPARES,
    "python3 zoo/datasets/icons32.py --output-dir .data/icons32": Elsewhere("tests/zoo_datasets/icons32_test.py", "icons32"),
    ".venv/bin/python bench/vision/run --rounds 5": Run("{python} bench/vision/run --rounds 1 --batch-size 4 --data-dir {pictures}"),
    ".venv/bin/python bench/vision/whole --rounds 5 --epochs 5 --cosine": Run(
        "{python} bench/vision/whole --rounds 1 --epochs 1 --cosine --batch-size 4 --processes 1 --data-dir {pictures}"
    ),
    ".venv/bin/python bench/translation/train --only tokens": TRAIN,
    ".venv/bin/python bench/translation/train --only original --steps 6": TRAIN,
    ".venv/bin/python bench/translation/train --only pairs": TRAIN,
    ".venv/bin/python bench/translation/quality --batch-size 128 --learning-rate 1e-3 --d-model 256 --num-layers 3 --num-heads 4 --d-ff 1024": Run(
        "{python} bench/translation/quality --batch-size 4 --learning-rate 1e-3 --d-model 16 --num-layers 1 --num-heads 2 --d-ff 16 "
        "--steps 2 --seeds 1 {translation} --out {out}/quality"
    ),
    "scripts/build release translation_decode": PREPARES,
    ".venv/bin/python bench/translation/decode": DECODE,
    ".venv/bin/python bench/translation/decode --batch-size 1": DECODE,
    ".venv/bin/python bench/translation/decode --batch-size 1 --tokens 100 --sentences 8 --sides lockstep,uncached": DECODE,
    "scripts/build release tracking_cost": PREPARES,
    ".venv/bin/python bench/tracking/run": Run("{python} bench/tracking/run --steps 3 --values 2 --directory {out}"),
}

PROGRAM = re.compile(r"(lockstep|lockrun) |scripts/\w+|bench/\w+/|build/bin/\w+ |\.venv/bin/python |export PATH")


def commands_of(page):
    """(place, command) of each command in a page's blocks and, where it begins with a program of ours, in its text."""
    for block in blocks_of(page):
        if block.language not in ("sh", "bash", ""):
            continue
        # A command may go on in the next line, behind a backslash.
        text = re.sub(
            r" \\\n((?: .*\\\n)*)(.*)",
            lambda rest: " " + " ".join(re.sub(r"\\\n", " ", rest[1] + rest[2]).split()) + "\n" * rest[0].count("\n"),
            block.text,
        )
        for number, line in enumerate(text.split("\n")):
            for command in re.sub(r"(^|\s+)# .*", "", line).split(" && "):
                if command.strip():
                    yield f"{page}:{block.line + number}", command.strip()
    prose = {number for number, _ in prose_of(page)}
    for number, line in enumerate(text_of(page).split("\n"), 1):
        if number in prose:
            for code in re.findall(r"`([^`]+)`", line):
                if PROGRAM.match(code):
                    yield f"{page}:{number}", code


def flags_of(command):
    return {word.split("=")[0] for word in shlex.split(command) if word.startswith("--")}


class DocumentedCommands(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        built = subprocess.run(
            [os.environ["LOCKSTEP_CMAKE"], "--build", SOURCE / "build", "--target", *TARGETS], capture_output=True, text=True, timeout=1500
        )
        if built.returncode != 0:
            raise RuntimeError(f"the programs of the benchmarks are not built:\n{built.stdout[-4000:]}")
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep_commands_"))
        cls.addClassCleanup(shutil.rmtree, folder)
        draw = random.Random(1)
        (folder / "nli").mkdir()
        pairs = [
            (f"a {draw.choice(tiny.WORDS)}", draw.choice(tiny.WORDS), draw.choice(["entailment", "neutral", "contradiction"])) for _ in range(70)
        ]
        for name in ("train", "validation"):
            tiny.write_csv(folder / f"nli/{name}.csv", pairs, ("premise", "hypothesis", "label"))
        (folder / "translation").mkdir()
        for name, count in (("train", 60), ("validation", 8)):
            for language in ("en-US", "it"):
                (folder / f"translation/{name}.{language}").write_text("".join(" ".join(draw.choices(tiny.WORDS, k=3)) + ".\n" for _ in range(count)))
        cls.write_pictures(folder / "pictures", draw)
        # In the place of sacrebleu, which is not among the tests' packages.
        (folder / "stand-ins").mkdir()
        (folder / "stand-ins/sacrebleu.py").write_text(
            "def corpus_bleu(hypotheses, references):\n"
            "    assert len(hypotheses) == len(references[0]) > 0\n"
            "    return type('Bleu', (), {'score': 0.0})\n"
        )
        cls.places = {
            "bin": BIN,
            "python": sys.executable,
            "out": folder,
            "model": tiny.make_model(folder / "model"),
            "reviews": tiny.write_csv(folder / "reviews.csv", tiny.make_rows(80, seed=1)),
            "nli": folder / "nli",
            "translation": f"--data-dir {folder / 'translation'}",
            "pictures": folder / "pictures",
        }
        cls.environment = {
            **os.environ,
            "PYTHONPATH": str(folder / "stand-ins"),
            "TMPDIR": str(folder),
            "PATH": f"{BIN}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        }

    @staticmethod
    def write_pictures(folder, draw):
        """Two classes of 32 x 32 pictures, in a format that every side reads: 24-bit BMP is not among ours, so PNG by hand."""
        import struct
        import zlib

        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        for split, count in (("train", 8), ("test", 4)):
            for label in ("cold", "warm"):
                (folder / split / label).mkdir(parents=True)
                for number in range(count):
                    rows = b"".join(b"\0" + bytes(draw.randrange(256) for _ in range(96)) for _ in range(32))
                    (folder / split / label / f"{number}.png").write_bytes(
                        b"\x89PNG\r\n\x1a\n"
                        + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
                        + chunk(b"IDAT", zlib.compress(rows))
                        + chunk(b"IEND", b"")
                    )

    def test_every_command_is_known(self):
        found = [(place, command) for page in PAGES for place, command in commands_of(page)]
        unknown = [f"{place}: {command}" for place, command in found if command not in COMMANDS]
        self.assertEqual(unknown, [], "say in COMMANDS how these are tried with tiny sizes")
        self.assertEqual(sorted(set(COMMANDS) - {command for _, command in found}), [], "no page names these any more")

    def test_tiny_runs_have_the_flags(self):
        for command, how in COMMANDS.items():
            if isinstance(how, Run) and how.same_flags:
                self.assertEqual(flags_of(command) - flags_of(how.command), set(), command)

    def test_programs_answer_help_and_refuse_what_they_do_not_know(self):
        """A word was once taken for a folder's name: `checkpoint_cost -h` wrote 1.3 GB."""
        for name in PROGRAMS_WITH_PLACES:
            for words, code in (["-h"], 0), (["--nosuch"], 2), ([], 2):
                with self.subTest(name, words=words), tempfile.TemporaryDirectory() as empty:
                    done = subprocess.run([BIN / name, *words], capture_output=True, text=True, timeout=60, cwd=empty, stdin=subprocess.DEVNULL)
                    self.assertEqual(done.returncode, code, done.stderr)
                    if code == 0:
                        self.assertTrue(done.stdout.startswith(f"Usage: {name} "), done.stdout)
                    else:
                        self.assertTrue(done.stderr.startswith(f"{name}: error: "), done.stderr)
                    self.assertEqual(os.listdir(empty), [])

    def test_other_tests_try_the_rest(self):
        for command, how in COMMANDS.items():
            if isinstance(how, Elsewhere):
                self.assertTrue(how.words in (SOURCE / how.path).read_text(), f"{command}: {how.path} has no {how.words}")


def tried(command):
    def test(self):
        if "slow_network" in command:
            namespaces.in_namespaces("--net")
        if "membership" in command:
            namespaces.in_namespaces("-n", "-m", "-i", "-p", "-u", "--fork", "--mount-proc")
        if "mpi" in command and not (BIN / "lockstep-bench-mpi").exists():
            self.skipTest("this build has no MPI program")
        for one in command.format(**self.places).split(" && "):
            done = subprocess.run(
                shlex.split(one), capture_output=True, text=True, timeout=300, cwd=SOURCE, env=self.environment, stdin=subprocess.DEVNULL
            )
            self.assertEqual(done.returncode, 0, f"{one}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
            self.assertNotIn("Traceback", done.stderr)
            if "lockstep-bench-ddp-" in one:  # ranks write a file
                result = self.places["out"] / "0"
                self.assertRegex(result.read_text(), r"^\d+ \d+\n[\d.]+\n$")
                result.unlink()
            else:
                self.assertNotEqual(done.stdout, "", one)

    return test


for _command in dict.fromkeys(how.command for how in COMMANDS.values() if isinstance(how, Run)):
    _name = re.sub(r"\W+", "_", re.sub(r"\{\w+\}", "", _command))[:70].strip("_")
    assert not hasattr(DocumentedCommands, "test_" + _name), _name
    setattr(DocumentedCommands, "test_" + _name, tried(_command))


if __name__ == "__main__":
    unittest.main()
