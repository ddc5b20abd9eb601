"""Carries out the Dockerfile of docs/deployment.rst: ``python -m tests.image``; ``tox -e image``.

With a Docker daemon it is built and run.  Without one its steps are carried out by hand in a new directory: files are
copied, pip installs into an environment of its own, without a compiler, and CMD runs there with nothing else on its
path.  Either way the worker must become ready, handle a message from an embedded nsqd, and end with 0 on SIGTERM.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from gnsq_lite import Writer
from gnsq_lite.broker import Broker
from tests.docblocks import blocks, local
from tests.programs import wait_for

ROOT = Path(__file__).parent.parent
RECIPES, WORKER = ROOT / "docs" / "deployment.rst", ROOT / "docs" / "worker.rst"
#: Seconds for the build, and for the worker to become ready.
BUILD, START = 600.0, 60.0


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile."""
    text = next(source for _, source in blocks(RECIPES, "dockerfile"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def context(folder: Path, broker: Broker) -> None:
    """Put there what the Dockerfile copies: a checkout, and the program of docs/worker.rst."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        target = folder / "gnsq_lite" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    _, program = next(blocks(WORKER))
    (folder / "shop").mkdir()
    (folder / "shop" / "jobs.py").write_text(local(program, broker), encoding="utf-8")


def by_hand(folder: Path, root: Path, port: int) -> subprocess.Popen[bytes]:
    """Carry out each instruction below *root*; return the running CMD."""
    here, environment = root, {"PATH": "/usr/bin:/bin", "HOME": str(root), "CC": "/bin/false", "PYTHONUNBUFFERED": "1"}
    environment.update({name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))})
    for word, rest in instructions():
        if word == "FROM":
            subprocess.run([sys.executable, "-m", "venv", str(root / "usr")], check=True, timeout=BUILD)
            environment["PATH"] = f"{root / 'usr' / 'bin'}:{environment['PATH']}"
        elif word == "COPY":
            source, target = rest.split()
            shutil.copytree(folder / source, here / target if target[0] != "/" else root / target[1:])
        elif word == "RUN":
            command = [each.replace("/src/", f"{root}/src/") for each in shlex.split(rest)]
            subprocess.run(command, cwd=here, env=environment, check=True, timeout=BUILD, stdout=sys.stderr)
        elif word == "WORKDIR":
            here = root / rest[1:]
            here.mkdir()
        elif word == "CMD":
            command = [str(port) if each == "9100" else each for each in json.loads(rest)]
            return subprocess.Popen(
                command, cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        elif word not in ("EXPOSE", "STOPSIGNAL"):
            raise SystemExit(f"{word} is not known here")
    raise SystemExit("the Dockerfile has no CMD")


def by_docker(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Build the image and run it in the host's network."""
    text = next(source for _, source in blocks(RECIPES, "dockerfile")).replace('"9100"', f'"{port}"')
    (folder / "Dockerfile").write_text(text, encoding="utf-8")
    built = subprocess.run(
        ["docker", "build", "-q", "."], cwd=folder, check=True, timeout=BUILD, stdout=subprocess.PIPE, text=True
    )
    command = ["docker", "run", "--rm", "--network", "host", built.stdout.strip()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def status(url: str) -> int:
    """Return the status of a page; 0: nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def main() -> int:
    """Build, run, publish, stop."""
    found = shutil.which("docker")
    has_docker = found and not subprocess.run([found, "info"], capture_output=True, check=False).returncode
    print("with Docker" if has_docker else "NO DOCKER DAEMON: the steps are carried out by hand", flush=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name, Broker() as broker:
        folder, root = Path(name) / "context", Path(name) / "root"
        folder.mkdir()
        root.mkdir()
        context(folder, broker)
        running = by_docker(folder, port) if has_docker else by_hand(folder, root, port)
        try:
            with Writer(broker.nsqd_tcp_address) as writer:
                writer.publish("orders", b"order 1")
            address = f"http://127.0.0.1:{port}"
            wait_for(lambda: status(f"{address}/readyz") == 200 or running.poll() is not None, START, "it is not ready")
            pages = {page: status(address + page) for page in ("/healthz", "/readyz", "/metrics")}
            running.send_signal(signal.SIGTERM)
            output, _ = running.communicate(timeout=60)
        finally:
            running.kill()
            running.communicate()
    text = output.decode("utf-8", "replace")
    good = running.returncode == 0 and set(pages.values()) == {200} and re.search(r"^billing b'order 1'$", text, re.M)
    print(text if not good else f"pages {pages}, the message was handled, exit code 0")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
