# Copyright 2026 The diffusers_dp authors. Licensed under the Apache License, Version 2.0.
"""The page under load: how soon it is up, how soon it draws, and what many visitors at once cost.

    python benchmarks/app_load.py runs/demo/release
    python benchmarks/app_load.py runs/demo/release --requests 100 --count 16

Starts `app.py` as people do, then measures from outside: seconds until the page answers, until the first images are
there (torch and the model are loaded in between), and of a drawing after that; then `--requests` drawings at once,
each of which must answer with images. Memory is the largest resident set of the server, before and after.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil


ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--count", type=int, default=16, help="Images in each drawing.")
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, start = f"http://127.0.0.1:{port}", time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), args.release, "--server_port", str(port)], stdout=subprocess.DEVNULL
    )
    try:
        while not answers(address):
            time.sleep(0.05)
        print(f"page up: {time.perf_counter() - start:.1f} s")
        draw(address, args.release, args.count, 0)
        print(f"first images: {time.perf_counter() - start:.1f} s after the start")
        again = time.perf_counter()
        draw(address, args.release, args.count, 1)
        print(f"{args.count} images: {time.perf_counter() - again:.2f} s")
        process = psutil.Process(server.pid)
        before, again = process.memory_info().rss, time.perf_counter()
        with ThreadPoolExecutor(args.requests) as pool:
            done = list(pool.map(lambda seed: draw(address, args.release, args.count, seed), range(args.requests)))
        print(f"{sum(done)} of {args.requests} requests at once answered in {time.perf_counter() - again:.1f} s")
        after = process.memory_info().rss
        print(f"resident memory: {before / 2**20:,.0f} MiB before, {after / 2**20:,.0f} MiB after")
        if not all(done):
            sys.exit("error: not every request was answered with images.")
    finally:
        server.terminate()
        server.wait(30)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=30) as page:
            return page.status == 200
    except OSError:
        return False


def draw(address: str, release: str, count: int, seed: int) -> bool:
    """One drawing by the page's own interface; whether it ended with as many images as were asked for."""
    body = json.dumps({"data": [release, [], count, seed, 20, "dpm"]}).encode()
    request = urllib.request.Request(f"{address}/gradio_api/call/draw", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as asked:
        event = json.load(asked)["event_id"]
    with urllib.request.urlopen(f"{address}/gradio_api/call/draw/{event}", timeout=3600) as stream:
        last = stream.read().decode().rsplit("event: ", 1)[-1]
    return last.startswith("complete") and last.count("<figure>") == count


if __name__ == "__main__":
    main()
