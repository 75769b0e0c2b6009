"""One rank in a warm process: enters the network namespace of its node, and is the training.

python bench/real_runs/in_node.py NAMESPACE bench/engines/jobs/ddp.py ...
"""

import runpy
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from support.namespaces import enter

if __name__ == "__main__":
    enter(sys.argv[1])  # before any thread of the training
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
