"""A peer has one color in all pictures: those of scripts/draw_performance and those of `lockstep bench --plot`, in both themes."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
PEERS = ("a", "b", "c")  # Lockstep, Open MPI, Gloo


def colors_of(file):
    """(light, dark): the color of each peer."""
    (style,) = re.findall(r"<style>.*?</style>", (SOURCE / file).read_text(), re.S)
    themes = style.split("prefers-color-scheme: dark")
    return [dict(re.findall(r"\.([a-c]) \{ stroke: (#\w+); fill: \2 \}", theme)) for theme in themes]


class PlotColorsTest(unittest.TestCase):
    def test_bench_draws_peers_as_the_pages_do(self):
        pages, bench = colors_of("scripts/draw_performance"), colors_of("bench/collectives/plot.cpp")
        self.assertEqual([tuple(theme) for theme in pages], [PEERS, PEERS])
        self.assertEqual(bench, pages)


if __name__ == "__main__":
    unittest.main()
