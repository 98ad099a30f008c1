"""What is started with a framework isn't imported without it."""

collect_ignore = ["verl_cpu", "verl_cuts.py"]
