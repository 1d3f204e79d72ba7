"""Tells what it may read of the processes named, or else of the one that started it and of the one before."""

import os
import sys
from pathlib import Path

parent = os.getppid()
before = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]
found = []
for pid in sys.argv[1:] or [parent, before]:
    found.append([])
    for name in ("environ", "maps"):
        try:
            Path(f"/proc/{pid}/{name}").read_bytes()
            found[-1].append(name)
        except PermissionError:
            pass
print(found, flush=True)
