"""The command line. One file a command; only this package prints."""
