"""Keeps as many MiB as its argument says, for half a second."""

import sys
import time

kept = bytearray(int(sys.argv[1]) * 2**20)
time.sleep(0.5)
