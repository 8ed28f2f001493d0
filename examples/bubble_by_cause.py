"""Where a saved result loses time to the pipeline, and what the step is made of.

python examples/bubble_by_cause.py result.json
"""

import sys

import emulator

if len(sys.argv) < 2:
    sys.exit("which result? `emu run --trace llama-405b-16384.json.zst --json result.json` makes one")
result = emulator.read_result(sys.argv[1])

for ranks, bubble in result.bubble().items():
    causes = {cause.removesuffix("_seconds"): 1e3 * getattr(bubble, cause) for cause in bubble.__struct_fields__}
    print(f"ranks {ranks}: " + ", ".join(f"{cause} {ms:.3f} ms" for cause, ms in causes.items()))

path = result.critical_path()
lengths = (path["end_seconds"] - path["start_seconds"]) * path["repeats"]
for what in sorted(set(path["what"])):
    print(f"critical path, {what}: {100 * lengths[path['what'] == what].sum() / result.step_seconds:.1f} % of the step")
