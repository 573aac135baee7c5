"""What lockrun gives to the ranks, and what becomes of their output and exit codes."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from lockrun_support import LOCKRUN, TIMEOUT, LockrunTest, wait_until

DUMP_ENVIRONMENT = "import json, os; open('env' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))"


class EnvironmentTest(LockrunTest):
    def ranks(self, count, *flags):
        code, _, err = self.run_lockrun("--nproc-per-node", count, *flags, sys.executable, "-c", DUMP_ENVIRONMENT)
        self.assertEqual(code, 0, err)
        return [json.loads((self.directory / f"env{rank}").read_text()) for rank in range(count)]

    def test_ranks_find_their_place(self):
        ranks = self.ranks(3, "--role", "trainer")
        for rank, env in enumerate(ranks):
            for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
                self.assertEqual(env[name], str(rank))
            for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"):
                self.assertEqual(env[name], "3")
            self.assertEqual((env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["ROLE_NAME"]), ("0", "1", "trainer"))
            self.assertEqual(env["MASTER_ADDR"], "127.0.0.1")
            self.assertEqual(env["TORCHELASTIC_USE_AGENT_STORE"], "True")
            self.assertNotIn("LOCKSTEP_TERMINAL_COLUMNS", env)
            self.assertEqual(env["TORCHELASTIC_SIGNALS_TO_HANDLE"], "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
        self.assertEqual(len({env["MASTER_PORT"] for env in ranks}), 1)
        self.assertEqual(len({env["TORCHELASTIC_ERROR_FILE"] for env in ranks}), 3)

    def test_threads_are_the_share_of_the_cores(self):
        cores = len(os.sched_getaffinity(0))
        del self.environment["OMP_NUM_THREADS"]
        self.assertEqual(self.ranks(1)[0]["OMP_NUM_THREADS"], str(cores))
        self.assertEqual(self.ranks(cores)[0]["OMP_NUM_THREADS"], "1")
        line = f"lockrun: 1 thread per rank ({cores} cores, {cores} ranks). Set OMP_NUM_THREADS to change it.\n"
        self.assertEqual(self.shell(cores, "exit 0")[2], line if cores > 1 else "")
        self.environment["OMP_NUM_THREADS"] = "5"
        self.assertEqual(self.ranks(1)[0]["OMP_NUM_THREADS"], "5")

    def test_ranks_share_the_segment(self):
        script = "readlink /proc/self/fd/$LOCKSTEP_SEGMENT_FD; stat -Lc %i /proc/self/fd/$LOCKSTEP_SEGMENT_FD"
        code, out, err = self.shell(2, script, "--prefix", "off")
        lines = sorted(out.split("\n"))
        self.assertEqual(code, 0, err)
        self.assertEqual(lines.count("/memfd:lockstep (deleted)"), 2, out)
        self.assertEqual(len({line for line in lines if line.isdigit()}), 1, out)

    def test_standard_input_belongs_to_rank_0(self):
        process = self.start("--nproc-per-node", 2, "sh", "-c", "echo got $(cat)", stdin=subprocess.PIPE)
        out, _ = process.communicate("hello", timeout=TIMEOUT)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0]: got hello", "[rank 1]: got"])

    def test_signal_dispositions_are_the_users(self):
        code, out, err = self.shell(1, "grep -E 'Sig(Blk|Ign)' /proc/self/status")
        self.assertEqual((code, out.split()), (0, ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]), err)

    def test_python_targets_run_by_python(self):
        (self.directory / "script.py").write_text("import sys; print(sys.argv[1:], flush=True)")
        self.environment["PYTHON_EXEC"] = sys.executable
        self.assertEqual(self.run_lockrun("script.py", "-x", "1")[:2], (0, "['-x', '1']\n"))
        self.assertEqual(self.run_lockrun("-m", "script", "2")[:2], (0, "['2']\n"))


class OutputTest(LockrunTest):
    def test_a_reader_that_pauses_loses_nothing(self):
        process = self.start("sh", "-c", "yes | head -n 300000; touch done")
        self.wait_for_file("done")
        time.sleep(7)  # above what lockrun waits for a reader while others wait for it
        self.assertEqual(process.stdout.read().count("y\n"), 300000)
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_lines_are_prefixed_and_whole(self):
        script = "i=0; while [ $i -lt 200 ]; do printf a; printf 'b\\n'; i=$((i+1)); done; printf last"
        code, out, _ = self.shell(4, script)
        lines = out.splitlines()
        self.assertEqual(code, 0)
        for rank in range(4):
            self.assertEqual(lines.count(f"[rank {rank}]: ab"), 200)
            self.assertEqual(lines.count(f"[rank {rank}]: last"), 1)
        self.assertEqual(len(lines), 4 * 201)

    def test_prefix_follows_torchruns_template(self):
        self.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "${role_name}-$rank/${local_rank} $$ ${other}|"
        self.assertEqual(self.shell(1, "echo a", "--role", "eval")[1], "eval-0/0 $ ${other}|a\n")
        self.assertEqual(self.shell(1, "echo a", "--prefix", "off")[1], "a\n")
        self.assertEqual(self.shell(1, "echo a", "--log-line-prefix-template", "${hostname}:$rank: ")[1], f"{socket.gethostname()}:0: a\n")

    def test_local_rank_in_arguments(self):
        out = self.run_lockrun("--nproc-per-node", 2, "--prefix", "off", "echo", "${local_rank}of$$", "$local_rank")[1]
        self.assertEqual(sorted(out.splitlines()), [f"{rank}of$$ $local_rank" for rank in range(2)])

    def test_prefix_can_be_chosen(self):
        self.assertEqual(self.shell(1, "echo a")[1], "a\n")
        self.assertEqual(self.shell(1, "echo a", "--prefix", "on")[1], "[rank 0]: a\n")
        self.assertEqual(self.shell(2, "echo a", "--prefix", "off")[1], "a\na\n")
        self.assertIn("\x1b[", self.shell(2, "echo a", "--prefix", "color")[1])

    def test_both_streams_go_their_way(self):
        code, out, err = self.shell(2, "echo out; echo err >&2")
        self.assertEqual(
            (sorted(out.splitlines()), sorted(err.splitlines())), (["[rank 0]: out", "[rank 1]: out"], ["[rank 0]: err", "[rank 1]: err"])
        )

    def test_twenty_megabytes_pass(self):
        script = f"yes {'x' * 99} | head -n 200000"
        code, out, err = self.shell(2, script)
        self.assertEqual(code, 0, err)
        self.assertEqual(out.count(f"[rank 0]: {'x' * 99}\n"), 200000)
        self.assertEqual(out.count(f"[rank 1]: {'x' * 99}\n"), 200000)

    def test_a_hundred_megabytes_of_one_rank_pass(self):
        code, out, err = self.shell(2, f"[ $RANK = 1 ] || yes {'y' * 999} | head -n 100000")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.count(f"[rank 0]: {'y' * 999}\n"), 100000)

    def test_a_single_ranks_bytes_are_unchanged(self):
        data = bytes(range(256)) * 4096
        (self.directory / "data").write_bytes(data)
        process = self.start("cat", "data")
        out = process.stdout.buffer.read()
        process.wait(TIMEOUT)
        self.assertEqual(out, data)

    def test_a_closed_standard_output_does_not_end_the_job(self):
        process = self.start(
            "--nproc-per-node", 2, "sh", "-c", "echo first; while [ ! -e closed ]; do sleep 0.02; done; yes | head -n 100000; touch done$RANK"
        )
        process.stdout.readline()
        process.stdout.close()
        (self.directory / "closed").touch()
        self.assertEqual(process.wait(TIMEOUT), 0)
        self.assertTrue((self.directory / "done0").exists() and (self.directory / "done1").exists())
        self.assertEqual(process.stderr.read().count("standard output was closed by its reader"), 1)

    def test_a_full_disk_does_not_end_the_job(self):
        with open("/dev/full", "w") as full:
            code, _, err = self.shell_to(full)
        self.assertEqual(code, 0, err)
        self.assertIn("cannot be written: No space left on device", err)

    def shell_to(self, out):
        process = self.start("--nproc-per-node", 2, "sh", "-c", "echo a", stdout=out)
        _, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, None, err

    def test_a_slow_reader_holds_nothing_up_for_good(self):
        process = self.start("--nproc-per-node", 2, "sh", "-c", "yes | head -n 3000000; touch done$RANK")
        self.assertFalse(wait_until((self.directory / "done0").exists, 1), "unread output was not held back")
        self.assertEqual(process.stdout.read().count("y\n"), 6000000)
        self.assertEqual(process.wait(TIMEOUT), 0)

    def test_signals_for_the_ranks_lose_no_output_when_they_have_ended(self):
        process = self.start("--nproc-per-node", 1, "--prefix", "off", "sh", "-c", "trap '' USR1; yes | head -n 300000; touch done")
        self.wait_for_file("done")
        for _ in range(3):
            time.sleep(0.2)
            process.send_signal(signal.SIGUSR1)
        self.assertEqual(process.stdout.read().count("y\n"), 300000)
        self.assertEqual(process.wait(TIMEOUT), 0)


class ExitTest(LockrunTest):
    def test_success(self):
        self.assertEqual(self.shell(2, "exit 0"), (0, "", ""))

    def test_exit_code_of_the_first_failure(self):
        code, _, err = self.shell(3, "if [ $RANK = 1 ]; then echo why >&2; exit 7; fi; sleep 60")
        self.assertEqual(code, 7)
        self.assertIn("rank 1 failed first: it ended with exit code 7", err)
        self.assertIn("[rank 1]: why\n", err)
        self.assertIn("  what it wrote to standard error stands above\n", err)
        self.assertIn("ranks 0 and 2: killed by SIGTERM after lockrun's request to end", err)

    def test_the_rank_that_was_lost_is_blamed_though_it_ends_later(self):
        script = """tell() { echo "{\\"message\\": {\\"message\\": \\"$1\\"}}" > $TORCHELASTIC_ERROR_FILE; }
            if [ $RANK = 1 ]; then
              trap 'tell "Error: the disk is full"; exit 74' TERM; touch ready; while true; do sleep 0.02; done
            fi
            while [ ! -e ready ]; do sleep 0.02; done; tell 'PeerLostError: rank 0 has lost rank 1'; exit 1"""
        code, _, err = self.shell(2, script)
        self.assertEqual(code, 74, err)
        self.assertIn("rank 1 failed first: it ended with exit code 74", err)
        self.assertIn("its error:\n    Error: the disk is full\n", err)
        self.assertRegex(err, r"rank 0: ended with exit code 1 \d+\.\d+ s before, because it had lost that rank")

    def test_signals_give_128_plus_their_number(self):
        code, _, err = self.shell(2, "[ $RANK = 0 ] || kill -SEGV $$; sleep 60")
        self.assertEqual(code, 128 + 11)
        self.assertIn("rank 1 failed first: it was killed by SIGSEGV", err)

    def test_error_file_is_reported(self):
        script = """echo '{"message": {"message": "KeyError: lost key"}}' > $TORCHELASTIC_ERROR_FILE; exit 1"""
        code, _, err = self.shell(1, script)
        self.assertEqual(code, 1)
        self.assertIn("KeyError: lost key", err)

    def test_whatever_lies_where_the_error_file_should(self):
        for script in (
            "mkfifo $TORCHELASTIC_ERROR_FILE",
            "mkdir $TORCHELASTIC_ERROR_FILE",
            "head -c 100000 /dev/urandom > $TORCHELASTIC_ERROR_FILE",
            "rm -r $(dirname $(dirname $TORCHELASTIC_ERROR_FILE))",
            "ln -s /dev/zero $TORCHELASTIC_ERROR_FILE",
        ):
            code, _, err = self.shell(1, script + "; exit 3")
            self.assertEqual(code, 3, err)
            self.assertNotIn("its error", err)

    def test_a_lockrun_in_a_lockrun(self):
        code, out, err = self.run_lockrun("-np", 2, "--prefix", "off", LOCKRUN, "-np", 2, "--prefix", "off", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["0 of 2", "0 of 2", "1 of 2", "1 of 2"]), err)

    def test_sixty_four_ranks(self):
        code, out, err = self.shell(64, "echo $RANK", "--prefix", "off")
        self.assertEqual((code, sorted(map(int, out.split()))), (0, list(range(64))), err)

    def test_restarts_start_all_ranks_again(self):
        script = (
            "echo $RANK.$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; touch said$RANK;"
            "[ $RANK = 0 ] && sleep 60; while [ ! -e said0 ]; do sleep 0.02; done; exit 4"
        )
        code, out, err = self.shell(2, script, "--max-restarts", "3", "--prefix", "off")
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(out.split()), ["0.0", "0.1", "1.0", "1.1"])
        self.assertIn("starting all ranks again (restart 1 of 3)", err)
        code, out, err = self.shell(1, "echo x; exit 4", "--max-restarts", "2")
        self.assertEqual((code, out), (4, "x\n" * 3), err)

    def test_bad_input_is_one_line(self):
        (self.directory / "data").write_text("")
        (self.directory / "noformat").write_bytes(b"\x00\x01\x02")
        (self.directory / "noformat").chmod(0o755)
        for arguments, message, expected_code in (
            (["--nproc-per-node", "0", "true"], "--nproc-per-node 0: expected", 2),
            (["--nproc-per-node", "257", "true"], "256 ranks", 2),
            (["--nproc-per-nod3", "2", "true"], "did you mean --nproc-per-node?", 2),
            ([], "no program given", 2),
            ([""], "the name of the program is empty", 1),
            (["no_such_program"], "cannot find the program no_such_program", 1),
            (["./data"], "is not executable", 1),
            (["./noformat"], "cannot execute ./noformat: Exec format error", 1),
        ):
            code, out, err = self.run_lockrun(*arguments)
            self.assertEqual((code, out), (expected_code, ""), err)
            self.assertIn(message, err)
            self.assertRegex(err, r"\Alockrun: error: [^\n]*\n\Z")

    def test_without_a_place_for_temporary_files(self):
        self.environment["TMPDIR"] = str(self.directory / "none")
        code, out, err = self.shell(2, "touch started")
        self.assertEqual((code, out, (self.directory / "started").exists()), (1, "", False))
        self.assertRegex(
            err,
            rf"\Alockrun: error: cannot create the directory {self.directory}/none/lockrun_\S+: No such file or directory; "
            r"TMPDIR names another place for it\n\Z",
        )

    def test_flags_that_change_nothing_are_taken(self):
        self.assertEqual(
            self.run_lockrun("--start-method", "fork", "--monitor_interval=5", "--event-log-handler", "null", "--standalone", "true"), (0, "", "")
        )
        code, _, err = self.run_lockrun("--start-method", "thread", "true")
        self.assertEqual((code, err), (2, "lockrun: error: --start-method thread: expected spawn, fork or forkserver\n"))
        code, _, err = self.run_lockrun("--event-log-handler", "mine", "true")
        self.assertEqual(code, 2, err)
        self.assertRegex(self.run_lockrun("--version")[1], r"\Alockrun \d+\.\d+\.\d+\n\Z")

    def test_help(self):
        code, out, _ = self.run_lockrun("--help")
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith("Usage: lockrun"))

    def test_the_page_names_the_defaults_of_the_help(self):
        text = " ".join(self.run_lockrun("--help")[1].split())
        docs = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "docs"
        pages = [docs / "lockrun.md", *sorted((docs / "lockrun").glob("*.md"))]
        page = " ".join(" ".join(path.read_text() for path in pages).split())
        named = re.findall(r"`--([a-z-]+)` \(([0-9.]+) s\)", page)
        self.assertGreater(len(named), 3)
        for flag, value in named:
            self.assertRegex(text.partition(f"--{flag} ")[2], rf"\A(?:(?! --).)*?Default: {re.escape(value)}\. ", flag)
        for key, value in re.findall(r"`([a-z_]+_timeout)` \(([0-9.]+) s\)", page):
            self.assertIn(f" {key}={value}", text)


if __name__ == "__main__":
    unittest.main()
