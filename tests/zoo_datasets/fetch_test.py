"""zoo/datasets/fetch.py against a server on this machine: whole, resumed, cut, wrong, refused, and several at once."""

import contextlib
import glob
import gzip
import hashlib
import http.server
import io
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest
import zipfile

from programs import DATASETS, command

LOCKRUN = os.path.join(os.environ["LOCKSTEP_BIN_DIR"], "lockrun")
# What the catalog was copied from, and what stands there.
SOURCES = {
    "cifar10": ("tensorflow/datasets", "cifar10.txt", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    "cifar100": ("tensorflow/datasets", "cifar100.txt", 168513733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
    "mnist": ("tensorflow/datasets", "mnist.txt", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "multinli": ("tensorflow/datasets", "multi_nli.txt", 226850426, "049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822"),
    "opus_books": ("huggingface/datasets", "dataset_infos.json", 3295251, "0952a213f2353a3bca2dc0f2e7e8c0ce4ca3b3b62b9ae8a1e6d6d16d95a73531"),
}


def tar_gz(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


class Server(http.server.ThreadingHTTPServer):
    """`contents`: path -> bytes. `trouble`: path -> list of what happens to the requests in turn."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents, self.trouble, self.requests = {}, {}, []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, *_):
        pass  # a client that was killed

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.lstrip("/")
        begin = int((re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0, 0])[1])
        self.server.requests.append((path, begin))
        trouble = (self.server.trouble.get(path) or [None]).pop(0)
        content = self.server.contents.get(path)
        if trouble == "redirect" or str(trouble).startswith("to "):
            self.send_response(302)
            self.send_header("Location", self.server.url("moved") if trouble == "redirect" else trouble.removeprefix("to "))
            self.end_headers()
            return
        if trouble == "garbage":
            self.wfile.write(b"hello\r\n\r\n")
            return
        if content is None or isinstance(trouble, int) and trouble >= 400:
            self.send_error(trouble or 404)
            return
        if trouble == "whole":
            begin = 0
        if begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        if trouble != "unsized":
            self.send_header("Content-Length", str(len(content) - begin + (trouble == "promised") * 100))
        self.end_headers()
        body = content[begin:]
        if trouble == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.shutdown(2)
        elif trouble == "stall":
            self.wfile.write(body[:1000])
            self.wfile.flush()
            time.sleep(4)
        elif trouble == "slow":
            for at in range(0, len(body), max(1, len(body) // 40)):
                self.wfile.write(body[at : at + max(1, len(body) // 40)])
                time.sleep(0.05)
        else:
            self.wfile.write(body)


class Fetch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.data = os.path.join(self.directory, "data")
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        draw = random.Random(1)
        self.files = {"set/a.bin": draw.randbytes(300_000), "set/deep/b.txt": b"text\n"}
        self.archive = tar_gz(self.files)
        self.server.contents["set.tar.gz"] = self.archive
        self.catalog = {"set": {"about": "a set", "files": [self.entry("set.tar.gz", self.archive)]}}

    def entry(self, path, content, **changed):
        return dict(dict(url=self.server.url(path), bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), source="tests"), **changed)

    def command(self, *arguments):
        catalog = os.path.join(self.directory, "catalog.json")
        with open(catalog, "w") as file:
            json.dump(self.catalog, file)
        return command("fetch", *arguments, "--data-dir", self.data, "--catalog", catalog)

    def fetch(self, *arguments, timeout=60):
        return subprocess.run(self.command("set", *arguments), capture_output=True, text=True, timeout=timeout, env=dict(os.environ, no_proxy="*"))

    def found(self):
        there = {}
        for folder, _, names in os.walk(self.data):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    there[os.path.relpath(os.path.join(folder, name), self.data)] = file.read()
        return there

    def is_whole(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.found(), {"set/" + name: content for name, content in self.files.items()})
        self.assertEqual(os.listdir(self.data), ["set"])

    def refused(self, run, *messages):
        self.assertIn(run.returncode, (1, 2), run.stdout)
        last = run.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("fetch: error: "), run.stderr)
        for message in messages:
            self.assertIn(message, last)
        self.assertFalse(os.path.exists(os.path.join(self.data, "set")))

    def part(self, content, name="set.tar.gz.part"):
        folder = os.path.join(self.data, "downloads", "set")
        os.makedirs(folder)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)

    def test_downloads_verifies_and_unpacks_once(self):
        run = self.fetch()
        self.is_whole(run)
        self.assertIn("1 file verified (sizes and SHA-256 of tests)", run.stdout)
        again = self.fetch()
        self.is_whole(again)
        self.assertIn("is there already; remove it to fetch it again", again.stdout)
        self.assertEqual(len(self.server.requests), 1)

    def test_two_files_of_one_name(self):
        contents = {"train/x.gz": gzip.compress(b"1"), "test/x.gz": gzip.compress(b"2")}
        self.server.contents.update(contents)
        self.catalog["set"]["files"] = [self.entry(name, content) for name, content in contents.items()]
        self.refused(self.fetch(), "train/x.gz", "test/x.gz", "would have the same name, x.gz")
        self.assertEqual(self.server.requests, [])

    def test_names_beyond_ascii(self):
        for archive in (zipped({"d/Città 猫.txt": b"x"}), tar_gz({"d/Città 猫.txt": b"x"})):
            name = "set.zip" if archive.startswith(b"PK") else "set.tar.gz"
            self.server.contents[name] = archive
            self.catalog["set"]["files"] = [self.entry(name, archive)]
            self.files = {"d/Città 猫.txt": b"x"}
            for locale in ("C", "C.UTF-8"):
                run = subprocess.run(
                    self.command("set"), capture_output=True, text=True, timeout=60, env=dict(os.environ, no_proxy="*", LC_ALL=locale)
                )
                self.is_whole(run)
                subprocess.run(["rm", "-r", self.data], check=True)

    def test_resumes_what_a_killed_run_left(self):
        self.server.trouble["set.tar.gz"] = ["slow"]
        process = subprocess.Popen(self.command("set"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = os.path.join(self.data, "downloads", "set", "set.tar.gz.part")
        deadline = time.monotonic() + 30
        while (not os.path.exists(part) or os.path.getsize(part) < 50_000) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertLess(os.path.getsize(part), len(self.archive))
        left = os.path.getsize(part)
        run = self.fetch()
        self.is_whole(run)
        self.assertEqual(self.server.requests[1:], [("set.tar.gz", left)])

    def test_a_bar_shows_how_far_it_is(self):
        self.server.trouble["set.tar.gz"] = ["slow"]
        terminal, own = pty.openpty()
        self.addCleanup(os.close, terminal)
        process = subprocess.Popen(self.command("set"), stdout=subprocess.DEVNULL, stderr=own, env={**os.environ, "TERM": "xterm", "LANG": "C.UTF-8"})
        os.close(own)
        written, deadline = b"", time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                written += os.read(terminal, 65536)
            except OSError:  # nobody has it open any more
                break
        self.assertEqual(process.wait(10), 0, written)
        self.assertRegex(written.decode(), r"set\.tar\.gz: +\d+% \|.* k?B/\d+ kB .*B/s")
        self.assertTrue(written.endswith(b"\x1b[J"), written[-80:])  # and leaves nothing behind

    def test_a_cut_connection_goes_on_where_it_was(self):
        self.server.trouble["set.tar.gz"] = ["cut", 503, "cut", "unsized"]
        run = self.fetch()
        self.is_whole(run)
        self.assertEqual(len(self.server.requests), 4)
        begins = [begin for _, begin in self.server.requests]
        self.assertEqual(begins, sorted(begins))
        self.assertGreater(begins[1], 0)
        self.assertIn("again in 1.0 s", run.stderr)

    def test_a_server_that_promises_more_than_it_sends(self):
        self.server.trouble["set.tar.gz"] = ["promised"]
        self.is_whole(self.fetch("--retries", "0"))
        self.assertEqual(len(self.server.requests), 1)

    def test_a_connection_that_stalls_is_given_up(self):
        self.server.trouble["set.tar.gz"] = ["stall"]
        run = self.fetch("--stall-timeout", "1")
        self.is_whole(run)
        self.assertEqual(len(self.server.requests), 2)

    def test_retries_end(self):
        self.server.trouble["set.tar.gz"] = [500] * 9
        run = self.fetch("--retries", "1")
        self.refused(run, "cannot download http://127.0.0.1", "500", "put it at")
        self.assertEqual(len(self.server.requests), 2)

    def test_a_server_that_only_sends_whole_files(self):
        self.part(self.archive[:1000])
        self.server.trouble["set.tar.gz"] = ["whole"] * 3
        self.is_whole(self.fetch())
        subprocess.run(["rm", "-r", self.data], check=True)
        self.server.trouble["set.tar.gz"] = ["cut", "whole", "cut", "whole"]
        self.is_whole(self.fetch())
        subprocess.run(["rm", "-r", self.data], check=True)
        self.server.trouble["set.tar.gz"] = ["cut", "whole"] * 9
        self.refused(self.fetch("--retries", "1"), "cannot download")

    def test_a_part_that_is_not_of_this_file(self):
        for left in (b"x" * 1000, b"x" * len(self.archive), b"x" * (len(self.archive) + 5)):
            with self.subTest(left=len(left)):
                self.part(left)
                self.is_whole(self.fetch())
                subprocess.run(["rm", "-r", self.data], check=True)

    def test_wrong_contents_are_refused(self):
        wrong = self.archive[:-1] + bytes([self.archive[-1] ^ 1])
        self.server.contents["set.tar.gz"] = wrong
        run = self.fetch()
        self.refused(run, "has the SHA-256 " + hashlib.sha256(wrong).hexdigest(), hashlib.sha256(self.archive).hexdigest())
        self.assertEqual(self.found(), {})
        for other in (self.archive + b"x", self.archive[:-1]):
            self.server.contents["set.tar.gz"] = other
            for unsized in ([], ["unsized"]):
                self.server.trouble["set.tar.gz"] = list(unsized)
                self.refused(self.fetch(), "another file", str(len(self.archive)))
                self.assertEqual(self.found(), {})

    def test_refusals_of_the_server(self):
        del self.server.contents["set.tar.gz"]
        self.refused(self.fetch(), "cannot download", "404")
        self.assertEqual(len(self.server.requests), 1)
        self.server.contents["moved"] = self.archive
        self.server.contents["set.tar.gz"] = b""
        self.server.trouble["set.tar.gz"] = ["redirect"]
        self.is_whole(self.fetch())

    def test_redirections_that_are_not_followed(self):
        place = os.path.join(self.directory, "mine")
        with open(place, "wb") as file:
            file.write(self.archive)
        for target, message in (
            (f"file://{place}", "is not allowed"),
            ("ftp://127.0.0.1/x", "neither http nor https"),
            (self.server.url("set.tar.gz"), "infinite loop"),
        ):
            self.server.trouble["set.tar.gz"] = ["to " + target] * 30
            self.refused(self.fetch("--retries", "0"), "cannot download", message)
            self.assertEqual(self.found(), {})
        self.assertLess(len(self.server.requests), 20)

    def test_what_is_not_http(self):
        self.server.trouble["set.tar.gz"] = ["garbage"] * 9
        self.refused(self.fetch(), "cannot download", "not HTTP")
        self.assertEqual(len(self.server.requests), 1)
        self.catalog["set"]["files"][0]["url"] = f"file://{self.directory}/set.tar.gz"
        self.refused(self.fetch(), "is not the address of a file")

    def test_ctrl_c_while_downloading(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            self.server.requests.clear()
            self.server.trouble["set.tar.gz"] = ["slow"]
            process = subprocess.Popen(self.command("set"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            part = os.path.join(self.data, "downloads", "set", "set.tar.gz.part")
            deadline = time.monotonic() + 30
            while (not os.path.exists(part) or os.path.getsize(part) < 20_000) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out, err), (-number, "", ""))
            left = os.path.getsize(part)
            self.is_whole(self.fetch())
            self.assertEqual(self.server.requests[1:], [("set.tar.gz", left)])
            subprocess.run(["rm", "-r", self.data], check=True)

    def test_modes_of_files(self):
        """The files are those of this user, with the modes that the umask leaves."""
        mask = os.umask(0o027)
        self.addCleanup(os.umask, mask)
        self.is_whole(self.fetch())
        modes = {name: os.stat(os.path.join(self.data, name)).st_mode & 0o7777 for name in (".", "set", "set/set", "set/set/deep", "set/set/a.bin")}
        self.assertEqual(modes, {".": 0o750, "set": 0o750, "set/set": 0o750, "set/set/deep": 0o750, "set/set/a.bin": 0o640})

    def test_without_a_network(self):
        self.catalog["set"]["files"][0]["url"] = "http://nowhere.invalid/set.tar.gz"
        run = self.fetch()
        place = os.path.join(self.data, "downloads", "set", "set.tar.gz")
        self.refused(run, "Could not resolve host", f"({len(self.archive)} bytes, SHA-256 ", f"put it at {place} and run this again")
        with open(place, "wb") as file:  # damaged on its way
            file.write(self.archive[:-1])
        self.refused(self.fetch(), place, "Remove it")
        with open(place, "wb") as file:
            file.write(self.archive)
        self.is_whole(self.fetch())
        self.server.server_close()
        self.assertEqual(self.server.requests, [])

    def test_unverified_entries_are_refused(self):
        for lack, what in (("sha256", "its SHA-256"), ("bytes", "its size"), ("source", "the public file")):
            entry = self.entry("set.tar.gz", self.archive)
            del entry[lack]
            self.catalog["set"]["files"] = [entry]
            self.refused(self.fetch(), "set is unverified and is not fetched", what)
        self.catalog["set"]["files"] = [self.entry("set.tar.gz", self.archive, sha256="c32a1d4ab5d03f1284b67883e8d87530")]
        self.refused(self.fetch(), "unverified")
        self.assertEqual(self.server.requests, [])

    def test_two_ranks_at_once(self):
        self.server.trouble["set.tar.gz"] = ["slow"]
        processes = [subprocess.Popen(self.command("set"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        said = []
        for process in processes:
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)
            said.append(out)
        self.assertEqual(len(self.server.requests), 1)
        self.assertEqual(sum("verified" in out for out in said), 1)
        self.assertEqual(sum("is there already" in out for out in said), 3)
        self.assertEqual(os.listdir(self.data), ["set"])

    def test_ranks_under_lockrun_and_a_killed_first_one(self):
        self.server.trouble["set.tar.gz"] = ["slow", "slow"]
        first = subprocess.Popen(self.command("set"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not self.server.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        run = subprocess.Popen([LOCKRUN, "--nproc-per-node", "2", *self.command("set")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.5)
        first.kill()  # who waits goes on where it was
        first.wait()
        _, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0, err)
        self.assertEqual(len(self.server.requests), 2)
        self.assertEqual(self.found(), {"set/" + name: content for name, content in self.files.items()})

    def test_zip_and_single_files(self):
        contents = {
            "one.gz": gzip.compress(b"one" * 1000),
            "two.zip": zipped({"d/x.jsonl": b"{}\n", "__MACOSX/d/._x": b"junk", "d/Icon\r": b"", "d/.DS_Store": b""}),
        }
        self.server.contents.update(contents)
        self.catalog["set"]["files"] = [self.entry(name, content) for name, content in contents.items()]
        self.files = {"one": b"one" * 1000, "d/x.jsonl": b"{}\n"}
        self.is_whole(self.fetch())

    def test_archives_that_do_harm(self):
        for bad in (tar_gz({"../out": b"x"}), tar_gz({"/tmp/out": b"x"}), tar_gz({"link": None}), b"no archive", self.archive[:200_000]):
            self.server.contents["set.tar.gz"] = bad
            self.catalog["set"]["files"] = [self.entry("set.tar.gz", bad)]
            self.refused(self.fetch(), "cannot unpack")
            self.assertEqual(list(self.found().values()), [bad])  # and nothing of what was unpacked before the error
            self.assertEqual(os.listdir(os.path.join(self.data, "downloads", "set")), ["set.tar.gz"])
            self.assertFalse(os.path.exists(os.path.join(self.directory, "out")))
            subprocess.run(["rm", "-r", self.data], check=True)

    def test_ctrl_c_while_unpacking(self):
        self.server.contents["big.gz"] = big = gzip.compress(bytes(300_000_000), 1)
        self.catalog["set"]["files"] = [self.entry("big.gz", big)]
        folder = os.path.join(self.data, "downloads", "set")
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(self.command("set"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 30
            while not glob.glob(folder + "/unpacked.*/big") and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (128 + number, ""), err)
            self.assertEqual(os.listdir(folder), ["big.gz"])
        self.files = {"big": bytes(300_000_000)}
        self.is_whole(self.fetch())

    def test_what_killed_runs_of_this_machine_have_left(self):
        host = socket.gethostname()
        self.server.contents["set.tar.gz"] = bad = b"no archive"
        self.catalog["set"]["files"] = [self.entry("set.tar.gz", bad)]
        for left in (host + ".17", host + ".example.17", "other.17"):
            os.makedirs(os.path.join(self.data, "downloads", "set", "unpacked." + left, "x"))
        self.refused(self.fetch(), "cannot unpack")
        self.assertEqual(
            sorted(os.listdir(os.path.join(self.data, "downloads", "set"))),
            sorted(["set.tar.gz", f"unpacked.{host}.example.17", "unpacked.other.17"]),
        )

    def test_parts(self):
        en_it = zipped({"Books.en-it.en": b"Hi\n", "Books.en-it.it": b"Ciao\n"})
        self.server.contents["p/en-it.zip"] = en_it
        self.catalog["books"] = {
            "address": self.server.url("p/"),
            "source": "tests",
            "default_part": "en-it",
            "parts": {"en-it": [dict(url="en-it.zip", bytes=len(en_it), sha256=hashlib.sha256(en_it).hexdigest())], "de-en": []},
        }
        run = subprocess.run(self.command("books"), capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(sorted(self.found()), ["books-en-it/Books.en-it.en", "books-en-it/Books.en-it.it"])
        run = subprocess.run(self.command("books", "--part", "it-en"), capture_output=True, text=True, timeout=60)
        self.assertIn("books has no part 'it-en'; there are de-en, en-it", run.stderr)

    def test_names_that_lead_elsewhere(self):
        """A catalog chooses no folder beside those of --data-dir."""
        files = [self.entry("set.tar.gz", self.archive)]
        os.makedirs(os.path.join(self.directory, "mine", "letters"))
        for name in ("../mine", self.directory + "/mine", "..", "a/b", "downloads"):
            self.catalog = {name: {"files": files}}
            run = subprocess.run(self.command(name), capture_output=True, text=True, timeout=60)
            self.refused(run, f"'{name}' cannot be the name of a data set or part")
        self.catalog = {"set": {"parts": {"x": files, "x/../../mine": files}, "default_part": "x/../../mine"}}
        self.refused(self.fetch(), "'x/../../mine' cannot be the name of a data set or part")
        self.assertEqual(self.server.requests, [])
        self.assertEqual(os.listdir(self.directory + "/mine"), ["letters"])
        self.assertFalse(os.path.exists(self.data))

    def test_mistakes(self):
        for arguments, message in (
            (("sets",), "there is no data set 'sets'; there are set"),
            ((), "which data set? --list shows them"),
            (("set", "--part", "x"), "set has no parts"),
        ):
            run = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 2)
            self.assertIn(message, run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1)
        empty = os.path.join(self.directory, "empty.json")
        with open(empty, "w"):
            pass
        run = subprocess.run(command("fetch", "--list", "--catalog", empty), capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertIn("empty.json is not a catalog", run.stderr)
        self.catalog = []
        self.refused(self.fetch(), "catalog.json")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(self.data)
        with open(self.data, "w"):
            pass
        self.catalog = {"set": {"files": [self.entry("set.tar.gz", self.archive)]}}
        run = self.fetch()
        self.assertEqual(run.returncode, 1)
        self.assertIn("cannot create", run.stderr)

    def test_the_built_in_catalog(self):
        """Every entry is verified: it names a size, a checksum and a public file at a fixed commit."""
        listed = subprocess.run(command("fetch", "--list"), capture_output=True, text=True, timeout=60)
        names = [line.split()[0] for line in listed.stdout.splitlines() if line[:1].strip()]
        self.assertEqual(names, sorted(SOURCES))
        closed = dict(os.environ, http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9")
        for name, (repository, file, size, sha256) in SOURCES.items():
            run = subprocess.run(command("fetch", name, "--data-dir", self.data), capture_output=True, text=True, timeout=60, env=closed)
            self.assertEqual(run.returncode, 1, run.stdout)
            self.assertIn(f"({size} bytes, SHA-256 {sha256})", run.stderr)
        with open(os.path.join(DATASETS, "catalog.json")) as source:
            catalog = json.load(source)
        self.assertEqual(len(catalog["opus_books"]["parts"]), 62)
        for name, entry in catalog.items():
            files = [
                dict(file, source=file.get("source", entry.get("source")))
                for files in (entry.get("parts") or {"": entry.get("files")}).values()
                for file in files
            ]
            for file in files:
                self.assertRegex(file["sha256"], r"^[0-9a-f]{64}$")
                self.assertGreater(file["bytes"], 0)
                repository, page, _, _ = SOURCES[name]
                self.assertRegex(file["source"], rf"^https://github\.com/{repository}/blob/[0-9a-f]{{40}}/.*/{page}$")
            self.assertEqual(len({file["sha256"] for file in files}), len(files))


if __name__ == "__main__":
    unittest.main()
