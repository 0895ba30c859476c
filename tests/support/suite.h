/* SPDX-License-Identifier: Apache-2.0 */
/* The end of every Check program. */
#ifndef GACC_TESTS_SUITE_H
#define GACC_TESTS_SUITE_H

#include <check.h>

/* Runs all tests of the suites, which it takes; scratch_make works in them, and what they leave there is removed
 * however they ended. The program's exit code. */
#define suite_run(...) suite_run_all((Suite *[]){ __VA_ARGS__, NULL })
int suite_run_all(Suite *suites[]); /* ends with NULL */

#endif
