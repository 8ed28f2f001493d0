"""One job on several fabrics: step, and how much of it is exposed communication.

python examples/compare_fabrics.py llama.json
"""

import sys

import emulator

trace = sys.argv[1] if len(sys.argv) > 1 else "llama.json"
for topology in ("fattree", "torus", "fiber"):
    result = emulator.run(trace, topology)
    parts = next(iter(result.partition().values()))
    exposed = parts.exposed_transfer_seconds + parts.exposed_wait_seconds
    print(
        f"{topology:<8} step {1e3 * result.step_seconds:8.2f} ms, {100 * exposed / result.step_seconds:5.1f} % exposed"
    )
