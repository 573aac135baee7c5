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
STANDARD = re.compile(
    r"\bstd::(?:recursive_|shared_)?(?:timed_)?mutex\b|\bstd::condition_variable(?:_any)?\b|\bpthread_(?:mutex|rwlock|cond|spinlock)_t\b"
)
# Guards of LibTorch's own mutexes, such as that of torch::autograd::Node: a source has no other std::mutex.
GUARDS = re.compile(r"\bstd::(?:lock_guard|unique_lock|scoped_lock)<std::mutex>")
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
REFUSED = (
    "std::mutex m;",
    "std::timed_mutex m;",
    "std::recursive_mutex m{};",
    "std::shared_timed_mutex m;",
    "std::mutex a, b;",
    "std::mutex locks[4];",
    "std::array<std::mutex, 4> locks;",
    "std::unique_ptr<std::mutex> m;",
    "auto m = std::make_unique<std::mutex>();",
    "static std::mutex m = {};",
    "using Lock = std::mutex;",
    "std::condition_variable_any c;",
    "pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;",
    "pthread_rwlock_t m;",
)
MUTEX = re.compile(r"\b(?:base::Mutex|EngineMutex) (\w+)(?:\{\}| = \{\})?;")
# Several in one declaration, or in a container: what each guards has no place there.
SEVERAL = re.compile(r"\b(?:base::Mutex|EngineMutex) \w+ ?[,\[]|(?<!LockGuard)<(?:base::Mutex|EngineMutex)\b(?!&)")
FEWEST_WORDS = 5  # of a comment that says when a mutex is held
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


def has_standard_lock(text):
    return bool(STANDARD.search(GUARDS.sub("", re.sub(r"//.*", "", text))))


def blank_comments_and_texts(text):
    """The same code, with spaces in place of what may have braces that open nothing."""
    return re.sub(r"//.*|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)'", lambda found: " " * len(found[0]), text)


def block_around(code, place):
    """From the brace that opens the class, function or namespace around `place` to the one that closes it."""
    depth, begin, end = 0, place, place
    while begin > 0 and depth < 1:
        begin -= 1
        depth += {"{": 1, "}": -1}.get(code[begin], 0)
    depth = 0
    while end < len(code) and depth < 1:
        depth += {"}": 1, "{": -1}.get(code[end], 0)
        end += 1
    return code[begin:end]


def comment_on(text, begin, end):
    """The comment behind the declaration at text[begin:end], and the lines of comment above it."""
    lines = text[:begin].split("\n")[:-1]
    above = []
    while lines and re.match(r"\s*//", lines[-1]):
        above.insert(0, lines.pop())
    behind = text[end : text.index("\n", end)]
    return " ".join(re.sub(r"^\s*///?", "", line) for line in [*above, behind])


def silent_mutexes(text):
    """Names of mutexes of which neither an annotation in their class nor a comment says what they guard."""
    code = blank_comments_and_texts(text)
    silent = [found[0] for found in SEVERAL.finditer(code)]
    for found in MUTEX.finditer(code):
        guarded = re.search(rf"GUARDED_BY\((?:\w+(?:->|\.))?{found[1]}(?:\(\))?\)", block_around(code, found.start()))
        comment = comment_on(text, found.start(), found.end())
        if not guarded and not (re.search(r"\bheld\b", comment, re.I) and len(comment.split()) >= FEWEST_WORDS):
            silent.append(found[1])
    return silent


class LocksTest(unittest.TestCase):
    def test_sources_take_base_mutex(self):
        found = {}
        for folder in FOLDERS:
            for path in sorted((SOURCE / folder).rglob("*")):
                name = str(path.relative_to(SOURCE))
                if path.suffix in (".h", ".cpp") and has_standard_lock(path.read_text()):
                    found[name] = (
                        "takes std::mutex or std::condition_variable; take those of lockstep/base/mutex.h, and say with "
                        "LOCKSTEP_GUARDED_BY which members it guards"
                    )
        self.assertEqual({name: why for name, why in found.items() if name not in EXCEPTIONS}, {})
        self.assertEqual(set(EXCEPTIONS) - set(found), set(), "exceptions that are none any more")

    def test_standard_locks_of_every_form_are_found(self):
        for text in REFUSED:
            with self.subTest(text):
                self.assertTrue(has_standard_lock(text))
        for text in ("const std::lock_guard<std::mutex> lock(mutex_);", "base::Mutex mutex_;  // std::mutex", "int mutex;"):
            with self.subTest(text):
                self.assertFalse(has_standard_lock(text))

    def test_each_mutex_says_what_it_guards(self):
        """In a LOCKSTEP_GUARDED_BY of its class or, where the compiler cannot check it, in a comment that says when it is held."""
        silent = {
            str(path.relative_to(SOURCE)): names
            for folder in FOLDERS
            for path in sorted((SOURCE / folder).rglob("*"))
            if path.suffix in (".h", ".cpp") and (names := silent_mutexes(path.read_text()))
        }
        self.assertEqual(silent, {})

    def test_which_mutexes_say_nothing(self):
        guarded = "int n LOCKSTEP_GUARDED_BY(m);"
        self.assertEqual(silent_mutexes(f"struct A {{\n base::Mutex m;\n {guarded}\n}};\n"), [])
        self.assertEqual(silent_mutexes(f"struct A {{\n base::Mutex m;\n}};\nstruct B {{\n base::Mutex m;\n {guarded}\n}};\n"), ["m"])
        self.assertEqual(silent_mutexes(f"struct A {{\n base::Mutex m;\n // }}\n {guarded}\n}};\n"), [])
        self.assertEqual(silent_mutexes("struct A {\n base::Mutex m;  // n\n int n;\n};\n"), ["m"])
        self.assertEqual(silent_mutexes("struct A {\n base::Mutex m;  // held while another process is asked\n};\n"), [])
        self.assertEqual(silent_mutexes("struct A {\n // Held while another process is asked,\n // and a thread waits.\n base::Mutex m{};\n};\n"), [])
        for several in ("base::Mutex a, b;", "base::Mutex locks[4];", "std::array<base::Mutex, 4> locks;", "std::unique_ptr<base::Mutex> m;"):
            with self.subTest(several):
                self.assertEqual(len(silent_mutexes(several + "\n")), 1)

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
