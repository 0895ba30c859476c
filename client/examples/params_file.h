/* SPDX-License-Identifier: Apache-2.0 */
/* The perceptron's parameters as a safetensors file, f32, tensors in their own order. */
#ifndef GACC_EXAMPLES_PARAMS_FILE_H
#define GACC_EXAMPLES_PARAMS_FILE_H

#include "mlp_model.h"

/* Writes the file anew. 0, or -1 with a sentence in why. */
int params_write(const char *path, const float *const *params, char *why, size_t n_why);

/* Reads what params_write wrote, and nothing else: another header is refused. to[t] has mlp_tensors[t].count elements.
 */
int params_read(const char *path, float *const *to, char *why, size_t n_why);

#endif
