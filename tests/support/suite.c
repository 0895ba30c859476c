/* SPDX-License-Identifier: Apache-2.0 */
#include "support/suite.h"

#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>

int suite_run_all(Suite *suites[])
{
	if (!scratch_begin()) {
		perror("no folder for the tests' files");
		return EXIT_FAILURE;
	}
	SRunner *r = srunner_create(suites[0]);
	for (size_t i = 1; suites[i]; i++)
		srunner_add_suite(r, suites[i]);
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	scratch_end();
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
