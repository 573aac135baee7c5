"""scripts/lint finds a fault of each kind, and the prose of this checkout is clean."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
LOADER = importlib.machinery.SourceFileLoader("lint", str(SOURCE / "scripts/lint"))
lint = importlib.util.module_from_spec(importlib.util.spec_from_loader("lint", LOADER))
LOADER.exec_module(lint)

# By check: a file with faults, what it holds, and what lint says of each.
PLANTED = {
    "format": ("bad.cpp", "int  f( ){return 1;}\n", r"bad\.cpp", r"bad\.py", r"CMakeLists\.txt"),
    "shell": ("scripts/bad", "#!/usr/bin/env bash\ncd $1\n", r"scripts/bad:2:4: .*SC2086"),
    "python": ("bad.py", "import os\nx=1\n", r"bad\.py:1:8: .*unused", r"bad\.py:2:2: .*issing whitespace around operator"),
    "prose": (
        "bad_col" + "our.md",
        "# Page\n\n| a | the same |\n\nThey " + "synchron" + "ise.\n",
        r"bad_\w+\.md:3: a cell says",
        r"bad_\w+\.md:5: write \"synchronize\"",
        r"bad_\w+\.md: its name: write \"bad_color\"",
    ),
    "clang-tidy": (
        "moved.cpp",
        "#include <string>\n#include <utility>\nstd::string::size_type f(std::string a) {\n"
        "  std::string b = std::move(a);\n  return a.size() + b.size();\n}\n"
        "int g(int n) {\n  int* p = nullptr;\n  return n > 0 ? *p : 0;\n}\n"
        'std::string h(const std::string& a) {\n  std::string b = "x" + a;\n'
        "  for (auto c : {b, a}) b += c.size();\n  return b;\n}\n",
        r"moved\.cpp:5:10: .*bugprone-use-after-move",
        r"moved\.cpp:9:18: .*clang-analyzer-core.NullDereference",
        r"moved\.cpp:13:13: .*performance-for-range-copy",
    ),
}
# By rule about pages: a page with one fault, in its first line, and what lint says of it.
FAULTS_OF_PAGES = (
    ("a " * 25 + "end.", "a sentence of 26 words; at most 25"),
    ("word " + "longer_word " * 9, "a line of 113 columns; at most 100"),
    ("- See [a page](page.md), `" + "a " * 45 + "`", "a line of 117 columns; at most 100"),
    ("Two words.\n" * 751, "a page of 1502 words; at most 1500"),
    ("| " + "word " * 26 + "|", "a cell of 26 words; at most 25"),
    ("| The same |", 'a cell says "the same"'),
    ("See [data.md](data.md).", "the text of a link is a file name"),
    ("`x` is no directory.", 'write "is not a ..."'),
    ("A folder knows no owner.", 'write "has no ..."'),
    ("It ends, be it by a signal or by itself.", 'write "however", or list the cases'),
    ("It ends in whatever way.", 'write "however", or list the cases'),
    ("Some files (a log, for one) stay.", 'write "for example", and a subject'),
    ("A log, for one, stays.", 'write "for example", and a subject'),
    ("It fails at its 2. operation.", "an ordinal is 1st, 2nd, 61st"),
)
# What is right: a page's name and its text.
RIGHT_PAGES = (
    ("docs/page.md", "a " * 24 + "end."),
    ("docs/page.md", "word " * 20),
    ("docs/page.md", "- `" + "a " * 50 + "`"),
    ("docs/page.md", "[page](" + "a" * 100 + ")"),
    ("docs/page.md", "| " + "`long_word long_word` " * 6 + "|"),
    ("docs/page.md", "<!-- " + "word " * 20 + "-->"),
    ("docs/page.md", "```\n" + "word " * 21 + "\n```"),
    ("docs/page.md", "Two words.\n" * 750),
    ("docs/reference/errors.md", "Two words.\n" * 751),
    ("CHANGELOG.md", "Two words.\n" * 751),
    ("docs/page.md", "There is no directory, which is no longer needed."),
)
# By rule about spelling: words in two halves, since this file is looked at too, and what lint writes instead.
BRITISH = (
    ("Synchronis", "ation", "Synchronization"),
    ("analys", "er", "analyzer"),
    ("kCOL", "OUR", "kCOLOR"),
    ("is_unlabel", "led", "is_unlabeled"),
    ("centr", "ed", "centered"),
    ("theat", "re", "theater"),
    ("met", "res", "meters"),
    ("licen", "ces", "licenses"),
    ("practis", "ed", "practiced"),
    ("catalo", "gue", "catalog"),
    ("gre", "yish", "grayish"),
    ("learn", "t", "learned"),
    ("misspel", "t", "misspelled"),
    ("judge", "ment", "judgment"),
    ("program", "mes", "programs"),
    ("fulf", "ilment", "fulfillment"),
    ("skil", "ful", "skillful"),
    ("arte", "fact", "artifact"),
    ("che", "que", "check"),
    ("among", "st", "among"),
    ("whil", "st", "while"),
    ("pre-", "empted", "preempted"),
)
# Right, though they look so.
AMERICAN = (
    "ModelLedger ColOurs premise otherwise fourth hours analyses controlled cancelled cancellation metric center_result programmed "
    "presence references fulfilled willful spelling afterwards previews"
)


class Lint(unittest.TestCase):
    def checkout(self, folder):
        """A repository with the configuration of this one."""
        for name in ("scripts/lint", "scripts/format", ".clang-format", ".clang-tidy", ".gersemirc", "ruff.toml", "deps/requirements-test.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(SOURCE / name, folder / name)
        (folder / ".venv").symlink_to(SOURCE / ".venv")
        for command in (["init", "-q"], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "empty"]):
            subprocess.run(["git", *command], cwd=folder, check=True)

    def run_lint(self, folder, *args):
        return subprocess.run([sys.executable, folder / "scripts/lint", *args], capture_output=True, text=True, timeout=600)

    def test_a_fault_of_each_kind_is_found(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.checkout(folder)
            (folder / "build").mkdir()
            moved = folder / "moved.cpp"
            (folder / "build/compile_commands.json").write_text(
                json.dumps([{"directory": name, "file": str(moved), "command": f"clang++ -std=c++20 -c {moved}"}])
            )
            (folder / ".gitignore").write_text(".venv\nbuild/\n")
            clean = self.run_lint(folder, "format", "shell", "python", "prose", "clang-tidy")
            self.assertEqual(clean.returncode, 0, clean.stdout + clean.stderr)
            for file, text, *_ in PLANTED.values():
                (folder / file).write_text(text)
            (folder / "CMakeLists.txt").write_text("if( X )\nset(A\n b)\nendif()\n")
            subprocess.run(["git", "add", "bad.cpp", "bad.py", "CMakeLists.txt"], cwd=folder, check=True)  # scripts/format looks at tracked files
            for check, (_, _, *expected) in PLANTED.items():
                with self.subTest(check=check):
                    found = self.run_lint(folder, check)
                    self.assertEqual(found.returncode, 1, found.stdout + found.stderr)
                    self.assertIn(f"{check}: not clean", found.stdout)
                    for fault in expected:
                        self.assertRegex(found.stdout, fault)

    def unity(self, folder, *units):
        """A build whose units are these, each of some files with their texts."""
        entries = []
        for number, files in enumerate(units):
            unit = folder / f"build/t{number}.dir/Unity/unity_0_cxx.cxx"
            unit.parent.mkdir(parents=True)
            unit.write_text("".join(f'#include "{folder / name}"\n' for name in files if name.endswith(".cpp")))
            entries.append({"directory": str(folder), "file": str(unit), "command": f"clang++ -std=c++20 -I{folder} -o {number}.o -c {unit}"})
            for name, text in files.items():
                (folder / name).write_text(text)
        (folder / "build/compile_commands.json").write_text(json.dumps(entries))
        (folder / ".gitignore").write_text(".venv\nbuild/\n")

    def test_clang_tidy_looks_at_unity_files_once(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.checkout(folder)
            null = "int {0}(int n) {{\n  int* p = nullptr;\n  return n > 0 ? *p : copies({{}});\n}}\n"
            self.unity(
                folder,
                {
                    "copies.h": "#pragma once\n#include <string>\n#include <vector>\ninline int copies(const std::vector<std::string>& all) {\n"
                    "  int sum = 0;\n  for (auto one : all) sum += one.size() > 1 ? 1 : 0;\n  return sum;\n}\n",
                    "first.cpp": '#include "copies.h"\n' + null.format("first"),
                    "second.cpp": '#include "copies.h"\n' + null.format("second"),
                },
                {"clean.cpp": "int clean;\n"},
            )
            found = self.run_lint(folder, "--all", "clang-tidy")
            self.assertEqual(found.returncode, 1, found.stdout + found.stderr)
            for fault in (
                r"copies\.h:6:13: .*performance-for-range-copy",
                r"first\.cpp:4:18: .*clang-analyzer-core.NullDereference",
                r"second\.cpp:4:18: .*clang-analyzer-core.NullDereference",
            ):
                self.assertRegex(found.stdout, fault)
            self.assertEqual(found.stdout.count("error:"), 3, found.stdout)

            (kept,) = (file for file in (folder / "build/lint").iterdir() if file.read_text())
            kept.write_text("kept.cpp:1:1: error: as before\n")
            again = self.run_lint(folder, "--all", "clang-tidy")
            self.assertIn("as before", again.stdout)
            self.assertNotIn("first.cpp", again.stdout)
            (folder / "copies.h").write_text((folder / "copies.h").read_text().replace("(auto one", "(const auto& one"))
            changed = self.run_lint(folder, "--all", "clang-tidy")
            self.assertNotIn("as before", changed.stdout)
            self.assertEqual(changed.stdout.count("error:"), 2, changed.stdout)
            self.assertNotIn(kept.name, [file.name for file in (folder / "build/lint").iterdir()])

    def test_clang_tidy_looks_at_headers_that_differ(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.checkout(folder)
            text = (
                "#pragma once\n#include <string>\n#include <vector>\ninline int {0}(const std::vector<std::string>& all) {{\n"
                "  int sum = 0;\n  for (const auto& one : all) sum += one.size() > 1 ? 1 : 0;\n  return sum;\n}}\n"
            )
            self.unity(
                folder,
                {"own.h": text.format("own"), "own.cpp": '#include "own.h"\n'},
                {"alone.h": text.format("alone"), "user.cpp": '#include "alone.h"\n'},
            )
            for command in (["add", "."], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", "clean"]):
                subprocess.run(["git", *command], cwd=folder, check=True)
            for header in ("own", "alone"):
                (folder / f"{header}.h").write_text(text.format(header).replace("const auto& one", "auto one"))
            found = self.run_lint(folder, "--base", "HEAD", "clang-tidy")
            self.assertEqual(found.returncode, 1, found.stdout + found.stderr)
            for header in ("own", "alone"):
                self.assertRegex(found.stdout, rf"{header}\.h:6:13: .*performance-for-range-copy")

    def test_clang_tidy_goes_on_after_an_interruption(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.checkout(folder)
            self.unity(folder, {"quick.cpp": "int quick;\n"}, {"slow.cpp": "int slow;\n"})
            (folder / ".venv").unlink()
            tidy = folder / ".venv/bin/clang-tidy"
            tidy.parent.mkdir(parents=True)

            def pretend(slow):
                tidy.write_text(
                    f"#!/usr/bin/env bash\ncase $* in\n--version) echo 1 ;;\n*-0.cpp) echo >>{folder}/build/quick ;;\n*) {slow} ;;\nesac\n"
                )
                tidy.chmod(0o755)

            pid = folder / "build/pid"
            pid.touch()
            pretend(f"echo $$ >{pid}; exec sleep 1000")
            with subprocess.Popen([sys.executable, folder / "scripts/lint", "--all", "--jobs", "1", "clang-tidy"]) as run:
                end = time.monotonic() + 60
                while not pid.read_text().endswith("\n") and time.monotonic() < end:
                    time.sleep(0.02)
                run.send_signal(signal.SIGTERM)
                self.assertEqual(run.wait(60), 128 + signal.SIGTERM)
            with self.assertRaises(ProcessLookupError, msg="clang-tidy still runs"):
                os.killpg(int(pid.read_text()), 0)
            pretend("echo broken >&2; exit 139")
            for _ in range(2):  # what went wrong is not kept
                after = self.run_lint(folder, "--all", "clang-tidy")
                self.assertEqual(after.returncode, 1, after.stdout + after.stderr)
                self.assertIn("  slow.cpp: clang-tidy ended with 139: broken", after.stdout)
            pretend("true")
            self.assertEqual(self.run_lint(folder, "--all", "clang-tidy").returncode, 0)
            self.assertEqual((folder / "build/quick").read_text().count("\n"), 1, "what was looked at was looked at again")
            (folder / ".clang-tidy").write_text("# another one\n")
            pretend("echo \"error: 'x' check is deprecated [clang-tidy-config,-warnings-as-errors]\"; exit 1")
            self.assertIn("  .clang-tidy: error: 'x' check is deprecated", self.run_lint(folder, "--all", "clang-tidy").stdout)

    def test_which_sentences_are_faults(self):
        def numbers(faults):
            return [number for number, _ in faults]

        for text, expected in FAULTS_OF_PAGES:
            with self.subTest(text[:60]):
                ((number, told),) = lint.faults_of_page(text)
                self.assertEqual(number, 1)
                self.assertIn(expected, told)
        self.assertEqual(set(lint.PROSE.values()) - {expected for _, expected in FAULTS_OF_PAGES}, set(), "rules without a fault here")
        for name, text in RIGHT_PAGES:
            self.assertEqual([], list(lint.faults_of_page(text, name)))
        self.assertEqual([1], numbers(lint.faults_of_source("/// Of the last step.\nint step;")))
        self.assertEqual([1], numbers(lint.faults_of_source("int step;  ///< The same on all ranks.")))
        self.assertEqual([2], numbers(lint.faults_of_source("int next = 1'000;\n// Likewise.\nint last;")))
        self.assertEqual([], numbers(lint.faults_of_source("// These are the values\n// Of the last step.")))
        self.assertEqual([], numbers(lint.faults_of_source('say("// Of the last step");\nopen("file:///Of x");')))
        self.assertEqual([2, 4], numbers(lint.faults_of_source("x = 1\n# Of the last step.\ny = 1\n# Likewise.", "#")))
        self.assertEqual([1], numbers(lint.faults_of_source("x = 'a' # The same on all ranks.", "#")))
        self.assertEqual([], numbers(lint.faults_of_source('# These are\n# Of the\nx = "a # Of b"\ny = $# Of', "#")))
        self.assertEqual([], numbers(lint.faults_of_page("| `" + "word " * 26 + "` |")))
        self.assertEqual([], numbers(lint.faults_of_page("```\nat its 2. operation\n```")))

    def test_which_spellings_are_faults(self):
        for begin, end, remedy in BRITISH:
            self.assertEqual([(2, f'write "{remedy}", not "{begin}{end}"')], list(lint.faults_of_spelling(f"x\n{begin}{end} y")))
        used = {pattern for pattern in lint.BRITISH for begin, end, _ in BRITISH if lint.re.search(pattern, begin + end, lint.re.I)}
        self.assertEqual(set(lint.BRITISH) - used, set(), "rules without a fault here")
        self.assertEqual([], list(lint.faults_of_spelling(AMERICAN)))

    def test_the_prose_of_this_checkout_is_clean(self):
        lines, clean = lint.check_prose(None)
        self.assertTrue(clean, "\n".join(lines))
        self.assertGreater(len(lint.tracked("*.h", "*.cpp")), 100, "git no longer lists the sources")

    def test_an_unknown_check(self):
        run = subprocess.run([sys.executable, SOURCE / "scripts/lint", "spelling"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 2)
        self.assertIn("there is no check spelling; choose from format, shell", run.stderr)


if __name__ == "__main__":
    unittest.main()
