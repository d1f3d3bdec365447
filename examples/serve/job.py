"""A job that takes some MiB for a moment."""

import sys
import time

held = [bytearray(2**20) for _ in range(int(sys.argv[1]))]
time.sleep(0.3)
held.clear()
time.sleep(0.2)
