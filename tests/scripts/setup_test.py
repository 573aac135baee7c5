"""Which build of PyTorch scripts/setup takes, and how it installs packages beside pip: with package indexes of our own, whose wheels
have no content, and an apt-get of our own."""

import fcntl
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
ON_GPU, WITHOUT_GPU = "echo 'GPU 0: NVIDIA'", "echo 'NVIDIA-SMI has failed'; exit 9"


def write_wheel(directory, version):
    directory.mkdir(parents=True, exist_ok=True)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(directory / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "".join(f"{info}/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")))


# A Python whose environments are copies of one, since making one takes seconds.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec cp -a {prepared}/. "$3"; fi
exec {python} "$@"
"""


class Setup(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        prepared = pathlib.Path(directory.name, "prepared")
        subprocess.run([sys.executable, "-m", "venv", prepared], check=True, timeout=200)
        cls.python = pathlib.Path(directory.name, "python3")
        cls.python.write_text(PYTHON.format(prepared=prepared, python=sys.executable))
        cls.python.chmod(0o755)

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.checkout = self.directory / "checkout"
        for name, content in (("apt.txt", ""), ("apt-zoo.txt", ""), ("requirements.txt", "torch==2.13.0\n"), ("requirements-zoo.txt", "")):
            (self.checkout / "deps").mkdir(parents=True, exist_ok=True)
            (self.checkout / "deps" / name).write_text(content)
        (self.checkout / "scripts").mkdir()
        shutil.copy(SOURCE / "scripts" / "setup", self.checkout / "scripts")
        self.cpu_index = (self.directory / "cpu").as_uri()
        for version in ("2.12.0", "2.13.0", "2.14.0"):
            write_wheel(self.directory / "default" / "torch", version)
        (self.directory / "cpu" / "torch").mkdir(parents=True)
        self.gpu = WITHOUT_GPU

    def environment(self, **more):
        for index in ("default", "cpu"):
            pages = self.directory / index / "torch"
            (pages / "index.html").write_text("".join(f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in pages.glob("*.whl")))
        programs = self.directory / "programs"
        programs.mkdir(exist_ok=True)
        (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{self.gpu}\n")
        (programs / "nvidia-smi").chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "LOCKSTEP_TORCH", "CMAKE_PREFIX"))}
        return dict(
            inherited,
            PATH=f"{programs}:{os.environ['PATH']}",
            PYTHON=str(self.python),
            PIP_CONFIG_FILE=os.devnull,
            PIP_INDEX_URL=(self.directory / "default").as_uri(),
            LOCKSTEP_TORCH_CPU_INDEX=self.cpu_index,
            **more,
        )

    def start(self, *options, **environment):
        command = [self.checkout / "scripts" / "setup", *options]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment(**environment), text=True, **streams)

    def setup(self, *options, **environment):
        """What setup printed."""
        command = [self.checkout / "scripts" / "setup", *options]
        run = subprocess.run(command, env=self.environment(**environment), capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
        self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)
        return run.stdout

    def installed(self):
        (info,) = (self.checkout / ".venv").glob("lib/python3*/site-packages/torch-*.dist-info")
        return info.name.removeprefix("torch-").removesuffix(".dist-info")

    def test_without_a_gpu_the_cpu_build_of_pytorchs_index(self):
        write_wheel(self.directory / "cpu" / "torch", "2.13.0+cpu")
        self.assertIn(f"PyTorch 2.13.0+cpu: the CPU build from {self.cpu_index}, since there is no NVIDIA GPU (--cuda overrides)", self.setup())
        self.assertEqual(self.installed(), "2.13.0+cpu")
        self.assertEqual(self.setup(), "")
        # The default build for the nodes that have GPUs, remembered.
        self.assertIn("pip's default build, as --cuda asks", self.setup("--cuda"))
        self.assertEqual(self.installed(), "2.13.0")
        self.assertEqual(self.setup(), "")
        self.assertEqual(self.setup("--cuda"), "")
        (self.checkout / "deps" / "requirements.txt").write_text("torch==2.12.0\n")
        self.assertIn("PyTorch 2.12.0: pip's default build, as --cuda asks", self.setup())

    def test_pips_own_cpu_build_stays(self):
        write_wheel(self.directory / "default" / "torch", "2.13.0+cpu")
        self.cpu_index = "file:///no/such/index"
        self.assertIn("PyTorch 2.13.0+cpu: pip's own answer is a CPU build.", self.setup())
        self.assertEqual(self.installed(), "2.13.0+cpu")
        self.assertEqual(self.setup("--cpu"), "")

    def test_where_the_index_does_not_answer_pips_default(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.cpu_index = f"http://127.0.0.1:{silent.getsockname()[1]}/cpu"
            self.assertIn(f"pip's default build (several GB if it brings CUDA): {self.cpu_index} offered no CPU build within 10 s.", self.setup())
        self.assertEqual(self.installed(), "2.13.0")

    def test_with_a_gpu_pips_default_unless_told_otherwise(self):
        self.gpu = ON_GPU
        write_wheel(self.directory / "cpu" / "torch", "2.13.0+cpu")
        self.assertIn("since there is an NVIDIA GPU (--cpu overrides)", self.setup())
        self.assertEqual(self.installed(), "2.13.0")
        out = self.setup(LOCKSTEP_TORCH_BUILD="cpu")
        self.assertIn("--cpu asks for another build of PyTorch: starting the environment anew.", out)
        self.assertIn(f"PyTorch 2.13.0: the CPU build from {self.cpu_index}, as --cpu asks.", out)
        self.assertEqual(self.installed(), "2.13.0+cpu")

    def lack_packages(self, install):
        """Debian packages are missing, and apt-get does `install`, a script that sees what it is to install as $packages."""
        self.environment()
        (self.checkout / "deps/apt.txt").write_text("python3-venv\nninja-build\n")
        (self.directory / "done").mkdir()
        apt = f'cd {self.directory}/done; packages=$(echo "$*" | sed "s/.*recommends //"); case "$*" in *update*) ;; *) {install} ;; esac'
        for name, script in (("dpkg-query", ""), ("apt-cache", ""), ("sudo", 'shift; exec "$@"'), ("apt-get", apt)):
            (self.directory / "programs" / name).write_text(f"#!/bin/bash\n{script}\n")
            (self.directory / "programs" / name).chmod(0o755)

    def test_packages_come_while_pip_works(self):
        self.lack_packages(
            'echo "$packages" >>order; [[ $packages != ninja* ]] || for ((i = 0; i < 600; i++)); do compgen -G "*.whl" && break; sleep 0.1; done'
        )
        run = self.start()
        order = self.directory / "done/order"
        deadline = time.monotonic() + 100
        while not (order.exists() and "ninja-build" in order.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        while not list((self.checkout / ".venv").glob("lib/python3*/site-packages/torch-*.dist-info")) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertIsNone(run.poll(), "it does not wait for apt-get")
        (self.directory / "done/now.whl").touch()
        out, err = run.communicate(timeout=100)
        self.assertEqual((run.returncode, err), (0, ""), out)
        self.assertEqual(order.read_text(), "python3-venv\nninja-build\n")
        self.assertEqual(self.installed(), "2.13.0")

    def test_packages_that_fail_beside_pip(self):
        self.lack_packages('[[ $packages != ninja* ]] || { echo "E: no space left"; exit 100; }')
        run = self.start()
        out, err = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 1, out)
        self.assertIn("  | E: no space left\nsetup: error: apt-get could not install the packages (above). By hand:\n  ", err)

    def test_wheels_that_fail_beside_packages(self):
        self.lack_packages("sleep 3; touch installed")
        (self.checkout / "deps/requirements.txt").write_text("torch==2.11.0\n")
        run = self.start()
        out, err = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 1, out)
        self.assertIn("setup: error: pip could not install deps/requirements.txt", err)
        self.assertTrue((self.directory / "done/installed").exists(), err)

    def test_a_cpu_build_that_cannot_be_installed_is_an_error(self):
        write_wheel(self.directory / "cpu" / "torch", "2.13.0+cpu")
        for wheel in (self.directory / "cpu" / "torch").glob("*.whl"):
            wheel.write_bytes(b"not a wheel")
        for options in ((), ("--cpu",)):
            out, err = (run := self.start(*options)).communicate(timeout=100)
            self.assertEqual(run.returncode, 1, out)
            self.assertIn("setup: error: pip could not install deps/requirements.txt", err)
            self.assertEqual(list((self.checkout / ".venv").glob("lib/python3*/site-packages/torch-*.dist-info")), [])

    def test_a_second_set_up_waits_for_the_first(self):
        (self.checkout / ".data").mkdir()
        with (self.checkout / ".data/setup.lock").open("w") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            run = self.start()
            self.assertEqual(run.stdout.readline(), "Another set-up of this checkout is running: waiting for it.\n")
            self.assertFalse((self.checkout / ".venv").exists())
            fcntl.flock(first, fcntl.LOCK_UN)
            out, err = run.communicate(timeout=100)
        self.assertEqual((run.returncode, err), (0, ""), out)
        self.assertEqual(self.installed(), "2.13.0")

    def test_interrupted_it_waits_for_apt_get(self):
        self.lack_packages("touch begun; [[ $packages != ninja* ]] || { touch rest; sleep 3; touch installed; }")
        run = self.start()
        deadline = time.monotonic() + 100
        while not (self.directory / "done/rest").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        run.terminate()
        out, err = run.communicate(timeout=100)
        self.assertIn(run.returncode, (1, 128 + signal.SIGTERM), out)
        self.assertIn("Waiting for apt-get, which is installing packages.", err)
        self.assertTrue((self.directory / "done/installed").exists(), err)
        self.assertIn("Installing", self.start().communicate(timeout=100)[0])  # it goes on from there


if __name__ == "__main__":
    unittest.main()
