"""Do the build and the tests keep to the Debian packages that deps/ declares?

Usage: declared_packages.py programs DIRECTORY
         fills DIRECTORY with links to the programs on the PATH that the declared packages bring
       declared_packages.py check BUILD_DIRECTORY
         fails, naming the packages, if the build read a file of any other one
Declared are the lines of deps/apt.txt, deps/apt-zoo.txt, deps/apt-test.txt and deps/apt-ucx.txt, what these packages depend on, and
what every Debian has.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
LISTS = ("deps/apt.txt", "deps/apt-zoo.txt", "deps/apt-test.txt", "deps/apt-ucx.txt")
DPKG = pathlib.Path("/var/lib/dpkg")

Package = collections.namedtuple("Package", "is_everywhere provides needs")  # needs: a list of alternatives for each need


def alternatives_of(need):
    """["a", "b"] of "a:any (>= 1) | b"."""
    return [re.split(r"[\s:(\[]", alternative.strip())[0] for alternative in need.split("|")]


def read_packages():
    """{name: Package} of what is installed."""
    fields = ("db:Status-Abbrev", "Package", "Essential", "Priority", "Provides", "Pre-Depends", "Depends")
    listing = subprocess.run(
        ["dpkg-query", "-W", "-f", "\t".join(f"${{{field}}}" for field in fields) + "\n"], check=True, capture_output=True, text=True
    ).stdout
    packages = {}
    for line in listing.splitlines():
        status, name, essential, priority, provides, *depends = line.split("\t")
        if status.startswith("ii"):
            needs = [alternatives_of(need) for need in ", ".join(depends).split(",") if need.strip()]
            provided = {alternatives_of(one)[0] for one in provides.split(",") if one.strip()}
            packages[name] = Package(essential == "yes" or priority == "required" or name == "apt", provided, needs)
    return packages


def read_lists():
    """A list of alternatives for each line of the lists."""
    lines = [line for name in LISTS for line in (CHECKOUT / name).read_text().splitlines()]
    return [alternatives_of(line) for line in (line.split("#")[0].strip() for line in lines) if line]


def closure(packages, declared):
    """The names of the installed packages that `declared` brings. Of alternatives it is the first that is installed."""
    providers = collections.defaultdict(list)
    for name, package in packages.items():
        for virtual in package.provides:
            providers[virtual].append(name)
    found = set()
    needs = [[name] for name, package in packages.items() if package.is_everywhere] + list(declared)
    for need in needs:  # it grows meanwhile
        candidates = [name for alternative in need for name in ([alternative] if alternative in packages else providers[alternative])]
        if candidates and not found.intersection(candidates):
            found.add(candidates[0])
            needs += packages[candidates[0]].needs
    return found


def files_of(wanted):
    """(package, paths of its files) for each installed package for which `wanted` holds."""
    for listing in sorted((DPKG / "info").glob("*.list")):
        name = listing.stem.split(":")[0]
        if wanted(name):
            yield name, listing.read_text().splitlines()


def spellings(path):
    """As packages may call this file: they know nothing of links, and /lib is often one to /usr/lib."""
    for spelling in {os.path.normpath(path), os.path.realpath(path)}:
        yield spelling
        yield spelling.removeprefix("/usr") if spelling.startswith("/usr/") else "/usr" + spelling


def files_read(build):
    """Absolute paths of files outside the checkout that the build names or has read: headers, libraries, programs, CMake files."""
    deps = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    paths = set(re.findall(r"^    (/.*)", deps, re.M))
    for name in ("build.ninja", "CMakeFiles/rules.ninja"):
        paths.update(re.findall(r"(?<![\w.])/(?:usr|lib|opt|etc)/[^\s$:,;\"']+", (pathlib.Path(build) / name).read_text()))
    return {path for path in paths if not path.startswith(f"{CHECKOUT}/") and os.path.isfile(path)}


def check(build):
    read = {spelling: path for path in files_read(build) for spelling in spellings(path)}
    declared = closure(read_packages(), read_lists())
    found = False
    for name, paths in files_of(lambda name: name not in declared):
        used = sorted(read[path] for path in paths if path in read)
        if used:
            found = True
            more = f" and {len(used) - 1} more files of it" if len(used) > 1 else ""
            print(f"{name}: the build reads {used[0]}{more}; declare the package in {LISTS[0]}, or in {LISTS[1]} if only tests need it")
    return 1 if found else 0


def choice_of_alternative(link, is_declared):
    """What `link` into /etc/alternatives would be, were only the declared packages installed."""
    choices = DPKG / "alternatives" / os.path.basename(os.readlink(link))
    lines = choices.read_text().splitlines() if choices.exists() else []
    return next((line for line in lines if is_declared(line) and os.path.exists(line)), None)


def link_programs(directory):
    declared = closure(read_packages(), read_lists())
    files = {path for _, paths in files_of(lambda name: name in declared) for path in paths}

    def is_declared(path):
        return any(spelling in files for spelling in spellings(path))

    for place in os.environ["PATH"].split(":"):
        if place not in ("/bin", "/sbin", "/usr/bin", "/usr/sbin"):
            continue
        for entry in os.scandir(place):
            program = entry.path
            if not is_declared(program):
                is_choice = entry.is_symlink() and os.readlink(program).startswith("/etc/alternatives/")
                program = choice_of_alternative(program, is_declared) if is_choice else None
            link = os.path.join(directory, entry.name)
            if program and not os.path.lexists(link):
                os.symlink(program, link)
    return 0


if __name__ == "__main__":
    command, path = sys.argv[1:]
    sys.exit({"programs": link_programs, "check": check}[command](path))
