"""Makes `localcluster`, the embedded Kubernetes, importable: it is a program of its own, outside the product's packages."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "deploy"))
