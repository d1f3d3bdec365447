"""Takes 200 MiB for a moment, and keeps 50 MiB."""

import time

kept = bytearray(50 * 2**20)
time.sleep(0.3)
passing = bytearray(150 * 2**20)
del passing
time.sleep(0.3)
