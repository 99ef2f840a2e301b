# SPDX-License-Identifier: MIT OR Apache-2.0
"""Plots what scripts/fuzz has counted: instructions reached, and programs, over time.

usage: plot.py PROGRESS.CSV PLOT.SVG
"""

import csv
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

source, target = sys.argv[1:]
minutes, programs, reached = [], [], []
before, last = [0, 0, 0], [0, 0]
with open(source) as file:
    for row in csv.reader(file):
        seconds, count, _, instructions = map(int, row)
        if seconds < last[0]:  # The machine began anew.
            before[0] += last[0]
            before[1] += last[1]
        last = [seconds, count]
        before[2] = max(before[2], instructions)
        minutes.append((before[0] + seconds) / 60)
        programs.append(before[1] + count)
        reached.append(before[2])

figure, left = pyplot.subplots(figsize=(8, 4))
left.plot(minutes, reached, color="tab:blue")
left.set_xlabel("minutes")
left.set_ylabel("instructions of the driver reached", color="tab:blue")
right = left.twinx()
right.plot(minutes, programs, color="tab:orange")
right.set_ylabel("programs", color="tab:orange")
figure.tight_layout()
figure.savefig(target)
