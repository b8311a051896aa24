"""What stands under deploy/, read as those would read it who are meant to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes" / "quorate.yaml"
UNIT = DEPLOY / "systemd" / "quorate.service"
DASHBOARD = DEPLOY / "grafana" / "quorate.json"
DOCKERFILE = DEPLOY / "Dockerfile"
CONTAINER = DEPLOY / "container.toml"


def documents(path: Path) -> list[dict[str, Any]]:
    """All of a YAML file."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: the file is not read")
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def kubernetes(kind: str, name: str = "quorate") -> dict[str, Any]:
    (found,) = [
        one for one in documents(KUBERNETES) if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    return found


def tool(name: str) -> str:
    """Where it is, beside this Python or on the path; the test is skipped where it is not."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: what it would say of this is not known")
    return found
