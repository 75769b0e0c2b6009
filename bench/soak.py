"""Agents, a collector, a controller and a training for twenty minutes, with a fault every few seconds:
docs/development/soak.md.

Between faults the verdict has to come back to the rank that is slow, whatever was done. At the end no daemon has
crashed, none grew, and every incident that was ever told is in the history. Times are not judged: a busy machine
makes it inject fewer faults. Needs root (it mounts a small disk) and Prometheus.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from common.refused import need
from soaking.faults import AGAIN, ONCE, WITH_KUBERNETES, Fault, kill_rank
from soaking.leaks import leaks
from soaking.report import markdown, picture
from soaking.site import SLOW_RANK, Site
from support.control_plane import missing

_SAMPLE_SECONDS = 2.0
_FAULTS_A_JOB = 10
_VERDICT_SECONDS = 240.0
_HISTORY_SECONDS = 120.0  # the history tries a disk that was full again each minute


class Soak:
    """`wrong` is what was not as it should be; `ids` the incidents ever told, with what they were about."""

    def __init__(self, site: Site, seconds: float, pause: float) -> None:
        self.site, self.seconds, self.pause = site, seconds, pause
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self.verdicts = 0
        self.longest_verdict = 0.0
        self.ids: dict[int, str] = {}
        self.died: list[str] = []
        self.began = time.monotonic()
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def run(self) -> None:
        self._sampler.start()
        for daemon in self.site.daemons:
            if not daemon.wait():
                self.wrong.append(f"{daemon.name} was never ready")
        faults = [*AGAIN, *(WITH_KUBERNETES if self.site.plane else ())]
        once = list(ONCE)
        for number in itertools.count():
            if number % _FAULTS_A_JOB == 0:
                self._new_job()
            elapsed = time.monotonic() - self.began
            if number and elapsed > self.seconds:  # one fault at least, however short it is to be
                break
            fault = once.pop() if once and number > 2 else faults[number % len(faults)]
            self._inject(fault)
        self._kill_rank()
        self._ended.set()
        self._sampler.join()
        self.judge()

    def _new_job(self) -> None:
        if self.site.jobs:
            self._kill_rank()
        self.site.start_job()
        self._expect_slow_rank("its start")

    def _inject(self, fault: Fault) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {fault.name}", file=sys.stderr, flush=True)
        fault.do(self.site)
        self.done[fault.name] += 1
        for daemon in self.site.daemons:
            if not daemon.wait():
                self.wrong.append(f"{daemon.name} does not answer after: {fault.name}")
        self._expect_slow_rank(fault.name)
        self.remember()
        time.sleep(self.pause)

    def _expect_slow_rank(self, after: str) -> None:
        def named(location: dict[str, Any]) -> bool:
            culprits = location.get("culprits") or [{}]
            return bool(culprits[0].get("ranks") == [SLOW_RANK] and culprits[0]["kind"].startswith("slow"))

        since = time.monotonic()
        self.verdicts += 1
        if not self.site.wait_for(named, _VERDICT_SECONDS):
            said = json.dumps(self.site.location())[:600]
            self.wrong.append(f"after {after} rank {SLOW_RANK} of {self.site.job} is not named: {said}")
        self.longest_verdict = max(self.longest_verdict, time.monotonic() - since)

    def _kill_rank(self) -> None:
        """A rank dies, and is named as the first that did. Before that there is an incident of the slow one."""
        self._wait_until_told("slow")
        kill_rank(self.site)
        self.done["rank killed"] += 1

        def dead(location: dict[str, Any]) -> bool:
            return any(it["kind"] == "dead" and it["ranks"] == [2] for it in location.get("culprits") or ())

        if not self.site.wait_for(dead, _VERDICT_SECONDS):
            said = json.dumps(self.site.location())[:600]
            self.wrong.append(f"rank 2 of {self.site.job} died, and is not named: {said}")
        self.died.append(self.site.job)
        self._wait_until_told("dead")
        self.remember()

    def _wait_until_told(self, kind: str) -> None:
        """Waits until the job has an incident of such a kind; what never comes is found at the end."""
        deadline = time.monotonic() + _VERDICT_SECONDS
        while time.monotonic() < deadline:
            told = self.site.incidents().get("incidents", ())
            if any(it["culprit"]["kind"].startswith(kind) and it["job_id"] == self.site.job for it in told):
                return
            time.sleep(0.5)

    def remember(self) -> None:
        """Notes every incident that is told now: it has to be told at the end, too."""
        for it in self.site.incidents().get("incidents", ()):
            self.ids[it["id"]] = f"{it['job_id']}: {it['what']}"

    def judge(self) -> None:
        """Adds to `wrong` what is amiss at the end: incidents that are lost, leaks; a daemon that is gone is noted."""
        deadline = time.monotonic() + _HISTORY_SECONDS
        while (self.site.incidents().get("history") or {}).get("state") != "on" and time.monotonic() < deadline:
            time.sleep(1)
        document = self.site.incidents()
        if (document.get("history") or {}).get("state") != "on":
            self.wrong.append(f"the history did not come back: {document.get('history')}")
        kept = {it["id"]: it for it in document.get("incidents", ())}
        self.wrong += [f"the incident {words} is lost" for id, words in self.ids.items() if id not in kept]
        for job in self.died:
            kinds = {it["culprit"]["kind"] for it in kept.values() if it["job_id"] == job}
            if "dead" not in kinds or not any(kind.startswith("slow") for kind in kinds):
                self.wrong.append(f"{job} had a slow and a dead rank, its incidents are {sorted(kinds)}")
        self.wrong += [f"node {name} has no condition" for name in self.site.nodes_without_condition()]
        for daemon in self.site.daemons:
            daemon.lives()
            self.wrong += leaks(daemon.name, daemon.samples) if self.seconds >= 120 else []

    def judge_ends(self) -> None:
        """Adds what the daemons left behind, once they were asked to end: crashes and tracebacks."""
        self.wrong += [it for daemon in self.site.daemons for it in (*daemon.crashes, *daemon.tracebacks())]

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            for daemon in self.site.daemons:
                daemon.sample(time.monotonic() - self.began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds from the end of a fault to the next one")
    parser.add_argument("--seed", type=int, default=0, help="of what is random in the faults")
    parser.add_argument("--without-kubernetes", action="store_true")
    parser.add_argument("--report", type=Path, default=Path("out/soak.md"), help="and its graph beside it, as .svg")
    options = parser.parse_args()
    need("prometheus", "cc", root=True)  # root: for a small disk of its own; the compiler: for clocks that can be set
    random.seed(options.seed)
    kubernetes = not options.without_kubernetes and not missing() and shutil.which("kubectl") is not None
    folder = Path(tempfile.mkdtemp(prefix="laggard-soak-"))
    site = Site(folder, kubernetes)
    soak = Soak(site, options.minutes * 60, options.pause)
    try:
        try:
            soak.run()
        finally:
            site.end()
    except KeyboardInterrupt:  # nobody wants to look at the half of a soak
        shutil.rmtree(folder)
        raise
    soak.judge_ends()
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(markdown(soak, options.report.with_suffix(".svg").name))
    options.report.with_suffix(".svg").write_text(picture(site.daemons))
    print(options.report.read_text())
    if not soak.wrong:
        shutil.rmtree(folder)
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
