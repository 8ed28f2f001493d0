"""The ten ops of a job that take most time in all, from a replay in this process.

python examples/slowest_ops.py llama.json fattree
"""

import sys
from collections import Counter

import emulator

trace, topology = sys.argv[1:3] if len(sys.argv) > 2 else ("llama.json", "fattree")
result = emulator.run(trace, topology)

spans = result.spans()
seconds: Counter[str] = Counter()
for name, start, end in zip(spans["name"], spans["start_seconds"], spans["end_seconds"], strict=True):
    seconds[name] += end - start
for name, total in seconds.most_common(10):
    print(f"{1e3 * total:10.3f} ms  {name}")
