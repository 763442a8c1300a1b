"""The user's mistakes: what is wrong, where, and how to mend it. The CLI prints them in one line with exit code 2."""


class ConfigError(ValueError):
    """A wrong configuration, argument or input file. Never retried."""
