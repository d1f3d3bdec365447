"""Takes 8 MiB more every second, for a minute."""

import time

kept = []
for _ in range(60):
    kept.append(bytearray(8 * 2**20))
    time.sleep(1)
