/* SPDX-License-Identifier: Apache-2.0 */
/* The specification that tests of decisions begin with, and change. */
#ifndef GACC_TESTS_DECIDE_RIG_H
#define GACC_TESTS_DECIDE_RIG_H

#include "control/decide.h"

#include <check.h>

static struct job_spec spec;

static void setup(void)
{
	const char *field;
	char why[200] = "";
	spec = (struct job_spec){ .name = "t", .ranks = 2, .micro_size = 4, .steps = 0 };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	spec.master_f32 = true;
	ck_assert_msg(job_spec_check(&spec, &field, why, sizeof(why)) == ST_OK, "%s", why);
}

#endif
