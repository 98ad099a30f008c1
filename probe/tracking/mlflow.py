"""Metrics as an MLflow run, through its client only: a fluent run that the user has open is never touched."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import batched_compat if False else islice  # noqa: placeholder
