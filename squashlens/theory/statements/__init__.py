"""The paper's statements as functions that compute both sides and check the premises.

Each function returns a `Statement`. Its `verdict` is ``"holds"``, ``"fails"`` or ``"premise violated"``; for a limit it
is ``"consistent"`` or ``"undecided"``, since no finite check proves a limit. `shows` says what was checked. `gallery`
evaluates every statement at inputs that meet its premises and at inputs that do not.
"""
