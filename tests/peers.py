"""Importing this makes the packages of deps/requirements-peers.txt importable. They lie beside the others, since transformers
imports torchvision where it finds it."""

import os
import sys

PEERS = os.path.join(sys.prefix, "peers")
sys.path.insert(0, PEERS)
