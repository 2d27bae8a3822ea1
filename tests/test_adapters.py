"""What holds for adapters where no framework is installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

import backtrail.adapters
from backtrail._startup.extras import install_line
from backtrail.errors import Unsupported

ADAPTERS = sorted(
    path.stem.removesuffix(".py")
    for path in Path(backtrail.adapters.__file__).parent.iterdir()
    if not path.stem.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_framework_is_named(name: str) -> None:
    """The error has the line that installs what is missing, and is an `ImportError`, too."""
    code = f"import backtrail.adapters.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode, "the framework is installed here"
    extra = name.replace("_", "-")
    assert extra in metadata("backtrail").get_all("Provides-Extra", [])
    assert "MissingFramework" in done.stderr and install_line(extra) in done.stderr
    assert issubclass(backtrail.adapters.MissingFramework, Unsupported)
    assert issubclass(backtrail.adapters.MissingFramework, ImportError)


def test_the_core_knows_no_adapter() -> None:
    """Sessions, the command line and the door itself import none."""
    code = (
        "import sys, backtrail.adapters, backtrail.cli.program, backtrail\n"
        "backtrail.Session.create('memory:').close()\n"
        "print([name for name in sys.modules if name.startswith('backtrail.adapters.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
