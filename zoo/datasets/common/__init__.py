"""Shared by the programs of the folder above."""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: Lockstep's data sets need Python 3.11 or newer; this is Python {sys.version_info[0]}.{sys.version_info[1]}")
