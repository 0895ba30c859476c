/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of gaccctl share: an invocation whose output and errors go to memory. */
#include "cli_rig.h"

#include <stdlib.h>

struct invocation inv;
char *out, *err;
size_t n_out, n_err;

void cli_setup(void)
{
	inv = (struct invocation){ .headers = true };
	inv.out = open_memstream(&out, &n_out);
	inv.err = open_memstream(&err, &n_err);
	unsetenv("GACC_EXIT_ERROR");
}

void cli_teardown(void)
{
	fclose(inv.out);
	fclose(inv.err);
	free(out);
	free(err);
}
