"""Commands in namespaces of their own. Most containers refuse them; the tests that need them are then skipped."""

import functools
import os
import subprocess
import sys
import unittest


def unshare(*kinds):
    return ["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), *kinds]


def become_root(needed=(), own=(), first="true"):
    """Without privileges: starts this script anew as root of a user namespace, and in namespaces of the kinds `own`, behind the shell command
    `first`. Ranks that it starts share them, as one user's ranks do: from user namespaces of their own they may not open each other's memory.
    Does nothing if namespaces of the kinds `needed` are refused."""
    if os.geteuid() != 0 and refusal(*needed) is None:
        os.execvp("unshare", [*unshare(*own), "sh", "-c", f'{first} && exec "$@"', "sh", sys.executable, *sys.argv])


@functools.cache
def refusal(*kinds):
    """Why no command can run in new namespaces of these kinds, or None."""
    result = subprocess.run([*unshare(*kinds), "true"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    return None if result.returncode == 0 else f"no right to make namespaces ({result.stderr.strip()})"


def in_namespaces(*kinds):
    """The beginning of a command that runs in new namespaces, as root there. Skips the test where they are refused."""
    reason = refusal(*kinds)
    if reason is not None:
        print(f"\nskipped: {reason}", file=sys.stderr)  # for scripts/test, which names the reason
        raise unittest.SkipTest(reason)
    return unshare(*kinds)
