"""As much of a Weights & Biases server as its client (0.25) needs to write a run and to go on with it."""

import gzip
import http.server
import json
import threading


class Server:
    """`rows` is the history of its one run, `exit_codes` those of each time that the run was finished."""

    def __init__(self):
        self.rows, self.exit_codes, self.run = [], [], None
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"server_state": self}))
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def environment(self):
        return {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": f"http://127.0.0.1:{self.http.server_port}"}

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def stream(self, request):
        history = (request.get("files") or {}).get("wandb-history.jsonl")
        if history:
            at = history["offset"]
            self.rows[at : at + len(history["content"])] = [json.loads(row) for row in history["content"]]
        if request.get("complete"):
            self.exit_codes.append(request["exitcode"])
        return {}

    def answer(self, query, variables):
        bucket = {
            "id": "1",
            "name": variables.get("name"),
            "displayName": "",
            "sweepName": None,
            "historyLineCount": len(self.rows),
            "project": {"name": variables.get("project"), "entity": {"name": "me"}},
        }
        if "upsertBucket" in query:
            inserted, self.run = self.run is None, variables
            return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}
        if "historyTail" in query:
            bucket.update(
                summaryMetrics="{}",
                logLineCount=0,
                eventsLineCount=0,
                eventsTail="[]",
                config="{}",
                tags=[],
                wandbConfig='{"t": 1}',
                historyTail=json.dumps([json.dumps(self.rows[-1])] if self.rows else []),
            )
            return {"model": {"id": "1", "name": "", "entity": {"id": "1", "name": "me"}, "bucket": bucket if self.run else None}}
        if "viewer" in query:
            return {"viewer": {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return {"serverInfo": {"features": []}, "createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = json.loads(body or b"{}")
        state = self.server_state
        if "file_stream" in self.path:
            answer = state.stream(request)
        else:
            answer = {"data": state.answer(request.get("query", ""), request.get("variables") or {})}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
