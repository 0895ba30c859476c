/* SPDX-License-Identifier: Apache-2.0 */
/* How the programs that torture the store end when something is not as it must be. */
#ifndef GACC_TESTS_SCRIPT_H
#define GACC_TESTS_SCRIPT_H

/* One line to stderr; ends the process. */
_Noreturn void script_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
