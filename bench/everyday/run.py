"""The everyday questions through the real system: rate, learn, be answered, and what it takes.

    make bench-everyday                # or, with other numbers:
    PYTHONPATH=. python bench/everyday/run.py --seeds 5 --turns 32 --out results.json

Each seed is a user of their own, over the HTTP API alone. The user wants at most 35 words: a reply
that fits gets a thumb up, another a thumb down with HINT as the comment. After each eight rated
turns the job is waited for; when no job has started by itself (from the first version on every
fifth rating is held back for the gate) "train now" is pressed. A job that is refused or fails is
reported, and the run goes on. The 24 held-out questions are asked in sessions of their own and are
not rated; `satisfied` is the share of replies of 1 to 35 words.

`nll` is the frozen base's mean negative log-prob per token of those replies under the hinted
prompt: low is fluent and on topic. The API does not show a reply's ids, so its text is tokenised
by the server again, with the end token when it ended by itself; base scores them through vLLM.

The results file is written after each step. A seed that is complete in it is not run again; one
that is not starts over as a new user.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
import psutil

from bench.everyday.report import table
from clawweb.config import ROOT, Config
from clawweb.stack import guard
from clawweb.stack.supervisor import pid_in
from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.hints import hinted_messages
from rollouts.types import BASE, Message
from tests.realstack import running

HINT = "Please answer in one or two short sentences, at most 30 words. No lists."
MAX_WORDS, MAX_TOKENS, TEMPERATURE, BATCH, AT_ONCE = 35, 96, 0.7, 8, 8
QUESTIONS = Path(__file__).with_name("questions.json")
PARTS = ("valkey", "vllm", "web", "generator", "worker-light", "worker-gpu", "beat")
PHASES = ("load", "train", "step_back", "save", "gate")  # the way back measures for the gate
ENDED = ("deployed", "refused", "no_signal", "cancelled", "failed")
JOB_SECONDS = 1200
Reply = dict[str, Any]


class System:
    """A running clawweb on this machine: its address, its server's, and its data folder."""

    def __init__(self, url: str, config: Config, env: dict[str, str]) -> None:
        self.url, self.var, self.env = url, config.var.resolve(), env
        self.vllm, self.vllm_key = config.vllm, config.secret("vllm_key", config.vllm_key)
        self.engine = build_engine(EngineConfig(url=self.vllm, key=self.vllm_key))
        self.peak: dict[str, float] = {}

    def key(self, username: str) -> str:
        command = [sys.executable, "manage.py", "createkey", username, "--create"]
        done = subprocess.run(
            command, cwd=ROOT, env=self.env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip().splitlines()[-1]

    def note_memory(self) -> None:
        """PSS of each part's processes in MiB; the most that was seen."""
        for part in PARTS:
            total = 0
            # A server that rewrites its title has overwritten its mark: it is known by its pid.
            first = pid_in(self.var / "run" / f"{part}.pid")
            for pid in {*guard.marked(f"{self.var}:{part}"), *([first] if first else [])}:
                try:
                    total += psutil.Process(pid).memory_full_info().pss
                except psutil.Error:  # it ended in between
                    continue
            self.peak[part] = max(self.peak.get(part, 0.0), round(total / 2**20, 1))

    def tokenize(self, **body: Any) -> list[int]:
        answer = httpx.post(
            f"{self.vllm}/tokenize",
            json={"model": "base", **body},
            headers={"Authorization": f"Bearer {self.vllm_key}"},
            timeout=60,
            trust_env=False,
        ).raise_for_status()
        tokens: list[int] = answer.json()["tokens"]
        return tokens

    def nll(self, questions: Sequence[str], replies: Sequence[Reply]) -> float | None:
        """Mean over all tokens of all replies; None when every reply is empty."""
        end = self.end_token()
        losses: list[float] = []
        for question, reply in zip(questions, replies, strict=True):
            ids = self.tokenize(prompt=reply["text"], add_special_tokens=False)
            ids += [end] if reply["finish_reason"] == "stop" else []
            if ids:
                prompt = self.tokenize(messages=hinted(question), add_generation_prompt=True)
                scores = asyncio.run(self.engine.score(prompt, ids, policy=BASE))
                losses += [-value for value in scores]
        return round(statistics.fmean(losses), 3) if losses else None

    def end_token(self) -> int:
        """The token that ends a message: what an answered prompt has after the answer."""
        answered = [*asked("Hi"), Message(role="assistant", content="tea")]
        before = self.tokenize(messages=asked("Hi"), add_generation_prompt=True)
        before += self.tokenize(prompt="tea", add_special_tokens=False)
        ids = self.tokenize(messages=answered, add_generation_prompt=False)
        if ids[: len(before)] != before or len(ids) == len(before):
            raise SystemExit("the chat template does not end a reply with a token of its own")
        return ids[len(before)]


def asked(question: str) -> list[Message]:
    return [Message(role="user", content=question)]


def hinted(question: str) -> list[Message]:
    return hinted_messages(asked(question), hint=HINT, correction=None)


def fits(reply: Reply) -> bool:
    return 1 <= len(reply["text"].split()) <= MAX_WORDS


class User:
    """A simulated user, seen from outside: an API key and HTTP."""

    def __init__(self, system: System, name: str) -> None:
        self.system = system
        self.http = httpx.Client(
            base_url=system.url,
            headers={"Authorization": f"Bearer {system.key(name)}"},
            timeout=300,
            trust_env=False,
        )

    def reply(self, messages: Sequence[Message], *, seed: int, **body: Any) -> Reply:
        """One reply in a session of its own; a failed one is tried once more."""
        body = {"messages": list(messages), "max_tokens": MAX_TOKENS, "seed": seed} | body
        body |= {"temperature": TEMPERATURE}
        answer = self.http.post("/v1/chat/completions", json=body)
        if answer.status_code >= 500:
            time.sleep(2)
            answer = self.http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        choice = answer.json()["choices"][0]
        return {
            "turn": answer.json()["id"],
            "text": choice["message"]["content"],
            "finish_reason": choice["finish_reason"],
            "adapter": answer.headers["X-Clawweb-Adapter"],
            "fallback": answer.headers.get("X-Clawweb-Fallback", ""),
        }

    def replies(
        self, prompts: Sequence[Sequence[Message]], *, seed: int, **body: Any
    ) -> list[Reply]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waiting = [
                pool.submit(self.reply, prompt, seed=seed + i, **body)
                for i, prompt in enumerate(prompts)
            ]
            return [each.result() for each in waiting]

    def rate(self, reply: Reply) -> bool:
        """False when the reply is empty, which cannot be rated."""
        said: dict[str, Any] = {"value": 1} if fits(reply) else {"value": -1, "comment": HINT}
        answer = self.http.post(f"/api/turns/{reply['turn']}/feedback", json=said)
        if answer.status_code == 409:
            return False
        answer.raise_for_status()
        return True

    def newest_job(self) -> dict[str, Any] | None:
        items = self.http.get("/api/jobs").raise_for_status().json()["items"]
        return items[0] if items else None

    def job_after(self, before: str | None) -> dict[str, Any]:
        """The job that the last ratings started, or that "train now" starts; why not otherwise."""
        job = self.newest_job()
        if job is not None and job["id"] != before:
            return job
        pressed = self.http.post("/api/jobs")
        if pressed.status_code != 202:
            return {"state": "none", "reason": pressed.json().get("detail", pressed.text)}
        started: dict[str, Any] = pressed.json()
        return started

    def until_ended(self, job: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + JOB_SECONDS
        noted = 0.0
        while job["state"] not in (*ENDED, "none"):
            if time.monotonic() > deadline:
                return {**job, "reason": f"given up after {JOB_SECONDS} s"}
            if time.monotonic() - noted > 5:
                self.system.note_memory()
                noted = time.monotonic()
            time.sleep(0.25)
            answer = self.http.get(f"/api/jobs/{job['id']}")
            job = answer.json() if answer.status_code == 200 else job
        return job


def evaluate(user: User, questions: Sequence[str], *, seed: int, hint: bool = False) -> Reply:
    """The held-out questions; with `hint`, base under the hinted prompt."""
    prompts = [hinted(question) if hint else asked(question) for question in questions]
    replies = user.replies(prompts, seed=seed, model="base" if hint else "agent")
    words = [len(reply["text"].split()) for reply in replies]
    return {
        "satisfied": round(sum(map(fits, replies)) / len(replies), 3),
        "nll": user.system.nll(questions, replies),
        "mean_words": round(statistics.fmean(words), 1),
        "empty": sum(count == 0 for count in words),
        "answered_by": sorted({reply["adapter"] for reply in replies}),
        "fallbacks": sum(bool(reply["fallback"]) for reply in replies),
        "examples": [reply["text"][:160] for reply in replies[:4]],
    }


def rate_and_learn(user: User, questions: Sequence[str], *, seed: int) -> dict[str, Any]:
    """Eight rated turns and the job that they start, with its times in seconds."""
    before = user.newest_job()
    replies = user.replies([asked(question) for question in questions], seed=seed)
    rated_replies = sum([user.rate(reply) for reply in replies])
    rated = time.time()
    job = user.until_ended(user.job_after(before["id"] if before else None))
    line: dict[str, Any] = {
        "rated": rated_replies,
        "liked": sum(map(fits, replies)),
        "state": job["state"],
        "reason": job["reason"],
        "trigger": job.get("trigger"),
        "samples": job.get("samples"),
        "steps": job.get("step"),
        "attempt": job.get("attempt"),
    }
    if job["state"] == "deployed":
        first = user.reply(asked("Hello!"), seed=seed, max_tokens=1)
        whole = time.time() - rated
        parts = {name: job["timings"].get(name) for name in PHASES}
        claim = datetime.fromisoformat(job["started_at"]).timestamp() - rated
        line["seconds"] = {
            "claim": round(max(claim, 0.0), 1),
            **parts,
            "deploy": job["timings"].get("deploy"),
            "rating_to_new_reply": round(whole, 1),
        }
        line["new_version_answers"] = first["adapter"] == job["child"]
    return line


def run_seed(user: User, seed: int, args: argparse.Namespace, note: Any) -> dict[str, Any]:
    """One user from no version to the last turn. `note` is given what there is after each step."""
    data = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    order = random.Random(seed).sample(data["train"], len(data["train"]))
    held_out = data["held_out"]
    found: dict[str, Any] = {"evals": {}, "jobs": [], "complete": False}
    for turns in range(0, args.turns + 1, BATCH):
        if turns:
            questions = [order[i % len(order)] for i in range(turns - BATCH, turns)]
            job = rate_and_learn(user, questions, seed=seed * 10_000 + turns)
            found["jobs"].append({"turns": turns, **job})
            say(f"seed {seed}, {turns} turns: {brief(job)}")
        if turns in args.evals or turns == args.turns:
            found["evals"][str(turns)] = evaluate(user, held_out, seed=seed * 10_000 + 5000)
            say(f"seed {seed}, {turns} turns: {brief(found['evals'][str(turns)])}")
        note(found)
    return {**found, "complete": True}


def brief(line: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in line.items() if name != "examples"})


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def system(args: argparse.Namespace) -> Iterator[System]:
    """The one at --url with the settings of this environment, or one that lives for this run."""
    if args.url:
        yield System(args.url, Config(), dict(os.environ))  # type: ignore[call-arg]  # defaults
        return
    with running() as stack:
        yield System(stack.url, stack.config, stack.env)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=32, help="a multiple of 8")
    parser.add_argument(
        "--evals", type=int, nargs="*", default=[0, 8, 16], help="rated turns; the last are added"
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="users; their jobs wait for each other"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "run.json")
    parser.add_argument("--url", default="", help="of a running clawweb on this machine")
    args = parser.parse_args()
    results: dict[str, Any] = {"seeds": {}, "hinted_base": None, "memory": {}}
    if args.out.exists():
        results = json.loads(args.out.read_text(encoding="utf-8"))
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False), encoding="utf-8")

    missing = [n for n in range(args.seeds) if not is_complete(results["seeds"].get(str(n)), args)]
    if missing or results["hinted_base"] is None:
        with system(args) as running:
            results["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
            run_all(running, missing, args, results, write)
    say(table(results))


def is_complete(seed: dict[str, Any] | None, args: argparse.Namespace) -> bool:
    return seed is not None and seed["complete"] and str(args.turns) in seed["evals"]


def run_all(
    running: System,
    missing: Sequence[int],
    args: argparse.Namespace,
    results: dict[str, Any],
    write: Any,
) -> None:
    held_out = json.loads(QUESTIONS.read_text(encoding="utf-8"))["held_out"]
    label = f"{int(time.time()):x}"
    if results["hinted_base"] is None:
        reference = User(running, f"everyday-{label}-base")
        results["hinted_base"] = evaluate(reference, held_out, seed=5000, hint=True)
        say(f"hinted base: {brief(results['hinted_base'])}")
        write()
    writing = Lock()

    def one(seed: int) -> None:
        user = User(running, f"everyday-{label}-{seed}")

        def note(found: dict[str, Any]) -> None:
            with writing:
                results["seeds"][str(seed)] = found
                results["memory"] = {**results["memory"], **running.peak}
                write()

        try:
            note(run_seed(user, seed, args, note))
        except httpx.HTTPError as exc:  # the next seed may fare better
            say(f"seed {seed} is given up: {type(exc).__name__}: {exc}")

    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(one, missing))


if __name__ == "__main__":
    main()
