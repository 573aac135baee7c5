"""--event-log: what happens to a job, as lines of JSON."""

import json
import os
import signal
import time
import unittest

from nodes_support import LOOP, AgentsTest


class EventLogTest(AgentsTest):
    def events(self):
        lines = [json.loads(line) for line in (self.directory / "events.jsonl").read_text().splitlines()]
        for line in lines:
            self.assertLess(abs(line["time"] - time.time()), 120)
        return lines

    def test_one_machine(self):
        script = "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exec sleep 60"
        code, _, err = self.shell(2, script, "--max-restarts", 1, "--event-log", "events.jsonl")
        self.assertEqual(code, 0, err)
        events = self.events()
        self.assertEqual([event["event"] for event in events], ["start", "exit", "exit", "restart", "start", "exit", "exit", "end"], events)
        start, failed, ended, restart = events[:4]
        self.assertEqual((start["first_rank"], start["ranks"], start["world_size"], start["restarts"]), (0, 2, 2, 0))
        self.assertEqual((failed["rank"], failed["code"]), (1, 7))
        self.assertEqual((ended["rank"], ended["signal"]), (0, "SIGTERM"))
        self.assertEqual((restart["reason"], restart["restarts"]), ("rank 1 ended with exit code 7", 1))
        self.assertEqual((events[-1]["code"], events[-1]["restarts"]), (0, 1))

    def test_machines_that_join_and_leave_share_a_file(self):
        flags = ["--event-log", "events.jsonl"]
        first = self.elastic("1:2", LOOP, *flags)
        self.wait_for_file("up0.1")
        second = self.elastic("1:2", LOOP, *flags)
        for name in ("up0.2", "up1.2"):
            self.wait_for_file(name)
        (self.directory / "up0.1").unlink()
        second.send_signal(signal.SIGTERM)
        self.wait_for_file("up0.1")
        (self.directory / "release").touch()
        results = self.finish(first, second)
        self.assertEqual([code for code, _, _ in results], [0, 143], results)
        events = self.events()
        names = [event["event"] for event in events]
        self.assertEqual([names.count(name) for name in ("join", "leave", "start", "exit", "restart", "end")], [2, 1, 4, 4, 2, 1], events)
        leave = next(event for event in events if event["event"] == "leave")
        self.assertEqual((leave["reason"], leave["machines"], leave["address"]), ("told to leave", 1, "127.0.0.1"))
        self.assertEqual({event["world_size"] for event in events if event["event"] == "start"}, {1, 2})

    def test_a_rank_that_was_replaced(self):
        self.environment.update(
            HEAL_KILLS="1:4:backward:9", HEAL_DIR=str(self.directory), OMP_NUM_THREADS="1", LOCKSTEP_TIMELINE=str(self.directory / "timeline.json")
        )
        del self.environment["LOCKSTEP_BACKEND"]
        code, _, err = self.run_lockrun(
            "--standalone",
            "--nproc-per-node",
            2,
            "--max-replacements",
            1,
            "--event-log",
            "events.jsonl",
            os.path.join(os.environ["LOCKSTEP_TEST_BIN_DIR"], "healed_training"),
            "--steps",
            "8",
        )
        self.assertEqual(code, 0, err)
        events = self.events()
        self.assertEqual([event["event"] for event in events], ["start", "exit", "replace", "exit", "exit", "end"], events)
        killed, replaced = events[1:3]
        self.assertEqual((killed["rank"], killed["signal"]), (1, "SIGKILL"))
        self.assertEqual((replaced["rank"], replaced["step"], replaced["host"]), (1, 4, killed["host"]))
        self.assertEqual(replaced["reason"], f"rank 1 (pid {killed['pid']}) was killed by SIGKILL")
        self.assertIn(replaced["pid"], [event["pid"] for event in events[3:5]])
        self.assertIn(f"{replaced['reason']} at step 4; replaced in {replaced['seconds']:.1f} s, no step lost", err)
        spans = json.loads((self.directory / "timeline.json").read_text())["traceEvents"]
        self.assertEqual(sorted(span["pid"] for span in spans if span["name"] == "heal"), [0, 1], "the one that lived, and the new process")

    def test_a_file_that_cannot_be_opened_is_an_error(self):
        code, _, err = self.shell(1, "true", "--event-log", "nowhere/events.jsonl")
        self.assertEqual(code, 1)
        self.assertEqual(err, "lockrun: error: --event-log nowhere/events.jsonl: cannot be opened: No such file or directory\n")


if __name__ == "__main__":
    unittest.main()
