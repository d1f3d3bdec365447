"""The folder of a run on disk, between measuring and explaining: writer, reader, and assembly into one RunRecord."""
