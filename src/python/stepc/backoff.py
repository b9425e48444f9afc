"""How often the engine is asked to run a step that it leaves to eager: on small steps one question a call would be felt."""

_IN_A_ROW = 8  # calls that the engine leaves to eager, before it is asked less often
_MOST_BETWEEN = 256  # calls between two questions


class Backoff:
    def __init__(self):
        self._left = 0  # calls in a row that the engine left to eager
        self._between = 0  # calls until the next question

    def is_due(self):
        """Whether to ask the engine at this call."""
        if self._between == 0:
            return True
        self._between -= 1
        return False

    def note(self, is_left):
        """`is_left`: the engine has left the call to eager."""
        self._left = self._left + 1 if is_left else 0
        if self._left > _IN_A_ROW:
            self._between = min(2 ** (self._left - _IN_A_ROW), _MOST_BETWEEN)

    def reset(self):
        self._left = self._between = 0
