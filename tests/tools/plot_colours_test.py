"""A peer has one colour in all pictures: those of scripts/draw_performance and those of `lockstep bench --plot`, in both themes."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
PEERS = ("a", "b", "c")  # Lockstep, Open MPI, Gloo


def colours_of(file):
    """(light, dark): the colour of each peer."""
    style, = re.findall(r"<style>.*?</style>", (SOURCE / file).read_text(), re.S)
    themes = style.split("prefers-color-scheme: dark")
    return [dict(re.findall(r"\.([a-c]) \{ stroke: (#\w+); fill: \2 \}", theme)) for theme in themes]


class PlotColoursTest(unittest.TestCase):
    def test_bench_draws_peers_as_the_pages_do(self):
        pages, bench = colours_of("scripts/draw_performance"), colours_of("bench/collectives/plot.cpp")
        self.assertEqual([tuple(theme) for theme in pages], [PEERS, PEERS])
        self.assertEqual(bench, pages)


if __name__ == "__main__":
    unittest.main()
