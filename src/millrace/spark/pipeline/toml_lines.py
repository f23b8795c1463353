"""The line numbers of the tables and keys in a TOML text: ``tomllib`` returns only their values."""

from __future__ import annotations

import re
import tomllib

Name = tuple[str, ...]
"""The dotted name of a table or key, divided into its parts."""

_TOKEN = re.compile(
    r'''("""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')'''
    r"""|(?P<comment>\#[^\n]*)|\n|[\[\]{}=,.]|[^\s\[\]{}=,."'#]+""",
    re.DOTALL,
)


class TomlLines:
    """The line numbers of the tables and keys of a valid TOML text, in the mapping ``of``.

    >>> TomlLines('a.b = 1\\n[t."x y"]\\n\\nk = { u = [1,\\n 2], v = "[no]" }\\n').of
    {('a',): 1, ('a', 'b'): 1, ('t',): 2, ('t', 'x y'): 2, ('t', 'x y', 'k'): 4, ('t', 'x y', 'k', 'u'): 4, \
('t', 'x y', 'k', 'v'): 5}
    """

    def __init__(self, text: str) -> None:
        self.of: dict[Name, int] = {}
        self.last = text.rstrip().count("\n") + 1
        found = (match for match in _TOKEN.finditer(text) if not match["comment"])
        self._tokens = [(match.group(), text.count("\n", 0, match.start()) + 1) for match in found]
        self._at = 0
        table: Name = ()
        while self._at < len(self._tokens):
            if self._skip("\n"):
                continue
            if self._skip("["):
                is_array = self._skip("[")
                table = self._name((), "]")
                if is_array:
                    self._skip("]")
            else:
                self._value(self._name(table, "="))

    def find(self, name: Name) -> int:
        """Return the line of a table or key; if it is missing, the line of the table around it, or the last line."""
        while name and name not in self.of:
            name = name[:-1]
        return self.of.get(name, self.last)

    def _skip(self, token: str) -> bool:
        """Move past the next token if it is ``token``, and return whether it was."""
        here = self._tokens[self._at][0] == token
        self._at += here
        return here

    def _name(self, under: Name, end: str) -> Name:
        """Read a dotted name in the table ``under`` up to the token ``end``, note its line, and return it."""
        name = under
        while not self._skip(end):
            token, line = self._tokens[self._at]
            self._at += 1
            if token != ".":
                name = (*name, tomllib.loads(f"text = {token}")["text"] if token[0] in "\"'" else token)
                self.of.setdefault(name, line)
        return name

    def _value(self, name: Name) -> None:
        """Move past a value; if it is an inline table, note the lines of its keys."""
        if self._skip("{"):
            while not self._skip("}"):
                if not (self._skip(",") or self._skip("\n")):
                    self._value(self._name(name, "="))
        elif self._skip("["):
            while not self._skip("]"):
                if not (self._skip(",") or self._skip("\n")):
                    self._value(name)
        else:
            while self._at < len(self._tokens) and self._tokens[self._at][0] not in ("\n", ",", "]", "}"):
                self._at += 1
