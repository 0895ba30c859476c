/* SPDX-License-Identifier: Apache-2.0 */
/* Holds the fat binary of the kernels, if there is one: CUDA_IMAGE is its path while this is compiled. For plugin.c;
 * any thread. */
#include "cuda/image.h"

#include <stddef.h>

#ifdef CUDA_IMAGE
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".local gacc_cuda_fatbin\n"
	"gacc_cuda_fatbin: .incbin \"" CUDA_IMAGE "\"\n"
	".popsection\n");
extern const char gacc_cuda_fatbin[] __attribute__((visibility("hidden")));

const void *cuda_image(void)
{
	return gacc_cuda_fatbin;
}
#else
const void *cuda_image(void)
{
	return NULL;
}
#endif
