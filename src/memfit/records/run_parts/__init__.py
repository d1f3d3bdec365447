"""Parts of the record of a run: samples, steps, the ledger of its peak, and the state of a job that still runs."""
