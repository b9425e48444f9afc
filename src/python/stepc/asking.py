"""How often Python asks the engine to run a call that the engine leaves to eager: on small steps asking at every call
is noticeable."""

_IN_A_ROW = 8  # calls that it leaves, until it is asked less often
_MOST_BETWEEN = 256  # calls that are made as they are, between two that it is asked for


class Asking:
    def __init__(self):
        self._left = 0  # calls in a row
        self._between = 0  # to come

    def is_due(self):
        """Whether to ask for this call."""
        if self._between == 0:
            return True
        self._between -= 1
        return False

    def note(self, is_left):
        """What it has answered."""
        self._left = self._left + 1 if is_left else 0
        if self._left > _IN_A_ROW:
            self._between = min(2 ** (self._left - _IN_A_ROW), _MOST_BETWEEN)

    def begin_anew(self):
        self._left = self._between = 0
