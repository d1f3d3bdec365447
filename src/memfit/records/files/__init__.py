"""Form of records in files: names and versions, text and numbers that every reader takes, HTML in a notebook."""
