"""The `afm` command: one file a group of commands; each parses, calls the library and prints. Heavy imports are lazy."""
