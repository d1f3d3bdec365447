"""Orders of work over ranks, their simulation, and the memory that every rank needs in them; pure."""
