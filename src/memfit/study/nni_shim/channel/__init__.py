"""A folder for the path of trials that use the installed NNI."""
