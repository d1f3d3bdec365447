"""Parts that several verbs share: options, and how a record is printed."""
