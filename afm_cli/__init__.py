"""The `afm` command: one file a group of commands; each parses, calls and prints. Heavy imports are lazy."""
