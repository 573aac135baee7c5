"""Tables larger than the memory that the process may have."""

import json
import os
import resource
import subprocess
import tempfile
import unittest

import pyarrow as pa
import pyarrow.parquet

PROBE = os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "tables_probe")
# Private memory of the process: heap, stacks, what is not a mapped file. LOCKSTEP_TEST_TABLE_MIB makes the files larger.
LIMIT = 96 << 20
SIZE = int(os.environ.get("LOCKSTEP_TEST_TABLE_MIB", "160")) << 20


def ask(question, limit=LIMIT):
    run = subprocess.run(
        [PROBE],
        input=json.dumps(question) + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        env=dict(os.environ, OMP_NUM_THREADS="1", ARROW_DEFAULT_MEMORY_POOL="system", MALLOC_ARENA_MAX="1"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    return run


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        text = "a good film, a very good film indeed " * 26
        cls.rows = SIZE // (len(text) + 40)
        cls.bytes = {"csv": 0, "jsonl": 0, "parquet": 0}
        paths = {kind: os.path.join(cls.directory.name, "large." + kind) for kind in cls.bytes}
        with open(paths["csv"], "w") as csv, open(paths["jsonl"], "w") as lines:
            csv.write("text,label\n")
            for i in range(cls.rows):
                csv.write(f'"{text}{i}",{i % 7}\n')
                lines.write(f'{{"text": "{text}{i}", "label": {i % 7}}}\n')
        schema = pa.schema({"text": pa.string(), "label": pa.int64()})
        # One row group: a reader that keeps a group in memory would need all of it.
        with pa.parquet.ParquetWriter(paths["parquet"], schema, compression="none", use_dictionary=False) as writer:
            writer.write_table(
                pa.table({"text": [f"{text}{i}" for i in range(cls.rows)], "label": [i % 7 for i in range(cls.rows)]}, schema),
                row_group_size=cls.rows,
            )
        cls.paths = paths
        cls.text_bytes = sum(len(text) + len(str(i)) + 1 for i in range(cls.rows))

    def test_read_in_blocks(self):
        for kind, path in self.paths.items():
            self.assertGreater(os.path.getsize(path), 3 * LIMIT // 2)
            run = ask(dict(ask="count", path=path))
            self.assertEqual(run.returncode, 0, (kind, run.stderr))
            self.assertEqual(json.loads(run.stdout), {"answer": {"rows": self.rows, "bytes": self.text_bytes}}, kind)

    def test_mapped(self):
        cache = os.path.join(self.directory.name, "cache")
        for kind, path in self.paths.items():
            run = ask(dict(ask="mapped_count", path=path, cache_dir=cache, stride=1000))
            self.assertEqual(run.returncode, 0, (kind, run.stderr))
            self.assertEqual(json.loads(run.stdout), {"answer": {"rows": self.rows, "bytes": self.text_bytes}}, kind)

    def test_the_limit_limits(self):
        """What keeps the table in memory does not fit, so the tests above show something."""
        run = ask(dict(ask="text_table", path=self.paths["csv"]))
        self.assertFalse(run.returncode == 0 and '"answer"' in run.stdout)


if __name__ == "__main__":
    unittest.main()
