"""Adds the program kvasir to the wheel, if the environment names it: see scripts/wheel."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class AddProgram(BuildHookInterface[Any]):
    """Reads KVASIR_WHEEL_PROGRAM (a file) and KVASIR_WHEEL_PLATFORM (such as linux_x86_64)."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Without a program, the wheel is pure Python and serves every platform."""
        program = os.environ.get("KVASIR_WHEEL_PROGRAM")
        if program and self.target_name == "wheel" and version == "standard":
            build_data["shared_scripts"][program] = "kvasir"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['KVASIR_WHEEL_PLATFORM']}"
