/* SPDX-License-Identifier: Apache-2.0 */
/* A job file while it is read: shared by spec.c and spec_keys.c alone. */
#ifndef GACC_CLIENT_SPEC_IMPL_H
#define GACC_CLIENT_SPEC_IMPL_H

#include "lib/spec.h"
#include "text/yaml_table.h"

#include <gacc/v1/common.pb-c.h>

/* A file as it was written: the messages' own fields, and lists that become messages in build. */
struct spec_file {
	int api_version, kind;
	Gacc__V1__JobSpec spec;
	Gacc__V1__Optimizer optimizer;
	Gacc__V1__Schedule schedule;
	Gacc__V1__DynamicLossScale loss_scale;
	Gacc__V1__CheckpointPolicy checkpoint;
	Gacc__V1__OutlierSkip outlier;
	double betas[2];
	Gacc__V1__Launch launch;
	struct yaml_list labels, groups, init, tensors, command, environment;
	struct yaml_origins origins;
	struct yaml_error error;
};

struct group_item {
	char *pattern;
	struct yaml_list tensors;
	double lr_scale, weight_decay;
	int frozen;
};

struct init_item {
	char *pattern;
	int type;
	double a, b;
};

struct tensor_item {
	char *name, *alias_of;
	int dtype;
	struct yaml_list shape;
};

/* Of the table, the keys of spec.optimizer; and its types by name. */
extern const struct yaml_field spec_optimizer_keys[];
extern const struct yaml_name spec_optimizers[];

#endif
