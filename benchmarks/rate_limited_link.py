# SPDX-License-Identifier: Apache-2.0
"""Runs a command as two ranks on this machine with a slow network between them.

    rate_limited_link.py RATE -- COMMAND...        RATE as tc spells it: 1gbit, 500mbit

The ranks are in two network namespaces, joined by a veth pair whose both ends are limited by a token bucket (tc tbf).
Both get the variables of torchrun; rank 0 has this program's standard input and output. Namespaces are removed at the
end, and those of a run that was killed by the next. Needs root and iproute2; exits 77 where they may not be made."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time

SKIPPED = 77
PREFIX = "saturate-link-"
PORT = 29400
PR_SET_PDEATHSIG = 1


def ip(*arguments, check=True):
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if check and run.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {run.stderr.strip() or run.returncode}")
    return run.stdout


def names_of(process):
    return [f"{PREFIX}{process}-{rank}" for rank in range(2)]


def remove(process):
    for name in names_of(process):
        ip("netns", "del", name, check=False)  # its end of the pair goes with it, and so does the other


def remove_stale():
    for process in {int(found) for found in re.findall(rf"^{PREFIX}(\d+)-", ip("netns", "list"), re.M)}:
        if not os.path.exists(f"/proc/{process}"):
            remove(process)


def make(process, rate):
    """The namespaces, and the interface in each."""
    names, interfaces = names_of(process), [f"sat{process}-{rank}" for rank in range(2)]
    for name in names:
        ip("netns", "add", name)
    ip("link", "add", interfaces[0], "netns", names[0], "type", "veth", "peer", "name", interfaces[1], "netns", names[1])
    for rank, (name, interface) in enumerate(zip(names, interfaces)):
        ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", interface)
        ip("-n", name, "link", "set", interface, "up")
        ip("-n", name, "link", "set", "lo", "up")
        limit = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", rate, "burst",
                 "512kb", "latency", "50ms"]
        run = subprocess.run(limit, capture_output=True, text=True)
        if run.returncode != 0:
            raise OSError(f"tc tbf: {run.stderr.strip() or run.returncode}")
    return names, interfaces


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(rank, name, interface, command):
    variables = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": interface,
                 "OMP_NUM_THREADS": "1"}
    ours = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": sys.stderr}
    return subprocess.Popen(["ip", "netns", "exec", name, *command], env={**os.environ, **variables},
                            preexec_fn=die_with_parent, **ours)


def wait(ranks):
    """The first exit status that is not 0; a rank without the other is ended."""
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() not in (None, 0) for rank in ranks):
            time.sleep(1)  # for the other's own error
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
        time.sleep(0.01)
    return next((rank.returncode for rank in ranks if rank.returncode != 0), 0)


def main():
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(__doc__)
    rate, command, process = sys.argv[1], sys.argv[3:], os.getpid()
    if not os.access(command[0], os.X_OK):
        sys.exit(f"{command[0]} is not there")
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        print("no rate-limited link here: it needs root, and ip and tc of iproute2", file=sys.stderr)
        sys.exit(SKIPPED)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ranks = []
    try:
        remove_stale()
        try:
            names, interfaces = make(process, rate)
        except OSError as error:
            print(f"no rate-limited link here: {error}", file=sys.stderr)
            sys.exit(SKIPPED)
        ranks = [start(rank, names[rank], interfaces[rank], command) for rank in range(2)]
        sys.exit(wait(ranks))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(timeout=10)
        remove(process)


if __name__ == "__main__":
    main()
