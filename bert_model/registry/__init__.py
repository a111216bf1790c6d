"""Model registry on MLflow.

`operations` registers, promotes, rolls back and downloads versions; `promotion` holds the gates. Below them are the
client, the files and the tags of a version. `resolve` turns any model reference into a directory.
"""
