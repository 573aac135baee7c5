"""Starts torchft's lighthouse and replica groups of one process each, for bench/recovery/run, and starts one anew when it dies, as torchrun
does for each group. Ends on SIGTERM.

    python bench/recovery/replicas.py 2 program args...
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time


def main():
    count, command, parent = int(sys.argv[1]), [sys.executable, *sys.argv[2:]], os.getppid()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    flags = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]  # as torchft's README has them
    lighthouse = subprocess.Popen([pathlib.Path(sys.executable).parent / "torchft_lighthouse", *flags, "--bind", address], stdout=subprocess.DEVNULL)
    replicas = {}
    try:
        while os.getppid() == parent:
            if lighthouse.poll() is not None:
                sys.exit("replicas.py: error: the lighthouse has ended")
            for rank in range(count):
                if rank not in replicas or replicas[rank].poll() is not None:
                    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count), "TORCHFT_LIGHTHOUSE": f"http://{address}"}
                    replicas[rank] = subprocess.Popen(command, env=environment)
            time.sleep(0.01)
    finally:
        for process in (*replicas.values(), lighthouse):
            process.kill()
            process.wait()


main()
