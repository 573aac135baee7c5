"""No class is over the rule of scripts/class_rule, and the script counts what it says: on small sources of its own."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["LOCKSTEP_BIN_DIR"]).parent
SCRIPT = SOURCE / "scripts/class_rule"
NEED_MORE = ("/nccl.cpp", "/mpi_rank.cpp")  # CUDA, MPI: a build without them leaves these sources out


def methods(number, name="method"):
    return "".join(f"  void {name}{i}();\n" for i in range(number))


def definitions(owner, numbers, name="method"):
    return "".join(f"void {owner}::{name}{i}() {{}}\n" for i in numbers)


class Repository:
    """A source tree of a few files with the compile commands of its sources, in a temporary folder."""

    def __init__(self, case, files, exceptions="", flags="-std=c++20"):
        folder = tempfile.TemporaryDirectory()
        case.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("exceptions.txt", exceptions)
        for name, text in files.items():
            self.write(name, text)
        commands = [self.command(self.root / name, flags) for name in files if name.endswith(".cpp")]
        self.write("build/compile_commands.json", json.dumps(commands))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def command(self, file, flags):
        target = file.relative_to(self.root).parts[0]
        return {
            "directory": str(self.root / "build"),
            "file": str(file),
            "command": f"c++ -I{self.root} {flags} -Wall -O2 -o {target}/CMakeFiles/all.dir/{file.name}.o -c {file}",
        }

    def run(self, *arguments):
        return subprocess.run(
            [sys.executable, SCRIPT, "--root", self.root, "--build", self.root / "build", "--exceptions", self.root / "exceptions.txt", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
        )


class OurClasses(unittest.TestCase):
    """Of this checkout: it reads all sources."""

    def test_our_classes_keep_the_rule(self):
        run = subprocess.run([sys.executable, SCRIPT, "--build", BUILD], capture_output=True, text=True, timeout=800)
        self.assertEqual(0, run.returncode, f"{run.stdout}{run.stderr}")
        not_read = [line for line in run.stdout.splitlines() if line.startswith("not read") and not line.endswith(NEED_MORE)]
        self.assertEqual([], not_read)


class ClassRuleTest(unittest.TestCase):
    maxDiff = None

    def listed(self, files, **options):
        """Lines that --list prints, by class, for sources that are not over the rule."""
        run = Repository(self, files, **options).run("--list", "100")
        self.assertEqual(0, run.returncode, run.stdout + run.stderr)
        return {line.partition(" ")[0]: line for line in run.stdout.splitlines()}

    def refused(self, files, **options):
        run = Repository(self, files, **options).run()
        self.assertEqual(1, run.returncode, run.stdout + run.stderr)
        head, *lines = run.stdout.splitlines()
        self.assertIn("at most 30 methods, 2 sources", head)
        return lines

    def test_thirty_methods_are_allowed_and_thirty_one_are_not(self):
        lines = self.listed({"lockstep/a.cpp": f"class A {{\n{methods(30)}}};\n"})
        self.assertEqual("A (lockstep/a.cpp): 30 methods (30 of its own), 1 sources in lockstep/a.cpp", lines["A"])
        lines = self.refused({"lockstep/a.cpp": f"class A {{\n public:\n{methods(16)} private:\n{methods(15, 'hidden')}}};\n"})
        self.assertEqual(["A (lockstep/a.cpp): 31 methods (31 of its own), 1 sources in lockstep/a.cpp"], lines)

    def test_a_source_alone_has_the_rule_in_every_folder(self):
        for folder in ("zoo", "launcher", "tools", "python"):
            lines = self.refused({f"{folder}/deep/a.cpp": f"namespace n {{ struct A {{\n{methods(31)}}}; }}\n"})
            self.assertEqual(1, len(lines))
            self.assertTrue(lines[0].startswith(f"n::A ({folder}/deep/a.cpp): 31 methods"), lines)
        self.assertEqual({}, self.listed({"tests/a.cpp": f"struct A {{\n{methods(31)}}};\n"}))

    def test_what_is_a_method(self):
        lines = self.listed(
            {
                "lockstep/a.h": """#pragma once
                class A {
                 public:
                  A();                                  // 1
                  explicit A(int);                      // 2
                  ~A();                                 // 3
                  bool operator==(const A&) const;      // 4
                  operator bool() const;                // 5
                  static A make();                      // 6
                  template <class T> void take(T) {}    // 7
                  void get() const { struct Local { void no() {} }; auto lambda = [] {}; lambda(); }  // 8
                  void get();                           // 9
                  auto deduced() { return 1; }          // 10
                  A(const A&) = default;
                  A& operator=(const A&) = delete;
                  A(A&&);
                  struct Nested { void one(); void two(); };
                  enum class E { a };
                  using Type = int;
                 private:
                  virtual void hidden();                // 11
                  int data_ = 0;
                  static int count_;
                };
                template <class T> struct Pair { T first; void swap(); };
                template <class T> void Pair<T>::swap() {}
                """,
                "lockstep/a.cpp": """#include "lockstep/a.h"
                A::A() {}
                A::A(A&&) = default;
                A::~A() {}
                """,
            }
        )
        self.assertIn(": 11 methods (11 of its own), 1 sources in lockstep/a.cpp", lines["A"])
        self.assertIn(": 2 methods (2 of its own), 0 sources", lines["A::Nested"])
        self.assertIn(": 1 methods (1 of its own), 0 sources", lines["Pair"])

    def test_methods_of_our_base_classes_count(self):
        base = f"""#pragma once
            #include <string>
            struct Top {{ Top(); virtual ~Top(); virtual void over(int) const; void same(); }};
            template <class T> struct Base : Top, std::string {{\n{methods(20)}}};\n"""
        derived = "struct D : Base<int>, virtual Top {{\n void over(int) const override; D(); ~D();\n{}}};\n"
        lines = self.listed({"lockstep/b.h": base, "lockstep/d.cpp": '#include "lockstep/b.h"\n' + derived.format(methods(6, "own"))})
        self.assertEqual("D (lockstep/d.cpp): 30 methods (9 of its own, 21 inherited), 1 sources in lockstep/d.cpp", lines["D"])
        self.assertIn("22 methods (20 of its own, 2 inherited)", lines["Base"])
        lines = self.refused({"lockstep/b.h": base, "lockstep/d.cpp": '#include "lockstep/b.h"\n' + derived.format(methods(7, "own"))})
        self.assertEqual(["D (lockstep/d.cpp): 31 methods (10 of its own, 21 inherited), 1 sources in lockstep/d.cpp"], lines)

    def test_members_lie_in_two_sources_at_most(self):
        header = f"#pragma once\nclass A {{\n{methods(3)}  static int data;\n  void here() {{}}\n}};\n"
        include = '#include "lockstep/a.h"\n'
        files = {"lockstep/a.h": header, "lockstep/one.cpp": include + definitions("A", [0]), "lockstep/two.cpp": include + definitions("A", [1, 2])}
        self.assertIn("2 sources in lockstep/one.cpp, lockstep/two.cpp", self.listed(files)["A"])
        third = {"lockstep/three.cpp": include + definitions("A", [2]), "lockstep/two.cpp": include + definitions("A", [1])}
        for lines in (self.refused({**files, **third}), self.refused({**files, "lockstep/three.cpp": include + "int A::data = 1;\n"})):
            self.assertEqual(
                ["A (lockstep/a.h): 4 methods (4 of its own), 3 sources in lockstep/one.cpp, lockstep/three.cpp, lockstep/two.cpp"], lines
            )

    def test_functions_that_take_private_state_are_methods(self):
        include = "#pragma once\n#include <memory>\n"
        lines = self.listed(
            {
                "lockstep/a.h": include
                + """
                class A {
                 public:
                  struct Impl;
                  struct Interface;
                  struct Plain { int x; };
                  friend bool operator<(const A&, const A&) { return false; }
                  friend void befriended(A&);
                  friend class Other;
                  void method();
                 private:
                  struct Slot { int x; };
                  friend void use(Slot&);
                  std::unique_ptr<Impl> impl_;
                };
                """,
                "lockstep/impl.h": include
                + """#include "lockstep/a.h"
                struct A::Impl { void own(); int state = 0; };
                struct A::Interface { virtual void call() = 0; };
                void declared(A::Impl& impl);
                """,
                "lockstep/a.cpp": '#include "lockstep/impl.h"\nvoid A::method() {}\nvoid A::Impl::own() {}\n'
                "void declared(A::Impl& impl) {}\nvoid befriended(A&) {}\n",
                "lockstep/b.cpp": '#include "lockstep/impl.h"\nnamespace { void moved(std::unique_ptr<A::Impl>) {} }\n'
                "static void looked(int, const A::Impl* const impl) {}\nvoid use(A::Slot&) {}\n"
                "template <class T> void generic(T, A::Impl&) {}\n"
                "void wraps(A::Interface&) {}\nvoid plain(A::Plain, A&) {}\n",
            }
        )
        self.assertEqual(
            "A (lockstep/a.h): 4 methods (1 of its own, 3 functions that take its state), 2 sources in lockstep/a.cpp, lockstep/b.cpp", lines["A"]
        )
        self.assertEqual(
            "A::Impl (lockstep/impl.h): 5 methods (1 of its own, 4 functions that take its state), 2 sources in lockstep/a.cpp, lockstep/b.cpp",
            lines["A::Impl"],
        )
        many = "".join(f"void f{i}(A::Impl&) {{}}\n" for i in range(31))
        lines = self.refused({"lockstep/a.cpp": f"class A {{ public: struct Impl; }};\nstruct A::Impl {{ int x; }};\n{many}"})
        self.assertEqual(
            ["A::Impl (lockstep/a.cpp): 31 methods (0 of its own, 31 functions that take its state), 1 sources in lockstep/a.cpp"], lines
        )

    def test_sources_whose_names_clash_are_read_apart(self):
        lines = self.refused(
            {
                "lockstep/a.cpp": "namespace { struct S { void only(); }; void S::only() {} int value = 1; }\n",
                "lockstep/b.cpp": f"namespace {{ struct S {{\n{methods(31)}}}; void value() {{}} }}\n",
                "lockstep/c.cpp": f"namespace {{ struct T {{\n{methods(32)}}}; void value() {{}} }}\n",
            }
        )
        self.assertEqual(
            [
                "T (lockstep/c.cpp): 32 methods (32 of its own), 1 sources in lockstep/c.cpp",
                "S (lockstep/b.cpp): 31 methods (31 of its own), 1 sources in lockstep/b.cpp",
            ],
            lines,
        )

    def test_targets_of_one_precompiled_header_are_read_together(self):
        flags = "-std=c++20 -Winvalid-pch -include ../elsewhere/cmake_pch.hxx"
        files = {
            "elsewhere/cmake_pch.hxx": "#pragma once\nstruct Library { int x; };\n",
            "lockstep/late.h": f"#pragma once\nnamespace n {{ struct Own {{ int x; }}; struct Late {{ void take(Own);\n{methods(30)}}}; }}\n",
            # Its own name would hide the header's, if that came later.
            "lockstep/a.cpp": "namespace n { namespace { struct Own { int x; }; } }\nint main() {}\n",
            "zoo/b.cpp": '#include "lockstep/late.h"\nnamespace { struct Options { Library library; }; int run = 1; }\nint main() {}\n',
            "tools/c.cpp": f"namespace {{ struct Options {{\n{methods(31)}}}; int run() {{ return 1; }} }}\nint main() {{}}\n",
            "bench/d.cpp": f"namespace {{ struct Options {{\n{methods(32)}}}; }}\nint main() {{}}\n",
        }
        lines = self.refused(files, flags=flags)
        self.assertEqual(
            [
                "Options (bench/d.cpp): 32 methods (32 of its own), 1 sources in bench/d.cpp",
                "Options (tools/c.cpp): 31 methods (31 of its own), 1 sources in tools/c.cpp",
                "n::Late (lockstep/late.h): 31 methods (31 of its own), 0 sources",
            ],
            lines,
        )
        for name, text in (("zoo/b.cpp", "struct A { Missing x; };\n"), ("lockstep/late.h", "Missing x;\n")):
            run = Repository(self, {**files, name: text, "zoo/e.cpp": '#include "lockstep/late.h"\n'}, flags=flags).run()
            self.assertEqual(1, run.returncode, run.stdout)
            self.assertRegex(run.stderr, r"zoo/[be]\.cpp does not compile")

    def test_a_source_that_no_target_compiles_is_named(self):
        repository = Repository(self, {"lockstep/a.cpp": "int a;\n"})
        repository.write("lockstep/deep/b.cpp", "int b;\n")
        run = repository.run()
        self.assertEqual((0, "not read, since this build does not compile it: lockstep/deep/b.cpp\n"), (run.returncode, run.stdout))

    def test_headers_that_no_source_includes_are_read(self):
        lines = self.refused({"lockstep/a/a.cpp": "int a;\n", "lockstep/a/lonely.h": f"#pragma once\nstruct L {{\n{methods(31)}}};\n"})
        self.assertEqual(["L (lockstep/a/lonely.h): 31 methods (31 of its own), 0 sources"], lines)

    def test_precompiled_headers_are_read(self):
        files = {
            "elsewhere/cmake_pch.hxx": "#pragma once\nstruct Library { int x; void call(); };\n",
            "lockstep/a.cpp": f"struct A : Library {{\n{methods(31)}}};\n",
        }
        for flags in (
            "-std=c++20 -Winvalid-pch -include ../elsewhere/cmake_pch.hxx",
            "-std=c++20 -Xclang -include-pch -Xclang none.pch -Xclang -include -Xclang ../elsewhere/cmake_pch.hxx",
        ):
            lines = self.refused(files, flags=flags)
            self.assertEqual(["A (lockstep/a.cpp): 31 methods (31 of its own), 1 sources in lockstep/a.cpp"], lines)

    def test_an_exception_holds_for_its_class_alone_and_must_be_needed(self):
        many = f"namespace n {{ struct A {{\n{methods(31)}}}; }}\n"
        self.listed({"lockstep/a.cpp": many}, exceptions="# a comment\n\nn::A  methods  its interface is PyTorch's\n")
        lines = self.refused({"lockstep/a.cpp": many}, exceptions="A methods another name\n")
        self.assertEqual(2, len(lines))
        self.assertIn("n::A (lockstep/a.cpp): 31 methods", lines[0])
        self.assertEqual("A: no class of this name has too many methods; remove the exception", lines[1])
        lines = self.refused({"lockstep/a.cpp": many}, exceptions="n::A both has one source\n")
        self.assertEqual(["n::A: no class of this name has too many sources; remove the exception"], lines)

    def test_an_exception_without_a_reason_is_an_error(self):
        for line in ("A methods", "A", "A lines too long"):
            run = Repository(self, {"lockstep/a.cpp": "int a;\n"}, exceptions=f"\n{line}\n").run()
            self.assertEqual(1, run.returncode)
            self.assertIn(f"exceptions.txt:2: expected NAME methods|sources|both REASON, found: {line}", run.stderr)

    def test_code_that_does_not_compile_is_an_error(self):
        for text in ("struct A { Missing x; };\n", '#include "lockstep/missing.h"\n', '#include "lockstep/bad.h"\n'):
            run = Repository(self, {"lockstep/good.cpp": "int a;\n", "lockstep/bad.cpp": text, "lockstep/bad.h": "Missing x;\n"}).run()
            self.assertEqual(1, run.returncode, run.stdout)
            self.assertIn("lockstep/bad.cpp does not compile", run.stderr)

    def test_without_a_build_it_says_what_makes_one(self):
        repository = Repository(self, {"lockstep/a.cpp": "int a;\n"})
        (repository.root / "build/compile_commands.json").unlink()
        run = repository.run()
        self.assertEqual(1, run.returncode)
        self.assertIn("has no compile_commands.json; scripts/build makes it", run.stderr)


if __name__ == "__main__":
    unittest.main()
