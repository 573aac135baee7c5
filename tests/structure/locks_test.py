"""Locks that the compiler checks: sources take base::Mutex, not std::mutex, and clang refuses a member that is read without its lock."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
FOLDERS = ("lockstep", "launcher", "tools", "zoo", "python", "bench", "tests")
STANDARD = re.compile(r"\bstd::(?:mutex|recursive_mutex|shared_mutex)\s+\w+\s*[;{]|\bstd::condition_variable\b")
# By source: why.
EXCEPTIONS = {
    "lockstep/base/mutex.h": "it is what base::Mutex is made of",
}
# Sources with functions that the compiler does not look into, and why.
LEFT_OUT = {
    "lockstep/base/mutex.h": "waits of base::ConditionVariable, which call conditions with the lock",
    "lockstep/shm/group/group.cpp": "two references, used with the lock held that their functions assert",
    "lockstep/comm/uplink/control_links.cpp": "around a fork one function takes the lock and another gives it back",
}
RIGHT = """
#include "lockstep/base/mutex.h"
using namespace lockstep::base;
struct Counter {
  void add() { const LockGuard lock(mutex); ++count; }
  void add_locked() LOCKSTEP_REQUIRES(mutex) { ++count; ++*behind; }
  void add_alone() LOCKSTEP_EXCLUDES(mutex) { const LockGuard lock(mutex); add_locked(); }
  void begin() LOCKSTEP_ACQUIRE(mutex) { mutex.lock(); }
  void end() LOCKSTEP_RELEASE(mutex) { mutex.unlock(); }
  Mutex mutex;
  int count LOCKSTEP_GUARDED_BY(mutex) = 0;
  int* behind LOCKSTEP_PT_GUARDED_BY(mutex) = nullptr;
};
"""
# By kind of annotation: a function that breaks it, and what clang says of that.
PLANTED = {
    "LOCKSTEP_GUARDED_BY": ("void f(Counter& c) { ++c.count; }", "writing variable 'count' requires holding mutex"),
    "LOCKSTEP_PT_GUARDED_BY": ("void f(Counter& c) { ++*c.behind; }", "writing the value pointed to by 'behind' requires holding mutex"),
    "LOCKSTEP_REQUIRES": ("void f(Counter& c) { c.add_locked(); }", "calling function 'add_locked' requires holding mutex"),
    "LOCKSTEP_EXCLUDES": ("void f(Counter& c) { c.begin(); c.add_alone(); c.end(); }", "cannot call function 'add_alone' while mutex"),
    "LOCKSTEP_ACQUIRE": ("void f(Counter& c) { c.begin(); }", "is still held at the end of function"),
    "LOCKSTEP_RELEASE": ("void f(Counter& c) { c.end(); }", "that was not held"),
    "LOCKSTEP_TRY_ACQUIRE": ("void f(Counter& c) { c.mutex.try_lock(); ++c.count; }", "requires holding mutex"),
    "LOCKSTEP_SCOPED_CAPABILITY": ("void f(Counter& c) { { const LockGuard lock(c.mutex); } ++c.count; }", "requires holding mutex"),
}


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
                    found[name] = (
                        "takes std::mutex or std::condition_variable; take those of lockstep/base/mutex.h, and say with "
                        "LOCKSTEP_GUARDED_BY which members it guards"
                    )
        self.assertEqual({name: why for name, why in found.items() if name not in EXCEPTIONS}, {})
        self.assertEqual(set(EXCEPTIONS) - set(found), set(), "exceptions that are none any more")

    def test_each_mutex_says_what_it_guards(self):
        """In a LOCKSTEP_GUARDED_BY or, where the compiler cannot check it, in a comment behind it."""
        silent = []
        for path in (path for folder in FOLDERS for path in sorted((SOURCE / folder).rglob("*")) if path.suffix in (".h", ".cpp")):
            text = path.read_text()
            both = "".join(other.read_text() for other in path.parent.glob(path.stem + ".*"))
            for name, behind in re.findall(r"\b(?:base::Mutex|EngineMutex) (\w+)(?:\{\})?;(.*)", text):
                if not re.search(rf"GUARDED_BY\((?:\w+(?:->|\.))?{name}(?:\(\))?\)", both) and "//" not in behind:
                    silent.append(f"{path.relative_to(SOURCE)}: {name}")
        self.assertEqual(silent, [])

    def test_the_build_asks_clang(self):
        text = (SOURCE / "cmake/LockstepTargets.cmake").read_text()
        for flag in ("-Wthread-safety", "-Werror=thread-safety"):
            self.assertRegex(text, rf"CXX_COMPILER_ID:Clang>:{flag}>")

    def test_which_functions_are_left_out(self):
        left_out = {
            str(path.relative_to(SOURCE))
            for folder in FOLDERS
            for path in (SOURCE / folder).rglob("*")
            if path.suffix in (".h", ".cpp") and "LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS" in path.read_text()
        }
        self.assertEqual(left_out, set(LEFT_OUT))

    def errors_of(self, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "counter.cpp"
            file.write_text(text)
            done = subprocess.run(
                [compiler(), "-std=c++20", f"-I{SOURCE}", "-Wthread-safety", "-Werror=thread-safety", "-fsyntax-only", "-ferror-limit=0", file],
                capture_output=True,
                text=True,
                timeout=120,
            )
            return [line for line in done.stderr.splitlines() if ": error:" in line or "fatal" in line]

    @unittest.skipUnless(compiler(), "clang is missing")
    def test_a_fault_of_each_kind_is_an_error(self):
        first = RIGHT.count("\n") + 1
        # One function a line, in a namespace each.
        text = RIGHT + "\n".join(f"namespace fault{i} {{ {function} }}" for i, (function, _) in enumerate(PLANTED.values())) + "\n"
        found = self.errors_of(text)
        in_planted = [f"counter.cpp:{line}:" for line in range(first, first + len(PLANTED))]
        self.assertEqual([line for line in found if not any(place in line for place in in_planted)], [])
        for number, (kind, (function, expected)) in enumerate(PLANTED.items(), first):
            with self.subTest(kind):
                mine = [line for line in found if f"counter.cpp:{number}:" in line]
                self.assertTrue(any(expected in line for line in mine), f"{function}: {mine}")


if __name__ == "__main__":
    unittest.main()
