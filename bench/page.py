"""How fast the collector's page is in Chromium, for jobs of 4,096 and 32,768 ranks: until the first paint, until the
heat map is there, and from a click to what it shows; the views of the fleet and of a node; and what each view takes.
The collector's web part runs in a process of its own on a made snapshot that is replaced every five seconds, as its
rounds do; it scrapes nothing meanwhile."""

import argparse
import dataclasses
import multiprocessing
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from common.figures import Figure, quartiles, show
from common.refused import need, refuse
from playwright.sync_api import sync_playwright

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.made_snapshot import Source, made_snapshot

from laggard.collector.settings import CollectorSettings
from laggard.collector.web.app import make_app

ROUND_SECONDS = 5.0
MIN_RANKS = 1024
FIRST_PAINT = 1000.0
INTERACTION = 100.0
PAYLOAD = {"job": 1.5, "fleet": 0.5, "node": 0.5}
"""Megabytes of all answers of a view's first load, with the page's own files."""

VIEWS = {
    "fleet": (
        "#view=fleet",
        "document.querySelector('#tiles-named a') && document.querySelector('#jobs tbody tr')",
    ),
    "node": ("#node=gpu-0000", "document.querySelector('#node-facts div')"),
}

# Milliseconds from ACT until DONE holds and the frame after it has begun.
TIMED = """() => new Promise((resolve, reject) => {
    const began = performance.now();
    const look = () => requestAnimationFrame(() => {
        if (performance.now() - began > 60000) reject(new Error("not within a minute"));
        else if (DONE) requestAnimationFrame(() => resolve(performance.now() - began));
        else look();
    });
    ACT;
    look();
})"""

CLICK = """(() => { const it = document.getElementById("heat-canvas"), box = it.getBoundingClientRect();
    const at = { bubbles: true, clientX: box.left + 600, clientY: box.top + box.height * %s };
    for (const name of ["pointermove", "click"]) it.dispatchEvent(new PointerEvent(name, at)); })()"""
TEXT = 'document.getElementById("%s").textContent.includes("%s")'

ACTIONS = (
    ("a click that opens a row", CLICK % 0.5, TEXT % ("zoom-words", "of")),
    ("a click on a rank", CLICK % 0.3, 'document.getElementById("rank-title").textContent !== window.before'),
    ("back to all ranks", 'document.getElementById("zoom-out").click()', 'document.getElementById("zoom-out").hidden'),
    (
        "another measure",
        'document.querySelector("input[value=waited]").click()',
        TEXT % ("legend-words", "of the step"),
    ),
    (
        "a cell's values under the pointer",
        CLICK.replace(', "click"', "") % 0.2,
        '!document.getElementById("heat-tip").hidden',
    ),
)


def serve(ranks: int, port: int, ready: Any) -> None:
    source = Source(made_snapshot(ranks))

    def rounds() -> None:
        while True:
            time.sleep(ROUND_SECONDS)
            source.snapshot = dataclasses.replace(source.snapshot, scraped_at=time.monotonic())

    threading.Thread(target=rounds, daemon=True).start()
    ready.set()
    app = make_app(source, CollectorSettings())
    uvicorn.run(app, port=port, log_config=None, access_log=False, lifespan="off", server_header=False)


def wait_until_it_answers(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                refuse("the collector's web part does not listen")
            time.sleep(0.1)


def measured(browser: Any, url: str) -> dict[str, float]:
    """One load of the page and one of each action: milliseconds, and the bytes of all answers of the load."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.goto(url)
    page.evaluate(TIMED.replace("ACT", "0").replace("DONE", "!document.getElementById('rank-card').hidden"))
    found = {"the heat map": page.evaluate("performance.now()")}
    found["first paint"] = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.wait_for_load_state("networkidle")
    found["payload"] = sum(sizes) / 1e6
    for name, act, done in ACTIONS:
        page.evaluate("() => { window.before = document.getElementById('rank-title').textContent; }")
        found[name] = page.evaluate(TIMED.replace("ACT", act).replace("DONE", done))
        page.wait_for_timeout(200)
    context.close()
    return found


def measured_view(browser: Any, url: str, view: str) -> dict[str, float]:
    """One load of the fleet or of a node: milliseconds until it is there, and the megabytes of its answers."""
    address, done = VIEWS[view]
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.goto(url + address)
    page.evaluate(TIMED.replace("ACT", "0").replace("DONE", done))
    found = {"there": page.evaluate("performance.now()")}
    found["first paint"] = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.wait_for_load_state("networkidle")
    context.close()
    return {**found, "payload": sum(sizes) / 1e6}


def view_figures(view: str, size: str, runs: list[dict[str, float]]) -> list[Figure]:
    return [
        quartiles(f"{size}{view}: first paint", [run["first paint"] for run in runs], "ms", FIRST_PAINT),
        quartiles(f"{size}{view}: it is there", [run["there"] for run in runs], "ms"),
        quartiles(f"{size}{view}: all answers of a load", [run["payload"] for run in runs], "MB", PAYLOAD[view]),
    ]


def figures(ranks: int, loads: int) -> list[Figure]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ready = multiprocessing.Event()
    server = multiprocessing.Process(target=serve, args=(ranks, port, ready), daemon=True)
    server.start()
    try:
        while not ready.wait(1.0):
            if not server.is_alive():
                refuse(f"the collector's web part ended with {server.exitcode}")
        wait_until_it_answers(port)
        with sync_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-quic", "--disable-background-networking"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
            runs = [measured(browser, f"http://127.0.0.1:{port}/") for _ in range(loads)]
            views = {
                it: [measured_view(browser, f"http://127.0.0.1:{port}/", it) for _ in range(loads)] for it in VIEWS
            }
            browser.close()
    finally:
        server.terminate()
        server.join()
    size = f"{ranks:,} ranks: "
    shown = [
        quartiles(size + "first paint", [run["first paint"] for run in runs], "ms", FIRST_PAINT),
        quartiles(size + "the heat map is there", [run["the heat map"] for run in runs], "ms"),
        quartiles(size + "all answers of a load", [run["payload"] for run in runs], "MB", PAYLOAD["job"]),
    ]
    shown += [figure for view, loaded in views.items() for figure in view_figures(view, size, loaded)]
    return shown + [quartiles(size + name, [run[name] for run in runs], "ms", INTERACTION) for name, _, _ in ACTIONS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--loads", type=int, default=9)
    arguments = parser.parse_args()
    need("chromium")
    if min(arguments.ranks) < MIN_RANKS:
        refuse(f"--ranks: give {MIN_RANKS} or more: with fewer no row of the heat map opens")
    rows = [figure for ranks in arguments.ranks for figure in figures(ranks, arguments.loads)]
    return 0 if show("The page in Chromium", rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
