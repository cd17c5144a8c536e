"""The code on the first page does what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_python_runs(tmp_path: Path):
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    explained, last = done.stdout.rstrip().rsplit("\n", 1)
    assert explained.startswith("step on mesh x=8, localized form")
    loss, sharding = last.split(" ", 1)
    assert float(loss) < 1.0
    assert sharding.startswith("NamedSharding(mesh=Mesh('x': 8")
    for words in (["explain", "out/plan.json"], ["diff", "out/plan.json", "out/plan.json"]):
        command = f"import sys; from rhino.tools.plan import main; sys.argv[1:] = {words}; main()"
        assert subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, timeout=60).returncode == 0
