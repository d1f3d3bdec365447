"""The version of memfit, alone in its file so that nothing else is loaded, and where its files lie."""

import os

VERSION = "0.1.0"
PACKAGE_FOLDER = os.path.dirname(os.path.abspath(__file__))
