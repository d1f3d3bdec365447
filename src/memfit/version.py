"""The version of memfit, alone in its file so that nothing else is loaded to know it."""

VERSION = "0.1.0"
