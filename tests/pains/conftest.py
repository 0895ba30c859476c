# SPDX-License-Identifier: Apache-2.0
"""What hurt users of gradient accumulation, by public thread: test_PROJECT_NUMBER_... says in its first sentences what the thread is about and what gacc
guarantees instead. Where plain torch has the pain, too, the test shows it first. The threads' own loops are rewritten: small, and on the CPU.

Without a test, because no more than one line about them was at hand; the tests of threads that say the same are in brackets: transformers#35203 (#34242,
#34191), slime#1860 (EasyR1#11004), pytorch#106395 and #197368 (maxtext#5039)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))  # fixtures, loops, ranks
from fixtures import *  # noqa: E402, F401, F403
