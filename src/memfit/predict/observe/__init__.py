"""Which storage was allocated by which operator, in which phase, module and line; imports torch; for both engines."""
