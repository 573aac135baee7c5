"""Every block of code in the documentation is compiled, run or compared with the programs' flags; links lead somewhere; and the words
are those of the field.

C++ is compiled (not linked) in one piece, with the flags of a recipe. A comment <!-- test: DECLARATIONS --> before a block declares
what only that block needs; with an @ in it, the block takes the place of the @.
"""

import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from pages import SOURCE, anchors_of, blocks_of, pages, prose_of, text_of

BIN = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"])
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
HERE = pathlib.Path(__file__).resolve().parent

# Languages of a page's blocks. They are compiled or run, except "text", "diff" and "json", which are output.
LANGUAGES = {"cpp", "python", "cmake", "sh", "bash", "text", "diff", "json", "yaml", ""}
SCRIPTS = {path.name for path in (SOURCE / "scripts").iterdir()}
# Programs in Python that make data sets.
DATASETS = "zoo/datasets/"
# Programs of others, whose flags nobody checks here.
OTHERS = {
    "cmake",
    "cd",
    "export",
    "source",
    "pip",
    "apt-get",
    "sudo",
    "srun",
    "mpirun",
    "torchrun",
    "openssl",
    "docker",
    "scontrol",
    "kill",
    "git",
    "python",
    "ssh",
    "wandb",
    "tensorboard",
    "perf",
    "jq",
}

# What prose.md bans, with what to write instead.
BANNED = {
    r"\bby ours\b": "speedup over ...",
    r"ratio is what carries over": "compare ratios, not times",
    r"price of going in step": "overhead of synchronization",
    r"\bin vain\b": "wasted",
    r"\bway of a gradient\b": "life of a gradient",
    r"\bgradient's way\b": "life of a gradient",
    r"\bwhat of it has been seen\b|^#+ What has been seen": "status: untested on ...",
    r"stays what it is\b": "is unchanged",
    r"\bshares it out\b": "exclude it with ...",
    r"^#+ What it tells": "Logging and debugging",
    r"end is nothing to\b": "its exit does not affect ...",
    r"\bis for looking\b": "finds ...",
    r"cannot take part, and are told": "are rejected with an error",
    r"nothing of this shows": "checkpoints do not depend on ...",
    r"throws out who": "drops peers that do not authenticate",
    r"copies it home|while it is warm": "copies it into the bucket while it is in the cache",
    r"no sign of life": "no heartbeat",
    r"\bmends?\b": "fixes",
    r"\bare told\b|\bis told\b|\btold so\b": "are notified, is set",
    r"does not play a part|plays no part": "is not used",
}


@functools.cache
def help_of(program, *words):
    command = [sys.executable, SOURCE / program] if program.startswith(DATASETS) else [BIN / program]
    result = subprocess.run([*command, *words, "--help"], capture_output=True, text=True, timeout=60)
    return result.stdout if result.returncode == 0 else ""


def commands_of(text):
    """The command lines of a block, each as a list of words, with variables, redirections and pipes left out."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in text.split("\n"):
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words = list(lexer)
        except ValueError:
            continue
        command = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;"):
                if command:
                    yield command
                command = []
            elif not (not command and re.match(r"\w+=", word)):
                command.append(word)


class DocsTest(unittest.TestCase):
    maxDiff = None

    def test_links_lead_somewhere(self):
        broken = []
        for page in pages():
            for number, line in enumerate(text_of(page).split("\n"), 1):
                for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                    if "://" in target:
                        continue
                    file, _, anchor = target.partition("#")
                    goal = (SOURCE / page).parent / file if file else SOURCE / page
                    if not goal.exists():
                        broken.append(f"{page}:{number}: {target}: there is no such file")
                    elif anchor and anchor not in anchors_of(goal.resolve().relative_to(SOURCE)):
                        broken.append(f"{page}:{number}: {target}: there is no such heading")
        self.assertEqual(broken, [])

    def test_every_page_is_in_the_navigation(self):
        named = set(re.findall(r"[\w/]+\.md", (SOURCE / "mkdocs.yml").read_text()))
        there = {str(page.relative_to("docs")) for page in pages() if page.parts[0] == "docs"}
        self.assertEqual(there - named, set(), "add these to mkdocs.yml")

    def test_blocks_name_their_language(self):
        unknown = [f"{block.place}: {block.language}" for page in pages() for block in blocks_of(page) if block.language not in LANGUAGES]
        self.assertEqual(unknown, [], f"languages are {sorted(LANGUAGES)}")

    def test_code_fits_the_site(self):
        """The site shows 92 columns of code in a window of 1280 pixels; docs/assets/extra.css wraps output and diffs."""
        wide = [
            f"{block.page}:{block.line + number}: {len(line)} columns"
            for page in pages()
            for block in blocks_of(page)
            if block.language not in ("text", "diff")
            for number, line in enumerate(block.text.split("\n"))
            if len(line) > 92
        ]
        self.assertEqual(wide, [], "a line of code has at most 92 columns: put comments above it, and break commands with \\")

    def test_first_examples_fit_a_phone(self):
        """A phone of 400 pixels shows 50 columns of code on the site."""
        wide = [
            f"{block.page}:{block.line + number}: {len(line)} columns"
            for page, count in (("README.md", 3), ("docs/index.md", 2), ("docs/lockrun.md", 1))
            for block in blocks_of(page)[:count]
            for number, line in enumerate(block.text.split("\n"))
            if len(line) > 50
        ]
        self.assertEqual(wide, [], "put comments above the lines")

    def test_cpp_compiles(self):
        includes, parts, count = set(), [], 0
        for page in pages():
            for block in blocks_of(page):
                if block.language != "cpp" or block.hint == "program":  # ported_program_test runs those
                    continue
                count += 1
                includes.update(re.findall(r"^#include <.*>", block.text, re.M))
                code = re.sub(r"^#include.*$", "", block.text, flags=re.M)
                code = re.sub(r"(?m)^(\s*)\.\.\.(\s*//.*)?$", r"\1;", code)
                start = f'\n#line {block.line} "{block.page}"\n'
                defines = re.search(r"^(int main|void \w+\(|class \w|struct \w|template|const lockstep::Spawnable)", code, re.M)
                if "@" in block.hint:
                    before, after = block.hint.split("@")
                    body = f"{before}{start}{code}\n{after}"
                    defines = False
                else:
                    body = f"{block.hint if not defines else ''}\n{{ {start}{code}\n}}" if not defines else f"{block.hint}{start}{code}"
                if defines:
                    parts.append(f"namespace block_{count} {{ using namespace examples;\n{body}\n}}\n")
                else:
                    parts.append(f"namespace block_{count} {{ using namespace examples;\nint f() {{ {body}\nreturn 0; }}\n}}\n")
        self.assertGreater(count, 30, "the blocks are no longer found")
        errors = self.compile("\n".join([f'#include "{HERE}/prelude.h"', *sorted(includes), *parts]))
        self.assertEqual(errors, "")

    def test_whole_programs_compile_alone(self):
        """A reader copies them as they are: what they need, they include."""
        programs = [
            block
            for page in pages()
            for block in blocks_of(page)
            if block.language == "cpp" and block.text.lstrip().startswith("#include") and re.search("^int main", block.text, re.M)
        ]
        self.assertGreater(len(programs), 2, "the programs are no longer found")
        for block in programs:
            with self.subTest(block.place):
                self.assertEqual(self.compile(f'#line {block.line + 1} "{block.page}"\n{block.text}', precompiled=False), "")

    def compile(self, text, precompiled=True):
        """The compiler's errors about `text`, with the flags of a recipe."""
        commands = json.loads((BUILD / "compile_commands.json").read_text())
        recipe = next(one for one in commands if "/bert_by_hand.dir/" in one["output" if "output" in one else "command"])
        words = shlex.split(recipe["command"])
        if "ccache" in words[0]:
            words = words[1:]
        for flag in ("-o", "-c"):
            at = words.index(flag)
            del words[at : at + 2]
        if not precompiled:
            words = re.sub(r"(-Xclang )?-include(-pch)? (-Xclang )?\S*cmake_pch\S*|-Winvalid-pch", "", " ".join(map(shlex.quote, words)))
            words = shlex.split(words)
        # clang takes designated initializers in any order; g++, as the standard says, does not.
        words += ["-Wno-everything", "-Werror=reorder-init-list"] if "clang" in words[0] else ["-w"]
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "examples.cpp"
            source.write_text(text)
            result = subprocess.run(
                [*words, "-fsyntax-only", f"-I{SOURCE}", str(source)], cwd=recipe["directory"], capture_output=True, text=True, timeout=600
            )
        return "" if result.returncode == 0 else result.stderr

    def test_python_compiles(self):
        for page in pages():
            for block in blocks_of(page):
                if block.language == "python":
                    with self.subTest(block.place):
                        compile(block.text, block.place, "exec")

    def test_the_readmes_python_runs(self):
        (block,) = [block for block in blocks_of("README.md") if block.language == "python"]
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "readme.py"
            script.write_text("import torch, torch.distributed as dist\n" + block.text + "\nt = torch.ones(1)\ndist.all_reduce(t)\nassert t == 2\n")
            result = subprocess.run(
                [BIN / "lockrun", "--standalone", "--nproc-per-node", "2", script],
                capture_output=True,
                text=True,
                timeout=120,
                env={**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": f"{BUILD}/python"},
            )
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_cmake_parses(self):
        for page in pages():
            for block in blocks_of(page):
                if block.language == "cmake":
                    with tempfile.NamedTemporaryFile("w", suffix=".cmake") as file:
                        file.write(f"if(OFF)\n{block.text}\nendif()\n")
                        file.flush()
                        result = subprocess.run([os.environ["LOCKSTEP_CMAKE"], "-P", file.name], capture_output=True, text=True)
                    self.assertEqual(result.returncode, 0, f"{block.place}: {result.stderr}")

    def test_json_parses(self):
        for page in pages():
            for block in blocks_of(page):
                if block.language == "json":
                    with self.subTest(block.place):
                        json.loads(block.text)

    def test_commands_have_these_flags(self):
        """Every program of ours in a command is there, and knows the flags that stand behind it."""
        programs = {path.name for path in BIN.iterdir() if not path.name.endswith(".py")}
        recipes = {path.stem for path in (SOURCE / "zoo/recipes").glob("*.cpp")}
        self.assertEqual(recipes - programs, set(), "build these recipes first")
        wrong, seen = [], 0
        for page in pages():
            for block in blocks_of(page):
                if block.language not in ("sh", "bash", ""):
                    continue
                for command in commands_of(block.text):
                    seen += 1
                    wrong += [f"{block.place}: {problem}" for problem in self.problems_of(command, programs)]
        self.assertGreater(seen, 60, "the commands are no longer found")
        self.assertEqual(wrong, [])

    def problems_of(self, command, programs):
        """Of the flags of `command`: each belongs to the last program of ours before it."""
        name, words, problems = None, (), []
        for place, word in enumerate(command):
            if word.startswith("scripts/") and place == 0:
                if word.removeprefix("scripts/") not in SCRIPTS:
                    problems.append(f"there is no {word}")
                name = None
                continue
            if word.startswith(DATASETS):
                name, words = word, ()
                if not (SOURCE / word).exists():
                    problems.append(f"there is no {word}")
                continue
            base = word.rsplit("/", 1)[-1]
            if (
                base in programs
                and (place == 0 or word != command[place - 1])
                and not command[place - 1].startswith("--")
                or base in programs
                and place == 0
            ):
                name, words = base, ()
                continue
            if name is None:
                continue
            if not word.startswith("-"):
                if name == "lockstep" and re.search(rf"^  {re.escape(word)} ", help_of(name, *words), re.M):
                    words += (word,)
                elif name == "lockrun" and ("/" in word or word.endswith(".py")):
                    name = None  # a program of the reader's, with flags of its own
                continue
            flag = word.split("=")[0]
            if re.fullmatch(r"--?[\w-]+", flag) and len(flag) > 1 and flag not in ("--", "-m"):
                text = help_of(name, *words)
                plain = flag.replace("_", "-") if flag.startswith("--") else flag
                if not re.search(rf"(^|[\s,]){re.escape(plain)}([\s,=.]|$)", text) and plain not in ("-h", "--help"):
                    problems.append(f"{' '.join((name, *words))} has no flag {flag}")
        return problems

    def test_environment_variables_are_all_listed(self):
        page = text_of("docs/reference/environment.md")
        named = set(re.findall(r"`((?:LOCKSTEP|LOCKRUN)_[A-Z0-9_]+)`", page))
        used = set()
        for folder in ("lockstep", "launcher", "tools", "bench", "zoo", "python"):
            for path in (SOURCE / folder).rglob("*"):
                if path.suffix in (".h", ".cpp", ".py"):
                    used.update(re.findall(r'"((?:LOCKSTEP|LOCKRUN)_[A-Z0-9_]*[A-Z0-9])=?"', path.read_text()))
        self.assertEqual(named, used, "docs/reference/environment.md lists other variables than the sources use")

    def test_words_are_those_of_the_field(self):
        found = []
        for page in pages():
            for number, line in prose_of(page):
                for pattern, instead in BANNED.items():
                    if match := re.search(pattern, line, re.I):
                        found.append(f"{page}:{number}: '{match[0]}': write '{instead}'")
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
