"""Searches the site as a reader's browser does, and fails if a search does not find first the page that answers it.

Usage: docs_search_check.py SITE

Needs node: the site's own search runs in it (Material's worker, and the index of the pages).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

# What a reader types, and the page of the first result.
SEARCHES = {
    "batch size": "data",
    "no_sync": "ddp",
    "find_unused_parameters": "ddp",
    "gradient accumulation": "ddp",
    "checkpoint": "checkpoints",
    "DistributedSampler": "data",
    "learning rate": "optimizers/schedules",
    "install": "getting_started",
    "hang": "howto/debug_a_hang",
    "--nproc-per-node": "lockrun",
    "--max-restarts": "lockrun/ends",
    "exit code 75": "lockrun/ends",
    "SLURM": "lockrun/recipes",
    "several machines": "howto/several_machines",
}

# Reads {worker, index, searches} and prints the address of each search's first result, or null, as JSON.
BROWSER = r"""
const {worker, index, searches} = JSON.parse(require('fs').readFileSync(0, 'utf8'));
let receive, answer;
const self = {addEventListener: (name, f) => { receive = f; }, postMessage: message => answer(message), console, importScripts() {}};
self.self = self;
require('vm').runInNewContext(worker, self);
const send = message => new Promise(resolve => { answer = resolve; receive({data: message}); });
(async () => {
  await send({type: 0, data: {...index, options: {suggest: false}}});
  const found = [];
  for (const words of searches) {
    const {items} = (await send({type: 2, data: words})).data;
    found.push(items.length ? items[0][0].location : null);
  }
  console.log(JSON.stringify(found));
})();
"""


def typed(words):
    """What the search gets: docs/assets/search.js takes the dashes away."""
    return re.sub(r"(^|\s)-+(?=\S)", r"\1", words)


def first_results(site, searches):
    (worker,) = (site / "assets/javascripts/workers").glob("search.*.js")
    given = {
        "worker": worker.read_text(),
        "index": json.loads((site / "search/search_index.json").read_text()),
        "searches": [typed(words) for words in searches],
    }
    done = subprocess.run(["node", "-e", BROWSER], input=json.dumps(given), capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"docs_search_check: error: the site's search does not run in node: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def problems(searches, found):
    """`searches`: the page that each should find first; `found`: the address that it finds."""
    return [
        f"a search for '{words}' finds {first or 'nothing'} first, and should find {page}.html"
        for (words, page), first in zip(searches.items(), found)
        if first is None or first.split("#")[0] != f"{page}.html"
    ]


def main(site):
    if not shutil.which("node"):
        print("docs_search_check: not checked: node is missing (Debian: nodejs)")
        return
    wrong = problems(SEARCHES, first_results(pathlib.Path(site), SEARCHES))
    if wrong:
        sys.exit("\n".join(f"docs_search_check: error: {one} (scripts/docs_search_order.py)" for one in wrong))


if __name__ == "__main__":
    main(sys.argv[1])
