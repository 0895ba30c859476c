# SPDX-License-Identifier: Apache-2.0
"""Tests of gacc.torch and the adapters: fixtures.py has what they share."""
from fixtures import *  # noqa: F401, F403
