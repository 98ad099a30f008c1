"""What is started with a framework isn't imported without it; ``lean.py`` is for processes that train alone."""

collect_ignore = ["lean.py", "verl_cpu", "verl_cuts.py", "verl_exchanges.py"]
