"""What five kinds of new readers do who have seen only the front page: click by click, by the texts of links, until their question is
answered. It takes at most three clicks, from the site's front page and from README.md.

A path ends on a page that has all of `answers`: headings, and commands in its blocks of code.
"""

import dataclasses
import re
import unittest

from pages import SOURCE, blocks_of, text_of

MOST_CLICKS = 3
HOME, README = "docs/index.md", "README.md"


@dataclasses.dataclass
class Path:
    reader: str  # in the first column of the table "What do you have?" of the front page
    question: str
    home: list[str]  # the texts of the links to click, from the site's front page
    readme: list[str]  # from README.md
    answers: list[str]  # "## a heading", or a part of a block of code


CPP, GLOO, SLURM, HANG, CONTRIBUTE = (
    "a single-process C++ program",
    "a Python script with DDP on Gloo",
    "a SLURM cluster to administer",
    "a job that hangs",
    "the wish to contribute",
)
FROM_LIBTORCH, CLUSTER = "From a single-process LibTorch program", "SLURM, Kubernetes, systemd, Docker"
PATHS = [
    Path(
        CPP,
        "Which lines change, and how do I start it on all cores?",
        [FROM_LIBTORCH],
        ["a LibTorch program"],
        ["## The ten lines", "lockrun --nproc-per-node cpu ./mnist"],
    ),
    Path(
        CPP,
        "What else is different afterwards: batch size, random numbers, files?",
        [FROM_LIBTORCH],
        ["a LibTorch program"],
        ["## What changes in meaning"],
    ),
    Path(
        CPP,
        "How do I install it?",
        [FROM_LIBTORCH, "Install Lockstep"],
        ["a LibTorch program", "Install Lockstep"],
        ["## Install", "scripts/setup", "cmake --install build"],
    ),
    Path(
        GLOO,
        "What do I change, and how do I install it?",
        ["Speed up a Python job"],
        ["Gloo in Python"],
        ["## Install", "## The two lines", "pip install build/dist/lockstep_torch-*.whl", 'dist.init_process_group("lockstep")'],
    ),
    Path(
        GLOO,
        "How much faster does it get?",
        ["Speed up a Python job", "Performance"],
        ["Gloo in Python", "Performance"],
        ["# From Python: measurements", "bench/python/run"],
    ),
    Path(SLURM, "Which batch script starts a job?", [CLUSTER], [CLUSTER], ["## SLURM", "#SBATCH --nodes=2", "srun lockrun"]),
    Path(
        SLURM,
        "What do I install on the nodes?",
        ["packages"],
        ["Debian packages"],
        ["## Debian packages", "sudo apt install ./build/dist/lockstep-tools_*.deb"],
    ),
    Path(
        SLURM,
        "Which ports must the firewall leave open?",
        ["several machines"],
        ["several machines"],
        ["## Before the first run", "--rdzv-conf token_file=token"],
    ),
    Path(SLURM, "What can other users of the cluster reach?", ["Security"], ["security"], ["## Between machines", "## On one machine"]),
    Path(
        SLURM,
        "Which exit code makes the cluster queue a job again?",
        [CLUSTER, "How a job ends"],
        [CLUSTER, "How a job ends"],
        ["## Exit codes", "## Exit code 75: start this job again later"],
    ),
    Path(
        HANG,
        "Which rank is missing, and where is it?",
        ["Debug a hang"],
        ["debug a hang"],
        ["## What you see without doing anything", "--hang-timeout 3 --hang-action end", "rank 0 waits in the 2nd operation"],
    ),
    Path(HANG, "Nothing was printed: what now?", ["Debug a hang"], ["debug a hang"], ["## If nothing is printed", "## Step by step"]),
    Path(
        CONTRIBUTE,
        "How do I build and test, and what are the rules?",
        ["Contributing"],
        ["Contributing"],
        ["scripts/setup --test", "scripts/test", "## Rules"],
    ),
    Path(CONTRIBUTE, "How do I add a test?", ["Contributing", "adding a test"], ["Contributing", "adding a test"], ["## Adding a test"]),
    Path(CONTRIBUTE, "Where is what in the sources?", ["Contributing", "Architecture"], ["architecture"], ["## How things work together"]),
]


def links_of(page, text=None):
    """(text, target) of the links of a page, or of a part of it; without code, pictures and addresses elsewhere."""
    text = re.sub(r"^```.*?^```\n", "", text_of(page) if text is None else text, flags=re.S | re.M)
    return [
        (" ".join(label.split()), target)
        for label, target in re.findall(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)", text)
        if "://" not in target
    ]


def follow(page, label, text=None):
    """The page to which a click on that link leads. One text leads to one page."""
    targets = {target.split("#")[0] for found, target in links_of(page, text) if found == label}
    if len(targets) != 1:
        raise LookupError(f"{page}: {len(targets)} pages have the link '{label}'; there are {sorted({found for found, _ in links_of(page, text)})}")
    target = targets.pop()
    goal = (SOURCE / page).parent.joinpath(target).resolve() if target else SOURCE / page
    if not goal.exists():
        raise LookupError(f"{page}: '{label}' leads to {target}, which does not exist")
    return str(goal.relative_to(SOURCE))


def lacking(page, answers):
    headings = {" ".join(line.split()) for line in re.sub(r"^```.*?^```\n", "", text_of(page), flags=re.S | re.M).split("\n") if line.startswith("#")}
    code = "\n".join(block.text for block in blocks_of(page))
    return [answer for answer in answers if answer not in headings and answer not in code]


def row_of(reader):
    """The row of the front page's table that is for this reader."""
    rows = [line for line in text_of(HOME).split("\n") if line.startswith(f"| {reader} |")]
    if len(rows) != 1:
        raise LookupError(f"{HOME}: {len(rows)} rows begin with '{reader}'")
    return rows[0]


class PathsTest(unittest.TestCase):
    def test_five_readers_find_their_answers(self):
        self.assertEqual(len({path.reader for path in PATHS}), 5)
        for path in PATHS:
            for start, clicks in ((HOME, path.home), (README, path.readme)):
                with self.subTest(reader=path.reader, question=path.question, start=start):
                    self.assertLessEqual(len(clicks), MOST_CLICKS)
                    page = start
                    for place, label in enumerate(clicks):
                        page = follow(page, label, row_of(path.reader) if place == 0 and start == HOME else None)
                    self.assertEqual(lacking(page, path.answers), [], page)

    def test_a_dead_end_is_an_error(self):
        self.assertRaisesRegex(LookupError, "0 pages have the link 'No such door'", follow, HOME, "No such door")
        self.assertRaisesRegex(LookupError, "leads to nowhere.md, which does not exist", follow, HOME, "door", "[door](nowhere.md)")
        self.assertRaisesRegex(LookupError, "2 pages have the link 'door'", follow, HOME, "door", "[door](faq.md) [door](why.md)")
        self.assertEqual(follow(HOME, "two words", "[two\nwords](faq.md#starting)"), "docs/faq.md")
        self.assertEqual(lacking("docs/faq.md", ["## Starting", "## Nothing like it"]), ["## Nothing like it"])
        self.assertRaisesRegex(LookupError, "0 rows begin with 'a horse'", row_of, "a horse")


if __name__ == "__main__":
    unittest.main()
