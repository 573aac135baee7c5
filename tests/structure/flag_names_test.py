"""A flag that no table has does not compile where a recipe's errors name it, and is found in all other texts."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]).parent
PROGRAM = """
#include "lockstep/zoo/tasks/flag_errors.h"
using namespace lockstep;
struct Values { int depth = 0; bool resume = false; };
constexpr auto kRows = std::to_array<tasks::RecipeFlag<Values>>({
    {{.name = "depth", .member = &Values::depth, .words = "How deep"}, tasks::OnResume::refuses()},
    {{.name = "resume", .member = &Values::resume, .words = "Go on"}, tasks::OnResume::takes_new()},
});
using Errors = tasks::FlagErrors<kRows, tasks::kTrainingFlags>;
void with_a_value(int value) { Errors::refuse("--depth is {}; expected 1, or --resume", value); }
void of_the_trainer() { Errors::refuse("--resume and --resume-from-checkpoint exclude each other"); }
void by_name() { static_cast<void>(Errors::Name("--depth")); }
std::string in_part(int value) { return Errors::format("; --depth {} fits", value); }
constexpr std::array<std::string_view, 2> kNamed = {"depth", "num-train-epochs"};
static_assert(Errors::has_all(kNamed));
"""
NO_FLAG = "no table has a flag of this name"
# By what is wrong: a line, and what the compiler says of it or of what stands behind.
WRONG = {
    "a flag": ('void f1(int value) { Errors::refuse("--dept is {}", value); }', NO_FLAG),
    "one of two flags": ('void f2() { Errors::refuse("--resume and --resume-from-checkpoints exclude each other"); }', NO_FLAG),
    "a name": ('void f3() { static_cast<void>(Errors::Name("--deep")); }', NO_FLAG),
    "a name without dashes": ('void f4() { static_cast<void>(Errors::Name("depth")); }', NO_FLAG),
    "a part of an error": ('std::string f6(int value) { return Errors::format("; --dept {} fits", value); }', NO_FLAG),
    "a list for other sources": ('static_assert(Errors::has_all(std::array<std::string_view, 2>{"depth", "resumes"}));', "static assertion failed"),
    "a member": ("constexpr Flag<Values> kWrong{.member = &Values::resumes};", "no member named 'resumes'"),
    "too few values": ('void f5(int value) { Errors::refuse("--depth is {}; expected {}", value); }', "not a constant expression"),
}
# Texts outside of these checks: help, warnings, errors of sources that see no table. Whose flags they may name besides.
TEXTS = ("zoo", "lockstep/trainer")
OTHERS = {"local-dir": "hf download"}


def sources(*folders):
    return (path for folder in folders for path in sorted((SOURCE / folder).rglob("*")) if path.suffix in (".h", ".cpp", ".inc"))


def known_flags():
    """Those of all tables."""
    known = set()
    for path in sources("zoo", "tools", "launcher", "bench", "lockstep"):
        text = path.read_text()
        known.update(re.findall(r'\.name = "([a-z0-9-]+)"', text))
        known.update(name.replace("_", "-") for name in re.findall(r"^LOCKSTEP_ARGUMENT\(\s*[^,]+(?:<[^>]*>)?,\s*(\w+)", text, re.M))
    return known


def flags_in_texts(source):
    """What stands behind "--" in the strings of a source."""
    code = re.sub(r'^#include.*|^\s*//.*|(?<![":\w])//[^"\n]*$', "", source, flags=re.M)
    for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', code):
        yield from (name.replace("_", "-") for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9_-]*)", text))


def compiler():
    names = ("clang++", *(f"clang++-{version}" for version in range(22, 15, -1)))
    return next((path for name in names if (path := shutil.which(name))), None)


class FlagNames(unittest.TestCase):
    def errors_of(self, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "recipe.cpp"
            file.write_text(text)
            done = subprocess.run(
                [compiler(), "-std=c++20", "-DFMT_HEADER_ONLY", f"-I{SOURCE}", f"-I{BUILD / 'include'}", "-fsyntax-only", "-ferror-limit=0", file],
                capture_output=True,
                text=True,
                timeout=120,
            )
            return done.stderr

    @unittest.skipUnless(compiler(), "clang is missing")
    def test_a_wrong_name_does_not_compile(self):
        first = PROGRAM.count("\n") + 1
        errors = self.errors_of(PROGRAM + "\n".join(line for line, _ in WRONG.values()) + "\n").split(": error: ")
        places = [before.splitlines()[-1] for before in errors[:-1]]
        self.assertEqual([], [place for place in places if (line := re.search(r"recipe\.cpp:(\d+):", place)) and int(line[1]) < first])
        self.assertTrue(all("recipe.cpp" in place for place in places), places)
        for number, (name, (line, expected)) in enumerate(WRONG.items(), first):
            with self.subTest(name):
                # The place stands before an error, and what it consists of behind it.
                mine = [after for before, after in zip(errors, errors[1:]) if f"recipe.cpp:{number}:" in before.splitlines()[-1] + after]
                self.assertTrue(any(expected in error for error in mine), f"{line}: {mine}")

    def test_texts_name_flags_that_exist(self):
        known = known_flags()
        self.assertGreater(len(known), 200)
        self.assertEqual(
            [],
            [
                f"{path.relative_to(SOURCE)} names --{name}, which no table has"
                for path in sources(*TEXTS)
                for name in flags_in_texts(path.read_text())
                if name not in known and name not in OTHERS
            ],
        )

    def test_which_texts_are_seen(self):
        text = '#include "a--b.h"\n// As --not-this\nf("give --this-one", x);  // or --no-comment\ng("--that_one=5 of a--b");\n'
        self.assertEqual(["this-one", "that-one"], list(flags_in_texts(text)))


if __name__ == "__main__":
    unittest.main()
