"""Locks that the compiler checks: sources take base::Mutex, not std::mutex, and clang refuses a member that is read without its lock."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
FOLDERS = ("lockstep", "launcher", "tools", "zoo", "python")
STANDARD = re.compile(r"\bstd::(?:mutex|recursive_mutex|shared_mutex)\s+\w+\s*[;{]|\bstd::condition_variable\b")
# What these hold is a mutex of LibTorch's, or one that is held or not as it happens, which the compiler cannot follow.
EXCEPTIONS = {
    "lockstep/base/mutex.h": "it is what base::Mutex is made of",
    "lockstep/comm/work.cpp": "only a work that is watched has a lock",
}
RIGHT = """
#include "lockstep/base/mutex.h"
struct Counter {
  void add() { const lockstep::base::LockGuard lock(mutex); ++count; }
  lockstep::base::Mutex mutex;
  int count LOCKSTEP_GUARDED_BY(mutex) = 0;
};
int main() { Counter counter; counter.add(); }
"""
WRONG = RIGHT.replace("const lockstep::base::LockGuard lock(mutex); ", "")


def compiler():
    """clang as scripts/build finds it, or None."""
    names = ("clang++", *(f"clang++-{version}" for version in range(22, 15, -1)))
    return next((path for name in names if (path := shutil.which(name))), None)


class LocksTest(unittest.TestCase):
    def test_sources_take_base_mutex(self):
        found = {}
        for folder in FOLDERS:
            for path in sorted((SOURCE / folder).rglob("*")):
                name = str(path.relative_to(SOURCE))
                if path.suffix in (".h", ".cpp") and STANDARD.search(re.sub(r"//.*", "", path.read_text())):
                    found[name] = "takes std::mutex or std::condition_variable; take those of lockstep/base/mutex.h, and say with "\
                                  "LOCKSTEP_GUARDED_BY which members it guards"
        self.assertEqual({name: why for name, why in found.items() if name not in EXCEPTIONS}, {})
        self.assertEqual(set(EXCEPTIONS) - set(found), set(), "exceptions that are none any more")

    def test_the_build_asks_clang(self):
        text = (SOURCE / "cmake/LockstepTargets.cmake").read_text()
        self.assertRegex(text, r"CXX_COMPILER_ID:Clang>:-Wthread-safety>")

    @unittest.skipUnless(compiler(), "clang is missing")
    def test_a_member_without_its_lock_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            for text, expected in ((RIGHT, 0), (WRONG, 1)):
                file = pathlib.Path(folder) / "counter.cpp"
                file.write_text(text)
                done = subprocess.run([compiler(), "-std=c++20", f"-I{SOURCE}", "-Wthread-safety", "-Werror=thread-safety",
                                       "-fsyntax-only", file], capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, expected, done.stderr)
            self.assertIn("requires holding mutex", done.stderr)


if __name__ == "__main__":
    unittest.main()
