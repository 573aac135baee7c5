import pathlib
import re
import subprocess

from setuptools import Distribution, setup

HERE = pathlib.Path(__file__).parent / "lockstep"
# What every Linux with the tag's glibc has, what torch's wheel brings, and what lies in this wheel.
ALLOWED = re.compile(r"^(libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s|ld-linux-x86-64|libtorch\w*|libc10|libhwy|libsodium)\.so")


class Platform(Distribution):
    """The compiled module is already there; it makes the wheel one for this platform."""

    def has_ext_modules(self):
        return True


def platform_tag():
    """manylinux with the newest glibc whose symbols the libraries use (PEP 600); linux_x86_64 where they need other libraries."""
    newest = 17
    for library in HERE.glob("*.so*"):

        def read(*flags):
            return subprocess.run(["readelf", *flags, library], check=True, capture_output=True, text=True).stdout

        needed = re.findall(r"NEEDED.*\[(.+)\]", read("-d"))
        if other := [name for name in needed if not ALLOWED.match(name)]:
            print(f"linux_x86_64, because {library.name} needs {', '.join(other)}")
            return "linux_x86_64"
        newest = max([newest, *[int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", read("--version-info"))]])
    return f"manylinux_2_{newest}_x86_64"


setup(distclass=Platform, options={"bdist_wheel": {"plat_name": platform_tag()}})
