"""Contract classes: subclass one for your planner, reader, storage, workload or engine, and pytest runs its laws."""
