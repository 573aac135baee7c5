"""Every Python of the tests loads this by its name: those that have loaded torch end without a last search for garbage and without
the destructors of LibTorch, a quarter of what they cost. Ranks end as they do for users.
"""

import atexit
import os
import sys


def leave():
    if "torch" not in sys.modules or "RANK" in os.environ:
        return
    import ctypes
    import gc

    gc.freeze()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    libc.on_exit(libc._exit, None)


atexit.register(leave)
