# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs in documents: what they print must be what their comments say."""

import re
import subprocess
import sys


def programs(path):
    """The blocks of Python in a document."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def run_program(program):
    """Runs a program. Returns whether it ends well and prints what the comments beside its calls
    of print() say, in this order, and what it has said."""
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    said = done.stdout + done.stderr
    missing = []
    lines = iter(done.stdout.splitlines())
    for line in expected:
        if not any(line == found.strip() for found in lines):
            missing.append(f"it has not printed: {line}")
            break
    return done.returncode == 0 and not missing, "\n".join([said, *missing])
