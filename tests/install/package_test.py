"""An outside program finds an installed Lockstep with find_package, whole or in components."""

import os
import re
import shutil
import subprocess
import unittest

from installed import BUILD, CACHED, CACHED_FLAGS, CMAKE, HERE, SOURCE, InstalledTest, cache_of, other_libtorch, run

SANITIZE = os.environ["LOCKSTEP_SANITIZE"]
FLAGS = " ".join(filter(None, [f"-fsanitize={SANITIZE}" if SANITIZE else "", CACHED_FLAGS]))


class PackageTest(InstalledTest):
    def configure(self, name, project, *definitions):
        """Configures an outside project against the installed copy, as somebody who has activated a Python environment."""
        return subprocess.run(
            [
                CMAKE,
                "-G",
                "Ninja",
                "-S",
                project,
                "-B",
                self.work / name,
                f"-DCMAKE_PREFIX_PATH={self.prefix}",
                "-DCMAKE_CXX_COMPILER=c++",
                f"-DCMAKE_CXX_FLAGS={FLAGS}",
                *definitions,
            ],
            env={**os.environ, "VIRTUAL_ENV": str(SOURCE / ".venv")},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def build(self, name, *definitions):
        result = self.configure(name, HERE / "app", *CACHED, *definitions)
        self.assertEqual(result.returncode, 0, result.stderr)
        run(CMAKE, "--build", self.work / name, env={**os.environ, **cache_of(self.work)})
        return self.work / name

    def test_readmes_program(self):
        """The README's program and CMakeLists.txt, with the commands as they stand there."""
        text = (SOURCE / "README.md").read_text().split("## Your own program")[1]
        blocks = dict(re.findall(r"^```(cpp|cmake)\n(.*?)^```", text, re.S | re.M))
        install, build = re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)
        (program,) = re.findall(r"^add_executable\(\w+ (\S+)\)", blocks["cmake"], re.M)
        folder = self.work / "readme"
        folder.mkdir()
        (folder / program).write_text(blocks["cpp"])
        (folder / "CMakeLists.txt").write_text(blocks["cmake"])
        # $HOME/lockstep is the copy that is installed already.
        (self.work / "lockstep").symlink_to(self.prefix)
        *installing, activate, path = install.splitlines()
        self.assertEqual(installing, ["scripts/setup", "scripts/build", "cmake --install build --prefix $HOME/lockstep"])
        environment = [activate, path]
        script = "\n".join(["set -e", f"cd '{SOURCE}'", *environment, f"cd '{folder}'", build])
        variables = {"HOME": str(self.work), "CXX": "c++", "CXXFLAGS": FLAGS, "OMP_NUM_THREADS": "1", **cache_of(self.work)}
        if CACHED:
            variables["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
            variables["CCACHE_DIR"] = os.environ.get("CCACHE_DIR", os.path.expanduser("~/.cache/ccache"))
        output = run("bash", "-c", script, env={**os.environ, **variables})
        (expected,) = re.findall(r"^It prints `(.*)`", text, re.M)
        self.assertIn(expected, output)
        self.assertTrue((folder / "spirals.safetensors").exists())

    def test_no_file_is_in_two_packages(self):
        """dpkg refuses such a package beside the other. Each component is one."""
        packages = {}
        for component in "tools", "dev", "zoo":
            folder = self.work / f"only-{component}"
            run(CMAKE, "--install", BUILD, "--component", component, "--prefix", folder, "--strip")
            packages[component] = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
            self.assertNotEqual(packages[component], set(), component)
            shutil.rmtree(folder)
        for one, other in ("tools", "dev"), ("tools", "zoo"), ("dev", "zoo"):
            self.assertEqual(packages[one] & packages[other], set(), f"{one} and {other}")

    def test_components_need_neither_arrow_nor_cli11(self):
        app = (
            self.build("parts", "-DCMAKE_DISABLE_FIND_PACKAGE_Arrow=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON", "-DLOCKSTEP_ARROW_DIR=/nowhere")
            / "app"
        )
        self.assertEqual(run(app), "gradient 2\n")
        two = run(
            self.prefix / "bin/lockrun", "--standalone", "--nproc-per-node", 2, "--prefix", "off", app, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self.assertEqual(two, "gradient 3\ngradient 3\n")

    def test_the_prefix_names_no_folder_of_the_checkout(self):
        places = (str(SOURCE).encode(), str(BUILD).encode())
        named = [
            str(path)
            for path in self.prefix.rglob("*")
            if path.is_file() and self.is_ours(path) and any(place in path.read_bytes() for place in places)
        ]
        self.assertEqual(named, [])

    def is_ours(self, path):
        """All but what debug information names."""
        return os.environ["LOCKSTEP_BUILD_TYPE"] == "Release" or path.suffix in (".cmake", ".h", ".py")

    def test_an_unknown_component_is_named(self):
        (self.work / "unknown").mkdir()
        (self.work / "unknown/CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES CXX)\nfind_package(Lockstep REQUIRED COMPONENTS coms)\n"
        )
        result = self.configure("unknown-build", self.work / "unknown")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("it has no component 'coms'; there are: ", " ".join(result.stderr.split()))

    def test_another_libtorch_is_refused(self):
        other = other_libtorch(self.work / "other")
        for name, project, wanted in (
            ("package", HERE / "app", "this Lockstep was built with LibTorch 2.13"),
            ("checkout", SOURCE, "Lockstep needs LibTorch 2.10 or newer"),
        ):
            with self.subTest(name):
                result = self.configure("refused-" + name, project, f"-DCMAKE_PREFIX_PATH={self.prefix};{other}")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(f"LibTorch 2.9.0 in {other}, named by CMAKE_PREFIX_PATH, cannot be used: {wanted}.", " ".join(result.stderr.split()))

    def test_how_to_build_for_another_libtorch(self):
        other = other_libtorch(self.work / "newer", "2.99.1")
        result = self.configure("newer-build", HERE / "app", f"-DCMAKE_PREFIX_PATH={self.prefix};{other}")
        error = " ".join(result.stderr.split())
        self.assertIn("this Lockstep was built with LibTorch 2.13.", error)
        self.assertIn(f"-DCMAKE_PREFIX_PATH={other} && cmake --build build-other", error)
        config = next(self.prefix.rglob("LockstepConfig.cmake")).read_text()
        self.assertRegex(config, r"set\(Lockstep_TORCH_VERSION 2\.13\.\d+\)")

    def test_the_public_headers_are_what_a_recipe_needs(self):
        installed = {str(path.relative_to(self.prefix / "include")) for path in (self.prefix / "include").rglob("*.h")}
        for recipe in (SOURCE / "zoo/recipes").rglob("*.[ch]*"):
            if recipe.suffix in (".cpp", ".h"):
                included = set(re.findall(r'^#include "(lockstep/.*)"', recipe.read_text(), re.M))
                self.assertEqual(included - installed, set(), f"{recipe}: not among what lockstep/lockstep.h and lockstep/zoo.h include")
        self.assertEqual([name for name in installed if not name.startswith("lockstep/") or "/shm/" in name], [])


if __name__ == "__main__":
    unittest.main()
