"""What lockrun's hang watch sees of this rank: where the backend is another one than "lockstep", which tells of itself, its
collectives; with any backend the lines that its threads are at.
"""

import faulthandler
import os
import signal

# lockrun reads it from the name of the file (launcher/watch/stacks.cpp).
_SIGNAL = signal.SIGRTMAX - 3

_stacks = None  # the file stays open


def _tell_lines():
    """At that signal faulthandler writes where all threads are, also while one of them holds the interpreter in C++ code."""
    global _stacks
    if "LOCKSTEP_SEGMENT_FD" not in os.environ or signal.getsignal(_SIGNAL) != signal.SIG_DFL:
        return
    try:
        _stacks = os.fdopen(os.memfd_create(f"lockstep_python_stacks.{int(_SIGNAL)}", os.MFD_CLOEXEC), "w")
        faulthandler.register(_SIGNAL, _stacks)
    except (OSError, RuntimeError, AttributeError):  # without it a rank runs as well
        _stacks = None


def register(native, instead_of):
    _tell_lines()

    @instead_of("init_process_group")
    def init_process_group(original, backend=None, *args, **kwargs):
        if "lockstep" in str(backend).lower():
            return original(backend, *args, **kwargs)
        native.begin_watch()
        with native.WaitingForPeers():
            return original(backend, *args, **kwargs)

    for name in "send", "recv":

        @instead_of(name)
        def message(original, *args, **kwargs):
            with native.WaitingForPeers():
                return original(*args, **kwargs)
