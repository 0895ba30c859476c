/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for GPUs, as they were compiled with this build. */
#ifndef GACC_CUDA_IMAGE_H
#define GACC_CUDA_IMAGE_H

/* A fat binary for cuModuleLoadData; NULL: this build has none, as there was no nvcc. Static. */
const void *cuda_image(void);

#endif
