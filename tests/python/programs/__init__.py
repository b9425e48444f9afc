"""Programs of other people's libraries, unmodified but for the one line of stepc: what they do must be the same."""
