"""Its presence makes `training_samples` importable from the tests below this folder."""
