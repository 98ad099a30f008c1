"""What an agent asks of runs, by the Model Context Protocol: ``probe mcp``.

:mod:`answers` has the tools, :mod:`worker` runs them in a process that can be ended, :mod:`bounds` keeps answers short,
:mod:`marking` marks foreign text in them, and :mod:`server` is the only one that knows the protocol. ``SKILL.md`` tells
an agent how to ask.
"""
