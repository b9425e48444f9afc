"""Ordinary training programs, each run as it is and with its one line of stepc: what they do must be the same."""
