"""Records of this machine: what can be measured here, and which data sets lie here."""
