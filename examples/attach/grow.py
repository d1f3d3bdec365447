"""Takes 8 MiB more every tenth of a second, for three seconds."""

import time

kept = []
for _ in range(30):
    kept.append(bytearray(8 * 2**20))
    time.sleep(0.1)
