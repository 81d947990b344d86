# SPDX-License-Identifier: Apache-2.0
"""A rank dies, torchrun starts all ranks again, and training ends with the bytes of a run in which nobody died.

    restart.py PYTHON PROGRAM    PYTHON has torch.distributed.run; exits with 77 (skipped) where it has not
"""
import os
import pathlib
import subprocess
import sys
import tempfile

RANKS = 2
WINDOWS = 18  # 3 epochs of 48 samples in windows of 2 micro-batches of 2 samples on 2 ranks


def run(python, program, folder, name, kill_after=None, restarts=0):
    command = [python, "-m", "torch.distributed.run", "--no-python", f"--nproc-per-node={RANKS}",
               f"--max-restarts={restarts}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", program,
               str(folder / f"checkpoints-{name}"), str(folder / name)]
    if kill_after is not None:
        command.append(str(kill_after))
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=240)
    return done.returncode, done.stdout


def bytes_of(folder, name):
    return [(folder / f"{name}.{rank}").read_bytes() for rank in range(RANKS)]


def require(holds, what, output):
    if not holds:
        print(output)
        sys.exit(f"FAILED: {what}")


def main():
    python, program = sys.argv[1:]
    if not os.access(python, os.X_OK) or subprocess.run([python, "-c", "import torch.distributed.run"],
                                                        stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print(f"skipped: {python} has no torch.distributed.run (torchrun)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        code, output = run(python, program, folder, "unbroken")
        require(code == 0, "the unbroken run", output)
        require(output.count(f"done at window {WINDOWS}") == RANKS, f"it has not {WINDOWS} windows", output)
        unbroken = bytes_of(folder, "unbroken")

        # Without restarts the death is the end, so the rest of this test is about something.
        code, output = run(python, program, folder, "ended", kill_after=7)
        require(code != 0, "a run whose rank died succeeded", output)
        require("done at window" not in output, "it was trained to the end", output)

        code, output = run(python, program, folder, "restarted", kill_after=7, restarts=2)
        require(code == 0, "the run that was started again", output)
        for rank in range(RANKS):
            require(f"rank {rank} resumed at window 6" in output, f"rank {rank} did not resume at window 6", output)
        require(output.count(f"done at window {WINDOWS}") == RANKS, "it was not trained to the end", output)
        require(bytes_of(folder, "restarted") == unbroken, "other parameters than those of the unbroken run", output)
        require(len(unbroken[0]) > 400, "nothing was compared", output)
        print("restarted at window 6, and ended with the bytes of the unbroken run")


if __name__ == "__main__":
    main()
